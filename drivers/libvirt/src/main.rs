//! `capcmi-driver-libvirt`: the driver as a plugin.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use capcmi_driver_libvirt::{Config, LibvirtDriver};
use clap::Parser;
use cmi_grpc::cli::ProgramArgs;

/// A driver of virtual machines on hosts with libvirt and QEMU, for the Common Machine Interface.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// File with the configuration of the driver: hosts, pools, sizes and images.
    #[arg(long, env = "CAPCMI_DRIVER_CONFIG", value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    program: ProgramArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let open = || Ok::<_, anyhow::Error>(Arc::new(LibvirtDriver::new(Config::read(&cli.config)?)));
    cli.program
        .run(env!("CARGO_BIN_NAME"), env!("CARGO_PKG_VERSION"), open)
}
