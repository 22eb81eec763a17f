//! `capcmi drivers`: checks the drivers' configuration before anything depends on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};

use crate::introspection::{Introspection, introspect};
use capcmi::apiserver::leadership::Leadership;
use capcmi::driver::{ConfiguredDriver, ConfiguredDrivers, Priority};
use capcmi::manager::cli::drivers::{build, configured, load};
use capcmi::manager::cli::drivers_file::DriverConfig;
use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _};
use capcmi::telemetry::metrics::Metrics;
use cmi_driver::{Operation, Readiness};

/// Look after the drivers' configuration.
#[derive(Debug, Subcommand)]
pub(super) enum DriversCommand {
    /// Check the drivers file and whether each driver is ready.
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Drivers file.
    #[arg(long, env = "CAPCMI_DRIVERS_CONFIG", value_name = "FILE")]
    drivers_config: PathBuf,
    /// Check only the file, without calling the drivers.
    #[arg(long)]
    offline: bool,
}

/// Loads the drivers as [`load`] does, for a command that calls them: a command is no replica, and does not
/// have to be the leader.
pub(super) fn load_unelected(path: &Path) -> Result<ConfiguredDrivers, CommandError> {
    let metrics = Arc::new(Metrics::new());
    let drivers = load(path)?.into_iter().map(|(settings, driver)| {
        ConfiguredDriver::new(settings, driver, Leadership::unelected(), Arc::clone(&metrics))
    });
    ConfiguredDrivers::new(drivers.collect()).misconfigured()
}

pub(super) async fn execute(command: DriversCommand) -> Result<(), CommandError> {
    match command {
        DriversCommand::Check(args) => check(args).await,
    }
}

async fn check(args: CheckArgs) -> Result<(), CommandError> {
    if args.offline {
        return check_file(&args.drivers_config);
    }
    let drivers = load(&args.drivers_config)?;
    let metrics = Arc::new(Metrics::new());
    let mut failed = Vec::new();
    for (settings, driver) in drivers {
        let name = settings.name.clone();
        let driver = ConfiguredDriver::new(settings, driver, Leadership::unelected(), Arc::clone(&metrics));
        match describe(&driver).await {
            Ok((readiness, line)) => {
                print_line(&format!("{name}: {line}"));
                match readiness {
                    Readiness::Ready => {}
                    Readiness::NotReady => failed.push(name),
                }
            }
            Err(status) => {
                print_line(&format!("{name}: {}: {}", status.code(), status.message()));
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!("not ready: {}", failed.join(", ")).into())
}

/// Checks the file alone. Its credentials are in the provider's environment, possibly on another host, so
/// they are not read.
fn check_file(path: &Path) -> Result<(), CommandError> {
    for DriverConfig { mut settings, kind } in configured(path)? {
        settings.credentials = None;
        build(path, &settings, kind)?;
        print_line(&format!("{}: configured", settings.name));
    }
    Ok(())
}

/// Returns whether a driver is ready, and a line with its name, version and calls.
async fn describe(driver: &ConfiguredDriver) -> cmi_driver::Result<(Readiness, String)> {
    let permit = driver.acquire(Priority::Upkeep, "check").await;
    let Introspection {
        info,
        readiness,
        capabilities,
    } = introspect(&permit).await?;
    let shown = match readiness {
        Readiness::Ready => "ready",
        Readiness::NotReady => "not ready yet",
    };
    let calls: Vec<_> = Operation::ALL
        .into_iter()
        .filter(|operation| capabilities.supports(*operation))
        .map(Operation::name)
        .collect();
    let line = format!("{shown}: {} {}: {}", info.name, info.version, calls.join(", "));
    Ok((readiness, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_the_pod_are_not_read_offline() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drivers.yaml");
        let text = "drivers: [{name: ours, credentials: {directory: /not/here}, simulated: {}}]";
        std::fs::write(&file, text).unwrap();
        assert!(load(&file).is_err());
        assert!(check_file(&file).is_ok());
    }
}
