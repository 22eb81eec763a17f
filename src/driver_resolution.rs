//! Decides which driver a machine gets.

use std::sync::Arc;

use crate::api::ObjectMetaExt as _;
use crate::api::v1alpha1::InfraMachine;
use crate::configured_driver::{ConfiguredDriver, ConfiguredDrivers, ResolveError};
use crate::identity;

/// Which driver a machine gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The driver that has the machine's VM, also where the namespace may not use it any more: an existing VM
    /// has to be looked after, and deleted.
    Holder(&'a str),
    /// The driver that the machine asks for, if its namespace may use it.
    Asked(Option<&'a str>),
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
        Choice::Holder(name) => drivers.holder(name),
        Choice::Asked(name) => drivers.resolve(name, namespace),
    }
}

/// Decides which driver a machine gets, by the machine alone.
pub fn choice(machine: &InfraMachine) -> Choice<'_> {
    let exists = machine.metadata.deletion_timestamp.is_some() || machine.spec.provider_id.is_some();
    match identity::recorded_driver(machine) {
        Some(name) if exists => Choice::Holder(name),
        identified => Choice::Asked(identified.or(machine.spec.driver.as_deref())),
    }
}
