//! Where a machine stands in its life, for the metrics that count machines and measure how long they take.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::conditions;
use crate::api::v1alpha1::InfraMachine;
use crate::machine::Context;
use crate::machine::gather::Gathered;

/// The phases that machines are counted by.
pub const PHASES: [&str; 5] = ["Pending", "Provisioned", "NotReady", "Failed", "Deleting"];

/// The phase of a machine: where it stands in its life, one of [`PHASES`].
pub fn phase(machine: &InfraMachine) -> &'static str {
    let status = machine.status.as_ref();
    let ready = status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY));
    let failed = status.is_some_and(|status| status.failure_reason.is_some());
    match (
        machine.metadata.deletion_timestamp.is_some(),
        failed,
        machine.is_provisioned(),
        ready,
    ) {
        (true, ..) => "Deleting",
        (false, true, ..) => "Failed",
        (false, false, true, true) => "Provisioned",
        (false, false, true, false) => "NotReady",
        (false, false, false, _) => "Pending",
    }
}

/// Measures how long it took, when a machine has just come up.
pub fn measure(ctx: &Context, before: &InfraMachine, after: &InfraMachine, gathered: &Gathered) {
    if !before.is_provisioned()
        && after.is_provisioned()
        && let (Some(driver), Some(created)) =
            (gathered.configured_driver(), &after.metadata.creation_timestamp)
        && let Ok(took) = Duration::try_from(Timestamp::now().duration_since(created.0))
    {
        ctx.metrics.provisioned(driver.name(), took);
    }
}
