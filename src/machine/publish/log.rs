//! The log line for a new failure of a machine. There is one for each warning event.

use crate::api::conditions;
use crate::api::identity::driver_name;
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::apiserver::NewEvent;
use crate::machine::gather::Gathered;
use crate::machine::outcome::{Outcome, RemovalReason};
use crate::machine::status::RetryTiming;
use cmi_driver::Operation;

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
        condition = condition(before, outcome),
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

/// Returns the condition that shows the failure.
fn condition(before: &InfraMachine, outcome: &Outcome) -> &'static str {
    let is_up = before.is_provisioned();
    match outcome {
        Outcome::Blocked(block) => block.condition,
        Outcome::Refused { .. } if is_up => conditions::VIRTUAL_MACHINE_UP_TO_DATE,
        Outcome::Refused { .. } => conditions::VIRTUAL_MACHINE_CREATED,
        Outcome::Failed(failure) => of_call(failure.during, failure.operation, is_up),
        Outcome::RemoveFinalizer(RemovalReason::Forced) => conditions::DELETING,
        _ => conditions::READY,
    }
}

fn of_call(during: OperationType, operation: Option<Operation>, is_up: bool) -> &'static str {
    match (during, operation) {
        (OperationType::Delete, _) => conditions::DELETING,
        (OperationType::Update, _) => conditions::VIRTUAL_MACHINE_UP_TO_DATE,
        // A recheck of a running VM.
        (OperationType::Create, _) if is_up => conditions::DRIVER_REACHABLE,
        (OperationType::Create, Some(Operation::InitializeMachine)) => {
            conditions::VIRTUAL_MACHINE_INITIALIZED
        }
        (OperationType::Create, _) => conditions::VIRTUAL_MACHINE_CREATED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::retry::Call;
    use crate::machine::fixtures::{machine, world};
    use crate::machine::outcome::Failure;
    use crate::machine::plan::Plan;
    use cmi_driver::{Code, Status};

    #[test]
    fn a_failure_is_logged_with_the_condition_that_shows_it() {
        let failed = |call| Outcome::Failed(Box::new(Failure::new(call, Status::new(Code::Internal, "no"))));
        let (new, up) = (machine().build(), machine().provisioned().build());
        for (before, outcome, expected) in [
            (&new, failed(Call::Create), conditions::VIRTUAL_MACHINE_CREATED),
            (
                &new,
                failed(Call::Initialize),
                conditions::VIRTUAL_MACHINE_INITIALIZED,
            ),
            (&up, failed(Call::Refresh), conditions::DRIVER_REACHABLE),
            (&up, failed(Call::Update), conditions::VIRTUAL_MACHINE_UP_TO_DATE),
            (&up, failed(Call::Delete), conditions::DELETING),
            (
                &up,
                Outcome::RemoveFinalizer(RemovalReason::Forced),
                conditions::DELETING,
            ),
        ] {
            assert_eq!(condition(before, &outcome), expected, "{outcome:?}");
        }
        let Plan::Outcome(blocked) = world().driver_not_configured().plan(machine()) else {
            panic!("the machine has no driver");
        };
        assert_eq!(condition(&new, &blocked), conditions::READY);
    }
}
