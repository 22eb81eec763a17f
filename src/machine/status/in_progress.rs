//! The status during a driver call.

use jiff::Timestamp;

use super::Draft;
use crate::api::conditions::{VIRTUAL_MACHINE_CREATED, VIRTUAL_MACHINE_INITIALIZED, reason};
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus, LastOperation, OperationState, OperationType};
use cmi_driver::Operation;

/// Returns the status of a machine with a long call that started at `since`. The status is unchanged if it
/// shows an earlier failure or this call, or if the call only reads a running VM.
pub fn in_progress(machine: &InfraMachine, operation: Operation, since: Timestamp) -> InfraMachineStatus {
    let mut draft = Draft {
        machine,
        status: machine.status.clone().unwrap_or_default(),
        now: since,
    };
    let during = match operation {
        _ if machine.metadata.deletion_timestamp.is_some() => OperationType::Delete,
        Operation::UpdateMachine => OperationType::Update,
        _ => OperationType::Create,
    };
    let last = draft
        .status
        .last_operation
        .as_ref()
        .filter(|last| last.type_ == during);
    let is_shown = last.is_some_and(|last| match last.state {
        OperationState::Failed => true,
        OperationState::Processing => last.operation.as_deref() == Some(operation.name()),
        OperationState::Successful => false,
    });
    if is_shown || (during == OperationType::Create && machine.is_provisioned()) {
        return draft.status;
    }
    draft.working();
    let message = format!("{operation} was called at {since:.0} and has not answered yet");
    match (during, operation) {
        (OperationType::Delete, Operation::ShutDownMachine) => {
            draft.deleting(reason::SHUTTING_DOWN, &message);
        }
        (OperationType::Delete, _) => draft.deleting(reason::DELETING, &message),
        (OperationType::Update, _) => {}
        (_, Operation::InitializeMachine) => {
            draft.mark_true(VIRTUAL_MACHINE_CREATED, reason::CREATED);
            draft.mark_false(VIRTUAL_MACHINE_INITIALIZED, reason::INITIALIZING, &message);
            draft.not_ready_yet(reason::INITIALIZING, &message);
        }
        _ => draft.not_created_yet(reason::CREATING, &message),
    }
    let name = Some(operation.name());
    draft.status.last_operation = Some(LastOperation::new(
        during,
        OperationState::Processing,
        name,
        since,
    ));
    draft.status.observed_generation = machine.metadata.generation;
    draft.status
}
