//! Events about a machine: one when it is up, one when something new goes wrong, one when it is gone. Pure.

use super::outcome::{Failure, Outcome};
use super::plan::{Release, is_provisioned};
use crate::api::conditions::{self, State, reason};
use crate::api::labels;
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::apiserver::Note;
use crate::driver::Code;

#[cfg(test)]
mod tests;

/// What an outcome is worth saying, given the machine as it was before.
///
/// `attempts` is how often the same has failed in a row, this time included.
pub fn of(before: &InfraMachine, outcome: &Outcome, attempts: u32) -> Option<Note> {
    let warn = |reason: &str, action: &'static str, note: String| {
        Some(Note {
            warning: true,
            reason: reason.to_owned(),
            action,
            text: note,
        })
    };
    let tell = |reason: &str, action: &'static str, note: String| {
        Some(Note {
            warning: false,
            reason: reason.to_owned(),
            action,
            text: note,
        })
    };
    match outcome {
        Outcome::Left
        | Outcome::Kept { .. }
        | Outcome::Absent { .. }
        | Outcome::Deleting { .. }
        | Outcome::Released(Release::NeverCreated) => None,
        Outcome::Held(hold) => (hold.reason == reason::DRIVER_NOT_CONFIGURED
            || hold.reason == reason::FOREIGN_IDENTITY
            || hold.reason == reason::FOREIGN_PROVIDER_ID)
            .then(|| warn(hold.reason, "Reconcile", hold.message.clone()))
            .flatten()
            .filter(|note| is_new(before, hold.condition, &note.reason)),
        Outcome::Refused { invalid, .. } => {
            warn(Code::InvalidArgument.name(), "Validate", invalid.to_string())
                .filter(|_| has_no_failure(before))
        }
        Outcome::Provisioned(vm) if is_provisioned(before) => {
            let was = ready_reason(before);
            (was == Some(reason::VIRTUAL_MACHINE_VANISHED) || was == Some(reason::VIRTUAL_MACHINE_FAILED))
                .then(|| {
                    tell(
                        reason::READY,
                        "GetMachineStatus",
                        format!("the VM {} is back", vm.provider_id),
                    )
                })
                .flatten()
        }
        Outcome::Provisioned(vm) => tell(
            reason::PROVISIONED,
            "CreateMachine",
            format!("the VM {} is provisioned", vm.provider_id),
        ),
        Outcome::Updated => tell(
            reason::UP_TO_DATE,
            "UpdateMachine",
            "the VM has the wanted provider spec".to_owned(),
        ),
        Outcome::Failed(failure) => warn(
            failure.status.code().name(),
            failure.operation.name(),
            failure.message(),
        )
        .filter(|_| is_new_failure(before, failure, attempts)),
        Outcome::NoSecrets { during, cause } => {
            warn(reason::INVALID_SECRET, "ReadSecrets", cause.to_string())
                .filter(|_| are_newly_without_secrets(before, *during))
        }
        Outcome::Vanished(id) => warn(
            reason::VIRTUAL_MACHINE_VANISHED,
            "GetMachineStatus",
            format!("the VM {id} is gone, though nobody deleted its machine"),
        )
        .filter(|_| is_new(before, conditions::READY, reason::VIRTUAL_MACHINE_VANISHED)),
        Outcome::Gone => tell("Deleted", "DeleteMachine", "the VM is gone".to_owned()),
        Outcome::Released(Release::Forced) => {
            let left = before
                .spec
                .provider_id
                .as_deref()
                .unwrap_or("with this machine's name, if there is one,");
            let note = format!(
                "let go by the annotation {}; the VM {left} may be left at the driver",
                labels::FORCE_DELETE
            );
            warn(reason::FORCE_DELETED, "ForceDelete", note)
        }
    }
}

fn ready_reason(machine: &InfraMachine) -> Option<&str> {
    let conditions = &machine.status.as_ref()?.conditions;
    Some(conditions::get(conditions, conditions::READY)?.reason.as_str())
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

/// Whether the status does not say yet that the secrets can't be had: in the last operation, and where a recheck of a VM
/// that is up leaves none, in `DriverReachable`.
fn are_newly_without_secrets(before: &InfraMachine, during: OperationType) -> bool {
    if during == OperationType::Create && is_provisioned(before) {
        return is_new(before, conditions::DRIVER_REACHABLE, reason::INVALID_SECRET);
    }
    let last = before
        .status
        .as_ref()
        .and_then(|status| status.last_operation.as_ref());
    last.is_none_or(|last| last.type_ != during || last.code.as_deref() != Some(reason::INVALID_SECRET))
}

fn is_new_failure(before: &InfraMachine, failure: &Failure, attempts: u32) -> bool {
    let Some(status) = before.status.as_ref() else {
        return true;
    };
    // A failed recheck of a provisioned VM leaves no last operation: what is remembered, and DriverReachable, say whether
    // this is news.
    if failure.during == OperationType::Create && is_provisioned(before) {
        let shown = conditions::get(&status.conditions, conditions::DRIVER_REACHABLE)
            .filter(|condition| condition.status == State::False.as_str());
        return match shown.map(|condition| condition.reason.as_str()) {
            Some(reason::INVALID_SECRET) => true,
            Some(_) => false,
            None => attempts <= 1,
        };
    }
    status.last_operation.as_ref().is_none_or(|last| {
        last.operation.as_deref() != Some(failure.operation.name())
            || last.code.as_deref() != Some(failure.status.code().name())
    })
}
