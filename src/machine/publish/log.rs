//! The log line for a new failure of a machine. There is one for each warning event.

use crate::api::identity::driver_name;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::NewEvent;
use crate::machine::gather::Gathered;
use crate::machine::outcome::Outcome;
use crate::machine::status::RetryTiming;

/// Logs a failure that has an event. The log is kept longer than the event and covers all machines.
pub fn failure(
    before: &InfraMachine,
    gathered: &Gathered,
    outcome: &Outcome,
    event: &NewEvent,
    timing: RetryTiming,
) {
    if !event.warning {
        return;
    }
    let meta = &before.metadata;
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    let resolved = gathered
        .configured_driver()
        .map(crate::driver::ConfiguredDriver::name);
    let next_try = timing
        .wait
        .and_then(|wait| timing.now.checked_add(wait).ok())
        .map(|time| format!("{time:.0}"));
    tracing::warn!(
        machine = format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default()),
        driver = resolved.map_or_else(|| driver_name(before), str::to_owned),
        code = event.reason,
        action = event.action,
        why = event.note,
        next_try,
        "{}",
        match outcome {
            Outcome::RemoveFinalizer(_) => "finalizer removed by force: the VM may still exist",
            _ => "machine failed",
        }
    );
}
