//! Events about a machine: when it is up, when something new goes wrong, and when it is gone. Pure.

use crate::api::annotations;
use crate::api::conditions::{self, ConditionStatus, reason};
use crate::api::identity::{self, Adoption};
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::apiserver::NewEvent;
use crate::machine::outcome::{Failure, Outcome, RemovalReason};
use cmi_driver::{Code, Machine, Operation, PowerState};

#[cfg(test)]
mod tests;

/// Returns the event for an outcome, given the previous version of the machine. Only outcomes that the status
/// does not show yet have an event, and repeats have none.
///
/// `attempts` is the number of consecutive failures, including this failure.
pub fn of(before: &InfraMachine, outcome: &Outcome, attempts: u32) -> Option<NewEvent> {
    let (is_new, event) = match outcome {
        Outcome::Unchanged(_)
        | Outcome::NotSupported(_)
        | Outcome::Waiting(_)
        | Outcome::Queued { .. }
        | Outcome::AwaitingCapacity { .. }
        | Outcome::UpToDate { .. }
        | Outcome::Deleting { .. }
        | Outcome::RemoveFinalizer(RemovalReason::NeverCreated) => return None,
        Outcome::Blocked(block) => (
            needs_intervention(block.reason) && is_new(before, block.condition, block.reason),
            NewEvent::warning(block.reason, "Reconcile", block.message.clone()),
        ),
        Outcome::Refused { invalid, .. } => {
            let code = Code::InvalidArgument.name();
            let shown = [conditions::READY, conditions::VIRTUAL_MACHINE_UP_TO_DATE];
            (
                shown.iter().all(|shown| is_new(before, shown, code)),
                NewEvent::warning(code, "Validate", invalid.to_string()),
            )
        }
        Outcome::Provisioned(vm) => of_existing(before, vm),
        Outcome::Updated => {
            let text = "updated the VM to the provider spec";
            (true, NewEvent::normal(reason::UP_TO_DATE, "UpdateMachine", text))
        }
        Outcome::Failed(failure) => {
            let action = failure.operation.map_or("ReadSecrets", Operation::name);
            (
                is_new_failure(before, failure, attempts),
                NewEvent::warning(failure.reason(), action, failure.message()),
            )
        }
        Outcome::Vanished(id) => {
            let text = format!("VM {id} no longer exists, although its machine was not deleted");
            (
                is_new(before, conditions::READY, reason::VIRTUAL_MACHINE_VANISHED),
                NewEvent::warning(reason::VIRTUAL_MACHINE_VANISHED, "GetMachineStatus", text),
            )
        }
        Outcome::Gone => (
            true,
            NewEvent::normal(reason::DELETED, "DeleteMachine", "deleted the VM"),
        ),
        Outcome::RemoveFinalizer(RemovalReason::Forced) => {
            let id = before.spec.provider_id.as_deref();
            let vm = id.unwrap_or("with the name of this machine");
            let text = format!(
                "released by annotation {} without a confirmation: VM {vm} may still exist at the back end",
                annotations::FORCE_DELETE
            );
            (
                true,
                NewEvent::warning(reason::FORCE_DELETED, "ForceDelete", text),
            )
        }
    };
    is_new.then_some(event)
}

/// Returns the event for a VM that exists, and whether it is new.
fn of_existing(before: &InfraMachine, vm: &Machine) -> (bool, NewEvent) {
    let (id, look_up) = (&vm.provider_id, Operation::GetMachineStatus.name());
    match vm.power_state {
        Some(PowerState::Failed) => {
            let text = format!("the driver reports that VM {id} failed and will not run again");
            let event = NewEvent::warning(reason::VIRTUAL_MACHINE_FAILED, look_up, text);
            (is_new(before, conditions::READY, &event.reason), event)
        }
        Some(PowerState::Stopped) if before.is_provisioned() => {
            let event = NewEvent::warning(reason::POWERED_OFF, look_up, format!("VM {id} is switched off"));
            (!is_powered_off(before), event)
        }
        power if before.is_provisioned() => {
            let lost = [reason::VIRTUAL_MACHINE_VANISHED, reason::VIRTUAL_MACHINE_FAILED];
            let was_lost = lost.iter().any(|lost| !is_new(before, conditions::READY, lost));
            let was_off = is_powered_off(before) && power == Some(PowerState::Running);
            let event = NewEvent::normal(reason::READY, look_up, format!("VM {id} is running again"));
            (was_lost || was_off, event)
        }
        _ => {
            let (action, verb) = if is_adoption(before) {
                (look_up, "adopted")
            } else {
                (Operation::CreateMachine.name(), "provisioned")
            };
            let event = NewEvent::normal(reason::PROVISIONED, action, format!("{verb} VM {id}"));
            (true, event)
        }
    }
}

/// Returns whether another controller created the VM of a machine that comes up.
fn is_adoption(before: &InfraMachine) -> bool {
    Adoption::of(before) == Adoption::Asked || identity::record(before).is_some_and(|record| record.adopted)
}

/// Returns whether an operator has to end a wait with this reason. All other waits are part of normal
/// progress. Other controllers usually provide owner and Cluster within the grace period.
fn needs_intervention(why: &str) -> bool {
    matches!(
        why,
        reason::WAITING_FOR_OWNER
            | reason::CLUSTER_NOT_FOUND
            | reason::DRIVER_NOT_CONFIGURED
            | reason::FOREIGN_IDENTITY
            | reason::FOREIGN_PROVIDER_ID
            | reason::NOT_REFERENCED
            | reason::ADOPTION_INVALID
            | reason::ADOPTION_CONTESTED
            | reason::ADOPTION_UNCONFIRMED
            | reason::DELETE_FOR_MOVE
    )
}

fn is_powered_off(machine: &InfraMachine) -> bool {
    !is_new(machine, conditions::VIRTUAL_MACHINE_RUNNING, reason::POWERED_OFF)
}

fn is_new(before: &InfraMachine, type_: &str, reason: &str) -> bool {
    let conditions = before
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    conditions::get(conditions, type_).is_none_or(|condition| condition.reason != reason)
}

fn is_new_failure(before: &InfraMachine, failure: &Failure, attempts: u32) -> bool {
    let Some(status) = before.status.as_ref() else {
        return true;
    };
    // A failed recheck of a provisioned VM writes no last operation. The recorded attempts and
    // DriverReachable show whether the failure is new. A driver outage is reported once, on the InfraCluster.
    if failure.during == OperationType::Create && before.is_provisioned() {
        if failure.status.code().is_outage() {
            return false;
        }
        let shown = conditions::get(&status.conditions, conditions::DRIVER_REACHABLE)
            .filter(|condition| condition.status == ConditionStatus::False.as_str());
        return match shown.map(|condition| condition.reason.as_str()) {
            Some(shown) if [shown, failure.reason()].contains(&reason::INVALID_SECRET) => {
                shown != failure.reason()
            }
            Some(_) => false,
            None => attempts <= 1,
        };
    }
    status.last_operation.as_ref().is_none_or(|last| {
        last.type_ != failure.during
            || last.operation.as_deref() != failure.operation.map(Operation::name)
            || last.code.as_deref() != Some(failure.reason())
    })
}
