//! Decides which driver a machine gets.

use std::sync::Arc;

use crate::api::ObjectMetaExt as _;
use crate::api::identity;
use crate::api::v1alpha1::InfraMachine;
use crate::driver::{ConfiguredDriver, ConfiguredDrivers, ResolveError};

/// Which driver a machine gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// The driver that has the machine's VM, even if the namespace may no longer use it: the VM still has to
    /// be managed and deleted.
    Holder(String),
    /// The driver that the machine asks for, if its namespace may use it.
    Asked(Option<String>),
}

/// Resolves the driver of a machine, for any call.
///
/// # Errors
/// [`ResolveError`]: the fault in the configuration.
pub fn driver_of(
    drivers: &ConfiguredDrivers,
    machine: &InfraMachine,
) -> Result<Arc<ConfiguredDriver>, ResolveError> {
    let namespace = machine.metadata.namespace();
    match choice(machine) {
        Choice::Holder(name) => drivers.holder(&name),
        Choice::Asked(name) => drivers.resolve(name.as_deref(), namespace),
    }
}

/// Decides which driver a machine gets, from the machine alone.
pub fn choice(machine: &InfraMachine) -> Choice {
    let exists = machine.metadata.deletion_timestamp.is_some() || machine.spec.provider_id.is_some();
    match identity::bound(machine) {
        Some(made) if exists => Choice::Holder(made.driver),
        bound => Choice::Asked(
            bound
                .map(|made| made.driver)
                .or_else(|| machine.spec.driver.clone()),
        ),
    }
}
