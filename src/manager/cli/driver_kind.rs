//! The kinds of drivers there are, and how each is built.
//!
//! `CONTRIBUTING.md` lists the changes for a new kind.

use std::sync::Arc;

use crate::driver::Timeouts;
use cmi_driver::{Driver, Operation};
use cmi_grpc::client::{ConfigError, Connector, Deadlines, GrpcConfig, GrpcDriver};
use cmi_simulated::{SimulatedConfig, SimulatedDriver};

/// A driver that can be built.
#[derive(Debug)]
pub enum DriverKind {
    /// The simulated cloud.
    Simulated(SimulatedConfig),
    /// A plugin.
    Grpc(GrpcConfig),
}

impl DriverKind {
    /// Builds the driver, which is called with these timeouts; makes no call.
    ///
    /// # Errors
    /// The driver refuses this configuration.
    pub fn build(self, timeouts: &Timeouts) -> anyhow::Result<Arc<dyn Driver>> {
        match self {
            Self::Simulated(config) => Ok(Arc::new(SimulatedDriver::new(config)?)),
            Self::Grpc(config) => Ok(Arc::new(client(&config, timeouts)?)),
        }
    }

    /// Returns the connector that makes bare connections to the driver; `None` for a built-in driver.
    ///
    /// # Errors
    /// The configuration describes no plugin.
    pub fn connector(&self) -> Result<Option<Connector>, ConfigError> {
        match self {
            Self::Simulated(_) => Ok(None),
            Self::Grpc(config) => config.connector().map(Some),
        }
    }
}

/// Returns the driver that calls a plugin with these timeouts; makes no call.
///
/// # Errors
/// The configuration describes no plugin.
pub fn client(config: &GrpcConfig, timeouts: &Timeouts) -> Result<GrpcDriver, ConfigError> {
    let deadlines = Operation::ALL.map(|operation| (operation, timeouts.of(operation)));
    GrpcDriver::new(config, Deadlines::new(deadlines))
}
