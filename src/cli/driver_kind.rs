//! The kinds of drivers there are, and how each is built.
//!
//! A new kind is a variant here with its arm in [`DriverKind::build`], and a key of
//! [`super::drivers_file::DriverEntry`] with its line in `into_kind`.

use std::sync::Arc;

use crate::driver::Driver;
use crate::drivers::simulated::{SimulatedConfig, SimulatedDriver};

/// A driver that can be built.
#[derive(Debug)]
pub(super) enum DriverKind {
    /// The simulated cloud.
    Simulated(SimulatedConfig),
}

impl DriverKind {
    /// Builds the driver. Makes no call.
    ///
    /// # Errors
    /// The driver's, when it can't be had with this configuration.
    pub(super) fn build(self) -> anyhow::Result<Arc<dyn Driver>> {
        match self {
            Self::Simulated(config) => Ok(Arc::new(SimulatedDriver::new(config)?)),
        }
    }
}
