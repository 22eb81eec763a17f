//! `capcmi drivers`: checks the drivers' configuration before anything depends on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use super::driver_kind::DriverKind;
use super::drivers_file::{self, DriverConfig};
use super::{CommandError, ResultExt as _};
use crate::cli::terminal::print_line;
use crate::configured_driver::{ConfiguredDriver, ConfiguredDrivers, Introspection, Priority, Settings};
use crate::leadership::Leadership;
use crate::metrics::Metrics;
use cmi_driver::{Driver, Operation, Readiness};

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

/// The drivers that are ready to be called, and their settings.
pub(super) type BuiltDrivers = Vec<(Settings, Arc<dyn Driver>)>;

/// Reads the file and builds its drivers; makes no call.
pub(super) fn load(path: &Path) -> Result<BuiltDrivers, CommandError> {
    configured(path)?
        .into_iter()
        .map(|DriverConfig { settings, kind }| {
            let driver = build(path, &settings, kind)?;
            Ok((settings, driver))
        })
        .collect()
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

/// Reads the file.
pub(super) fn configured(path: &Path) -> Result<Vec<DriverConfig>, CommandError> {
    drivers_file::load(path).misconfigured()
}

/// Builds a driver of the file.
pub(super) fn build(
    path: &Path,
    settings: &Settings,
    kind: DriverKind,
) -> Result<Arc<dyn Driver>, CommandError> {
    let (name, path) = (&settings.name, path.display());
    let built = with_credentials(settings, kind);
    built
        .with_context(|| format!("cannot create driver {name} of {path}"))
        .misconfigured()
}

/// Builds a driver after a first read of its credentials: credentials that can't be read are found now,
/// before a machine waits for them.
fn with_credentials(settings: &Settings, kind: DriverKind) -> anyhow::Result<Arc<dyn Driver>> {
    if let Some(credentials) = &settings.credentials {
        credentials.read().context("cannot use credentials.directory")?;
    }
    kind.build(&settings.limits.timeouts)
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

/// Checks the file alone. The credentials that it names are where the provider runs, which may not be here,
/// so they are not read.
fn check_file(path: &Path) -> Result<(), CommandError> {
    for DriverConfig { mut settings, kind } in configured(path)? {
        settings.credentials = None;
        build(path, &settings, kind)?;
        print_line(&format!("{}: configured", settings.name));
    }
    Ok(())
}

/// Returns whether a driver is ready, and a line with what it declares.
async fn describe(driver: &ConfiguredDriver) -> cmi_driver::Result<(Readiness, String)> {
    let permit = driver.acquire(Priority::Upkeep, "check").await;
    let Introspection {
        info,
        readiness,
        capabilities,
    } = permit.introspect().await?;
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

    /// OPS-13: a machine that waits for them would not say so to the operator.
    #[test]
    fn credentials_that_cannot_be_read_are_found_when_the_file_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drivers.yaml");
        let directory = folder.path().join("credentials");
        let text = format!(
            "drivers: [{{name: ours, credentials: {{directory: {}}}, simulated: {{}}}}]",
            directory.display()
        );
        std::fs::write(&file, text).unwrap();
        let Err(CommandError::Misconfigured(error)) = load(&file) else {
            panic!("a directory that is not there was taken");
        };
        let message = format!("{error:#}");
        assert!(
            message.contains("driver ours") && message.contains("credentials.directory"),
            "{message}"
        );
        assert!(
            check_file(&file).is_ok(),
            "the file is as it should be, and the directory is the Pod's"
        );
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("token"), "x").unwrap();
        assert!(load(&file).is_ok());
    }
}
