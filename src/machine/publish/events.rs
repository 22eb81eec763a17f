//! Events about a machine: when it is up, when something new goes wrong, and when it is gone. Pure.

use crate::api::annotations;
use crate::api::conditions::{self, ConditionStatus, reason};
use crate::api::identity::{self, Adoption};
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::apiserver::NewEvent;
use crate::machine::outcome::{Failure, Outcome, RemovalReason};
use cmi_driver::{Code, Operation, PowerState};

#[cfg(test)]
mod tests;

/// Returns the event for an outcome, given the previous version of the machine. Only outcomes that the status
/// does not show yet have an event, and repeats have none.
///
/// `attempts` is the number of consecutive failures, including this failure.
pub fn of(before: &InfraMachine, outcome: &Outcome, attempts: u32) -> Option<NewEvent> {
    let (is_new, event) = match outcome {
        Outcome::NoOp(_)
        | Outcome::Requeue(_)
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
        Outcome::Refused { invalid, .. } => (
            has_no_failure(before),
            NewEvent::warning(Code::InvalidArgument.name(), "Validate", invalid.to_string()),
        ),
        Outcome::Provisioned(vm) if vm.power_state == Some(PowerState::Failed) => {
            let text = format!(
                "the driver reports that VM {} failed and will not run again",
                vm.provider_id
            );
            (
                is_new(before, conditions::READY, reason::VIRTUAL_MACHINE_FAILED),
                NewEvent::warning(reason::VIRTUAL_MACHINE_FAILED, "GetMachineStatus", text),
            )
        }
        Outcome::Provisioned(vm)
            if before.is_provisioned() && vm.power_state == Some(PowerState::Stopped) =>
        {
            let text = format!("VM {} is switched off", vm.provider_id);
            (
                is_new(before, conditions::VIRTUAL_MACHINE_RUNNING, reason::POWERED_OFF),
                NewEvent::warning(reason::POWERED_OFF, "GetMachineStatus", text),
            )
        }
        Outcome::Provisioned(vm) if before.is_provisioned() => {
            let text = format!("VM {} is running again", vm.provider_id);
            let was_lost = matches!(
                ready_reason(before),
                Some(reason::VIRTUAL_MACHINE_VANISHED | reason::VIRTUAL_MACHINE_FAILED)
            );
            let was_off = is_powered_off(before) && vm.power_state == Some(PowerState::Running);
            (
                was_lost || was_off,
                NewEvent::normal(reason::READY, "GetMachineStatus", text),
            )
        }
        Outcome::Provisioned(vm) if is_adoption(before) => {
            let text = format!("adopted VM {}", vm.provider_id);
            (
                true,
                NewEvent::normal(reason::PROVISIONED, "GetMachineStatus", text),
            )
        }
        Outcome::Provisioned(vm) => {
            let text = format!("provisioned VM {}", vm.provider_id);
            (true, NewEvent::normal(reason::PROVISIONED, "CreateMachine", text))
        }
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

fn ready_reason(machine: &InfraMachine) -> Option<&str> {
    let conditions = &machine.status.as_ref()?.conditions;
    Some(conditions::get(conditions, conditions::READY)?.reason.as_str())
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

fn has_no_failure(before: &InfraMachine) -> bool {
    before.status.as_ref().is_none_or(|status| {
        status.failure_reason.is_none()
            && is_new(
                before,
                conditions::VIRTUAL_MACHINE_UP_TO_DATE,
                Code::InvalidArgument.name(),
            )
    })
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
