//! Generates `cmi::proto` from `proto/`. Needs no `protoc`: protox is a compiler in Rust.

use std::path::PathBuf;

/// A link to the folder at the top, where authors of drivers in other languages look for it. A published
/// crate has the files.
const PROTO: &str = "proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let mut compiler = protox::Compiler::new([PROTO])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(["cmi/v1/cmi.proto", "capcmi/v1/capcmi.proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // The descriptors for the reflection service. The types of prost would drop the option that marks
    // secrets.
    std::fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    let descriptors = compiler.file_descriptor_set();
    // Their `Debug` is written by hand, so that it shows none.
    let mut with_secrets = Vec::new();
    for file in &descriptors.file {
        let messages = file.message_type.iter().filter(|message| {
            let mut fields = message.field.iter();
            fields.any(|field| field.name().eq_ignore_ascii_case("secrets"))
        });
        with_secrets.extend(messages.map(|message| format!("{}.{}", file.package(), message.name())));
    }
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .codec_path("crate::codec::BoundedCodec")
        .skip_debug(with_secrets)
        .compile_fds(descriptors)?;
    Ok(())
}
