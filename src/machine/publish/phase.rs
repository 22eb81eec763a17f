//! The phase of a machine, for metrics that count machines and measure durations.

use crate::api::conditions::{self, reason};
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock::{self, elapsed};
use crate::machine::Context;
use crate::machine::gather::Gathered;
use crate::telemetry::metrics::MachinePhase;

/// Returns the phase of a machine.
pub fn phase(machine: &InfraMachine) -> MachinePhase {
    if machine.metadata.deletion_timestamp.is_some() {
        return MachinePhase::Deleting;
    }
    match &machine.status {
        Some(status) if status.failure_reason.is_some() => MachinePhase::Failed,
        Some(status) if machine.is_provisioned() => {
            if conditions::is_true(&status.conditions, conditions::READY) {
                MachinePhase::Provisioned
            } else {
                MachinePhase::NotReady
            }
        }
        Some(_) | None => MachinePhase::Pending,
    }
}

/// Returns the reason of the condition that explains the phase. Empty while no condition does.
pub fn phase_reason(machine: &InfraMachine) -> &str {
    let type_ = if machine.metadata.deletion_timestamp.is_some() {
        conditions::DELETING
    } else {
        conditions::READY
    };
    let status = machine.status.as_ref();
    let Some(status) = status else { return "" };
    let off = conditions::get(&status.conditions, conditions::VIRTUAL_MACHINE_RUNNING)
        .filter(|running| running.reason == reason::POWERED_OFF);
    if let (MachinePhase::Provisioned, Some(off)) = (phase(machine), off) {
        return &off.reason;
    }
    match conditions::get(&status.conditions, type_) {
        Some(shown) => &shown.reason,
        // Nothing was reported before the pause.
        None if conditions::is_true(&status.conditions, conditions::PAUSED) => reason::PAUSED,
        None => "",
    }
}

/// Measures the duration of the provisioning when a machine has just come up.
pub fn measure(ctx: &Context, before: &InfraMachine, after: &InfraMachine, gathered: &Gathered) {
    if !before.is_provisioned()
        && after.is_provisioned()
        && let (Some(driver), Some(created)) =
            (gathered.configured_driver(), &after.metadata.creation_timestamp)
        && let Some(took) = elapsed(created.0, wall_clock::now())
    {
        ctx.metrics.provisioned(driver.name(), took);
    }
}
