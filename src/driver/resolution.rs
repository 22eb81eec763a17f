//! Decides which driver a machine gets.

use std::sync::Arc;

use crate::api::ObjectMetaExt as _;
use crate::api::identity;
use crate::api::v1alpha1::InfraMachine;
use crate::driver::{ConfiguredDriver, ConfiguredDrivers, ResolveError};

/// Which driver a machine gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// The driver that has the machine's VM, also where the namespace may not use it any more: an existing VM
    /// has to be looked after, and deleted.
    Holder(String),
    /// The driver that the machine asks for, if its namespace may use it.
    Asked(Option<String>),
}

/// Resolves the driver of a machine, whatever the machine needs of it.
///
/// # Errors
/// [`ResolveError`]: what of the configuration keeps it from having one.
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

/// Decides which driver a machine gets, by the machine alone.
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
