//! Generates `cmi::proto` from `proto/`. Needs no `protoc`: protox is a compiler in Rust.

use std::path::PathBuf;

/// Beside the crates: authors of drivers in other languages read it.
const PROTO: &str = "../../proto";

/// Requests that hold secrets: their `Debug` is written by hand, so that it shows none.
const WITH_SECRETS: [&str; 11] = [
    "cmi.v1.CreateMachineRequest",
    "cmi.v1.DeleteMachineRequest",
    "cmi.v1.GetMachineStatusRequest",
    "cmi.v1.ListMachinesRequest",
    "cmi.v1.ShutDownMachineRequest",
    "capcmi.v1.InitializeMachineRequest",
    "capcmi.v1.UpdateMachineRequest",
    "capcmi.v1.GetMachineRequest",
    "capcmi.v1.ListMachinesPagedRequest",
    "capcmi.v1.ListZonesRequest",
    "capcmi.v1.DescribeClassRequest",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let mut compiler = protox::Compiler::new([PROTO])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(["cmi/v1/cmi.proto", "capcmi/v1/capcmi.proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // What the reflection service shows. The types of prost would drop the option that marks secrets.
    std::fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    let descriptors = compiler.file_descriptor_set();
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .skip_debug(WITH_SECRETS)
        .compile_fds(descriptors)?;
    Ok(())
}
