//! Asks a driver for its name, readiness and capabilities.

use std::sync::Arc;

use capcmi::driver::Permit;
use cmi_driver::{Capabilities, PluginInfo, Readiness, Result};

/// The answers of the interface's identity service: Probe, GetPluginInfo and GetPluginCapabilities.
#[derive(Clone, Debug)]
pub struct Introspection {
    /// Name and version.
    pub info: PluginInfo,
    /// Whether the driver is ready.
    pub readiness: Readiness,
    /// The capabilities that the driver declares.
    pub capabilities: Arc<Capabilities>,
}

/// Asks the driver for its name, readiness and capabilities. A driver without Probe counts as ready.
///
/// # Errors
/// The error of the first call that fails.
pub async fn introspect(permit: &Permit<'_>) -> Result<Introspection> {
    let driver = permit.driver();
    Ok(Introspection {
        readiness: Readiness::from_probe(driver.probe().await)?,
        info: driver.get_plugin_info().await?,
        capabilities: permit.fetch_capabilities().await?,
    })
}
