//! Decides when a VM that is switched off may be started. Pure.

use std::time::Duration;

use super::{Observed, Owner};
use crate::api::identity::{VmRecord, VmState};
use crate::api::v1alpha1::{InfraMachine, PowerPolicy};
use crate::api::wall_clock::remaining;
use crate::driver::KnownDriver;
use cmi_driver::{Operation, PowerState};

/// The shortest time between two attempts to start a VM.
const BETWEEN_STARTS: Duration = Duration::from_mins(5);

/// Returns the wait until the VM may be started if a look-up finds it switched off. Returns `None` if it must
/// not be started: nobody asked for it, or another operation on the VM is unfinished.
pub fn wait_before_start(
    machine: &InfraMachine,
    observed: &Observed,
    driver: &KnownDriver,
    record: &VmRecord,
) -> Option<Duration> {
    // Cluster API deletes the Machine first, and drains its Node meanwhile.
    let is_kept =
        matches!(&observed.owner, Owner::Found(owner) if owner.metadata.deletion_timestamp.is_none());
    let is_wanted = machine.spec.power_policy == Some(PowerPolicy::AlwaysOn)
        && is_kept
        && matches!(record.state, VmState::Exists { .. })
        && driver.capabilities.supports(Operation::RestartMachine);
    let status = machine.status.as_ref();
    let last = status.and_then(|status| status.last_operation.as_ref());
    let started = last.filter(|last| last.operation.as_deref() == Some(Operation::RestartMachine.name()));
    let left = started.and_then(|last| remaining(last.last_update_time.0, BETWEEN_STARTS, observed.now));
    is_wanted.then(|| left.unwrap_or_default())
}

/// Returns whether the status shows a VM that is switched off.
pub fn is_off(machine: &InfraMachine) -> bool {
    let status = machine.status.as_ref();
    let power = status.and_then(|status| status.power_state.as_deref());
    power == Some(PowerState::Stopped.name())
}
