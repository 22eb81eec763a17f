//! `capcmi-driver-container`: the driver as a plugin.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use capcmi_driver_container::{Config, ContainerDriver};
use clap::Parser;
use cmi_grpc::cli::ProgramArgs;

/// A driver of machines as system containers, for the Common Machine Interface.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// File with the configuration of the driver: hosts, pools, sizes, images and the bridge.
    #[arg(long, env = "CAPCMI_DRIVER_CONFIG", value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    program: ProgramArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut opened = None;
    let open = || {
        let driver = Arc::new(ContainerDriver::new(Config::read(&cli.config)?));
        opened = Some(Arc::clone(&driver));
        Ok::<_, anyhow::Error>(driver)
    };
    let code = cli
        .program
        .run(env!("CARGO_BIN_NAME"), env!("CARGO_PKG_VERSION"), open);
    if let Some(Err(error)) = opened.map(|driver| driver.close()) {
        tracing::warn!(error = error.message(), "the bridge is left");
    }
    code
}
