//! The drivers of the drivers file.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use super::driver_kind::DriverKind;
use super::drivers_file::{self, DriverConfig};
use super::{CommandError, ResultExt as _};
use crate::driver::Settings;
use cmi_driver::Driver;

/// The drivers that are ready to be called, and their settings.
pub type BuiltDrivers = Vec<(Settings, Arc<dyn Driver>)>;

/// Reads the file and builds its drivers; makes no call.
pub fn load(path: &Path) -> Result<BuiltDrivers, CommandError> {
    configured(path)?
        .into_iter()
        .map(|DriverConfig { settings, kind }| {
            let driver = build(path, &settings, kind)?;
            Ok((settings, driver))
        })
        .collect()
}

/// Reads the file.
pub fn configured(path: &Path) -> Result<Vec<DriverConfig>, CommandError> {
    drivers_file::load(path).misconfigured()
}

/// Builds a driver of the file.
pub fn build(path: &Path, settings: &Settings, kind: DriverKind) -> Result<Arc<dyn Driver>, CommandError> {
    let (name, path) = (&settings.name, path.display());
    let built = with_credentials(settings, kind);
    built
        .with_context(|| format!("cannot create driver {name} of {path}"))
        .misconfigured()
}

/// Builds a driver after a first read of its credentials. So unreadable credentials are found now, before a
/// machine waits for them.
fn with_credentials(settings: &Settings, kind: DriverKind) -> anyhow::Result<Arc<dyn Driver>> {
    if let Some(credentials) = &settings.credentials {
        credentials.read().context("cannot use credentials.directory")?;
    }
    kind.build(&settings.limits.timeouts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-13: otherwise the operator would not see why a machine waits.
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
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("token"), "x").unwrap();
        assert!(load(&file).is_ok());
    }
}
