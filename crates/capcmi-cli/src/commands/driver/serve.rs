//! `capcmi driver serve`: a built-in driver as a plugin.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use capcmi::manager::cli::{CommandError, ResultExt as _};
use cmi_driver::Driver;
use cmi_grpc::cli::{ServerArgs, config_file};
use cmi_simulated::{SimulatedConfig, SimulatedDriver};

#[derive(Debug, Args)]
pub(in crate::commands) struct ServeArgs {
    /// Driver to serve
    #[arg(value_enum)]
    kind: ServedKind,
    /// File with the configuration of the driver, as under its kind in the drivers file. Default: none.
    #[arg(long, env = "CAPCMI_DRIVER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A driver that is part of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServedKind {
    /// A small cloud in this process, for trials
    Simulated,
}

impl ServedKind {
    /// Builds the driver, with the configuration of a file or else with its defaults.
    fn build(self, config: Option<&Path>) -> anyhow::Result<Arc<dyn Driver>> {
        match self {
            Self::Simulated => {
                let config = match config {
                    None => SimulatedConfig::default(),
                    Some(path) => {
                        let what = || format!("cannot use driver configuration {}", path.display());
                        let text = std::fs::read_to_string(path).with_context(what)?;
                        config_file::parse(&text).with_context(what)?
                    }
                };
                Ok(Arc::new(SimulatedDriver::new(config)?))
            }
        }
    }
}

/// Serves the driver until the process is stopped. A wrong configuration is reported before anything is
/// served (CMI-188).
pub(super) async fn serve(args: ServeArgs) -> Result<(), CommandError> {
    let driver = args.kind.build(args.config.as_deref()).misconfigured()?;
    match args.server.serve(driver, env!("CARGO_PKG_VERSION")).await {
        Err(error) if error.is_misconfigured() => Err(error).misconfigured(),
        served => Ok(served?),
    }
}
