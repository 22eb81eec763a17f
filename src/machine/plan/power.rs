//! Decides when a VM that is switched off may be started. Pure.

use std::time::Duration;

use super::waits::look_up_wait;
use super::{Observed, Owner};
use crate::api::conditions;
use crate::api::identity::{VmRecord, VmState};
use crate::api::v1alpha1::{InfraMachine, PowerPolicy};
use crate::api::wall_clock::remaining;
use crate::driver::KnownDriver;
use cmi_driver::{Operation, PowerState};

/// The shortest time between two attempts to start a VM.
const BETWEEN_STARTS: Duration = Duration::from_mins(5);

/// Returns the wait until a VM may be started. Returns `None` if it must not be started: nobody asked for it,
/// another operation on the VM is unfinished, or the status does not show yet that it is switched off.
pub fn until_start(
    machine: &InfraMachine,
    observed: &Observed,
    driver: &KnownDriver,
    record: &VmRecord,
) -> Option<Duration> {
    // Cluster API deletes the Machine first, and then drains its Node.
    let kept = matches!(&observed.owner, Owner::Found(owner) if owner.metadata.deletion_timestamp.is_none());
    let status = machine.status.as_ref()?;
    let shown = conditions::get(&status.conditions, conditions::VIRTUAL_MACHINE_RUNNING)?;
    let is_wanted = status.power_state.as_deref() == Some(PowerState::Stopped.name())
        && machine.spec.power_policy == Some(PowerPolicy::AlwaysOn)
        && kept
        && matches!(record.state, VmState::Exists { .. })
        && driver.capabilities.supports(Operation::RestartMachine);
    let left = |since, wait| remaining(since, wait, observed.now);
    let last = record.last_start.and_then(|last| left(last, BETWEEN_STARTS));
    // The answer that showed it off may have been stale. A start resets a VM that runs.
    let window = driver.capabilities.consistency_window;
    let stale = left(shown.last_transition_time.0, window);
    is_wanted.then(|| last.max(stale).max(look_up_wait(observed)).unwrap_or_default())
}
