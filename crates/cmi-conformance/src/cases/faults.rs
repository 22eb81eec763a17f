//! The answers of the calls to faults outside of them: of the back end, or in the state of a VM.

use std::time::Duration;

use super::{cases, family};
use crate::answer::{Answer, CaseResult, ensure};
use crate::{Case, CaseError, Hook, HookCall, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

/// Codes that a controller retries.
const TRANSIENT: &[Code] = &[
    Code::Canceled,
    Code::Unknown,
    Code::DeadlineExceeded,
    Code::Aborted,
    Code::Unavailable,
];
/// The addition to the error of a driver that takes a failure of its back end for an empty list.
const ABSENCE: &str = "; NOT_FOUND is a promise that the back end has no such VM, and another would be made";

pub(super) const UNAVAILABLE: &[Case] = family! {
    "-unavailable": "an unreachable back end is UNAVAILABLE; the call works afterwards"
        [Need::Hook(Hook::Unavailable)] => |t, call| broken(t, call, Hook::Unavailable, &[Code::Unavailable]);
    "create" CreateMachine ["DRV-CR-14", "PLG-CR-14", "CMI-26", "DRV-16", "CMI-96", "DRV-15", "CMI-95"];
    "delete" DeleteMachine ["DRV-DE-14", "PLG-DE-14", "DRV-24", "CMI-112", "DRV-23", "CMI-111"];
    "status" GetMachineStatus ["DRV-GS-14", "PLG-GS-14", "DRV-31", "CMI-124", "DRV-30", "CMI-123"];
    "list" ListMachines ["DRV-LM-14", "PLG-LM-14", "DRV-38", "CMI-143", "DRV-37", "CMI-142"];
    "shut-down" ShutDownMachine ["PLG-SD-14", "CMI-134", "CMI-133"];
    "volumes" GetVolumeIds ["DRV-GV-14", "PLG-GV-14"];
};

pub(super) const UNKNOWN: &[Case] = family! {
    "-unknown": "an unmapped error is UNKNOWN or INTERNAL; the call works afterwards"
        [Need::Hook(Hook::Unknown)]
        => |t, call| broken(t, call, Hook::Unknown, &[Code::Unknown, Code::Internal]);
    "create" CreateMachine ["DRV-CR-02", "PLG-CR-02", "DRV-15", "CMI-95"];
    "delete" DeleteMachine ["DRV-DE-02", "PLG-DE-02", "DRV-23", "CMI-111"];
    "status" GetMachineStatus ["DRV-GS-02", "PLG-GS-02", "DRV-30", "CMI-123"];
    "list" ListMachines ["DRV-LM-02", "PLG-LM-02", "DRV-37", "CMI-142"];
    "shut-down" ShutDownMachine ["PLG-SD-02", "CMI-133"];
    "volumes" GetVolumeIds ["DRV-GV-02", "PLG-GV-02"];
};

pub(super) const INTERNAL: &[Case] = family! {
    "-internal": "a broken invariant of the back end is INTERNAL; the call works afterwards"
        [Need::Hook(Hook::Internal)] => |t, call| broken(t, call, Hook::Internal, &[Code::Internal]);
    "create" CreateMachine ["DRV-CR-13", "PLG-CR-13"];
    "delete" DeleteMachine ["DRV-DE-13", "PLG-DE-13"];
    "status" GetMachineStatus ["DRV-GS-13", "PLG-GS-13"];
    "list" ListMachines ["DRV-LM-13", "PLG-LM-13"];
    "shut-down" ShutDownMachine ["PLG-SD-13"];
    "volumes" GetVolumeIds ["DRV-GV-13", "PLG-GV-13"];
};

pub(super) const LOCKED: &[Case] = cases! {
    "create-locked": "a locked VM is FAILED_PRECONDITION, or OK if it can be adopted"
        ["DRV-CR-09", "PLG-CR-09"],
        [Need::Hook(Hook::Lock), Need::Hook(Hook::Unlock)] => locked_and_adopted;
    "delete-locked": "a locked VM is FAILED_PRECONDITION; the call works afterwards"
        ["DRV-DE-09", "PLG-DE-09"],
        [Need::Hook(Hook::Lock), Need::Hook(Hook::Unlock)] => |t| locked(t, Operation::DeleteMachine);
    "status-locked": "a locked VM is FAILED_PRECONDITION, or OK if it can be read"
        ["DRV-GS-09", "PLG-GS-09"],
        [Need::Call(Operation::GetMachineStatus), Need::Hook(Hook::Lock), Need::Hook(Hook::Unlock)]
            => locked_and_read;
    "shut-down-locked": "a locked VM is FAILED_PRECONDITION; the call works afterwards"
        ["PLG-SD-09"],
        [Need::Call(Operation::ShutDownMachine), Need::Hook(Hook::Lock), Need::Hook(Hook::Unlock)]
            => |t| locked(t, Operation::ShutDownMachine);
};

pub(super) const DEADLINE: &[Case] = family! {
    "-deadline": "a slow call ends at its deadline and can be repeated"
        [Need::Hook(Hook::Slow)] => deadline;
    "create" CreateMachine ["DRV-CR-04", "PLG-CR-04"];
    "delete" DeleteMachine ["DRV-DE-04", "PLG-DE-04"];
    "status" GetMachineStatus ["DRV-GS-04", "PLG-GS-04"];
    "list" ListMachines ["DRV-LM-04", "PLG-LM-04"];
    "shut-down" ShutDownMachine ["PLG-SD-04"];
    "volumes" GetVolumeIds ["DRV-GV-04", "PLG-GV-04"];
};

pub(super) const CASES: &[Case] = cases! {
    "create-lost-response": "a repeat after a lost response returns the same VM"
        ["DRV-12", "CMI-22", "CMI-84", "CAP-11"], [Need::Hook(Hook::LoseResponse)] => create_lost;
    "delete-lost-response": "a repeat after a lost response is OK"
        ["DRV-21", "CMI-22", "CMI-102", "CAP-11"], [Need::Hook(Hook::LoseResponse)] => delete_lost;
    "create-exhausted": "a full back end is RESOURCE_EXHAUSTED, and makes one VM once it has room"
        ["DRV-CR-08", "PLG-CR-08"], [Need::Hook(Hook::Exhaust)] => exhausted;
};

/// Returns a machine to try the call on. It has a VM unless the call is CreateMachine or GetVolumeIDs.
pub(super) async fn prepared(
    t: &TestContext,
    operation: Operation,
) -> CaseResult<(MachineRequest, Option<ProviderId>)> {
    let request = t.machine_request("a");
    let id = match operation {
        Operation::CreateMachine | Operation::GetVolumeIds => None,
        _ => Some(t.prepare(&request).await?.provider_id),
    };
    Ok((request, id))
}

/// Fails unless the machine still has its VM from before the call. If it had none, a create must give it its
/// only VM.
pub(super) async fn sound(
    t: &TestContext,
    operation: Operation,
    request: &MachineRequest,
    id: Option<&ProviderId>,
) -> CaseResult {
    if operation == Operation::GetVolumeIds {
        return t.invoke(operation, request, None).await?.ok();
    }
    if let Some(id) = id {
        t.survives(request, id).await?;
    }
    let now = t.make(request).await?.provider_id;
    ensure(id.is_none_or(|id| *id == now), || {
        format!("the VM of `{}` is another one now: `{now}`", request.name)
    })?;
    t.has_only(request, &now).await
}

async fn broken(t: TestContext, operation: Operation, hook: Hook, codes: &[Code]) -> CaseResult {
    let (request, id) = prepared(&t, operation).await?;
    // A driver that returns its last known state during an outage needs one.
    if matches!(operation, Operation::GetMachineStatus | Operation::ListMachines) {
        let seen = t.invoke(operation, &request, None).await?;
        seen.ok_or(&[Code::Uninitialized, Code::Aborted])
            .map_err(CaseError::in_preparation)?;
    }
    t.run_hook(HookCall::new(hook)).await?;
    let answer = t.invoke(operation, &request, None).await?;
    t.restore().await?;
    needs_back_end(operation, &answer)?;
    let is_taken_for_absence =
        operation == Operation::GetMachineStatus && answer.code() == Some(Code::NotFound);
    let refused = answer.refused_with(codes);
    refused.map_err(|error| {
        let error = error.after(&format!("after the hook `{hook}`"));
        if is_taken_for_absence {
            error.before(ABSENCE)
        } else {
            error
        }
    })?;
    sound(&t, operation, &request, id.as_ref()).await
}

/// Skips the case if GetVolumeIDs answers OK: most drivers read volume ids from the specs, so that a broken
/// back end does not matter and shows nothing.
fn needs_back_end(operation: Operation, answer: &Answer<()>) -> CaseResult {
    if operation == Operation::GetVolumeIds && answer.result.is_ok() {
        return Err(CaseError::Skipped(format!("{operation} needs no back end here")));
    }
    Ok(())
}

async fn locked(t: TestContext, operation: Operation) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.run_hook_on(Hook::Lock, &request).await?;
    let answer = t.invoke(operation, &request, None).await;
    let unlocked = t.run_hook_on(Hook::Unlock, &request).await;
    // A call that changed a VM which was not locked may make the unlock fail, so its answer is checked first.
    answer?.refused(Code::FailedPrecondition)?;
    unlocked?;
    sound(&t, operation, &request, Some(&id)).await
}

/// To adopt an existing VM, a driver may need no request that the state of the VM forbids.
async fn locked_and_adopted(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.run_hook_on(Hook::Lock, &request).await?;
    let answer = t.create(&request).await;
    t.run_hook_on(Hook::Unlock, &request).await?;
    let adopted = answer?.ok_or(&[Code::FailedPrecondition])?;
    ensure(adopted.as_ref().is_none_or(|vm| vm.provider_id == id), || {
        format!("CreateMachine of a machine whose VM, `{id}`, is locked answered another one")
    })?;
    sound(&t, Operation::CreateMachine, &request, Some(&id)).await
}

/// A back end may allow reads of a VM while it forbids every other operation. Then the lock forbids nothing
/// here.
async fn locked_and_read(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.run_hook_on(Hook::Lock, &request).await?;
    let answer = t.status(&request, None).await;
    t.run_hook_on(Hook::Unlock, &request).await?;
    let read = answer?.ok_or(&[Code::FailedPrecondition])?;
    ensure(read.as_ref().is_none_or(|read| read.provider_id == id), || {
        format!("GetMachineStatus of a locked VM, `{id}`, answered another one")
    })?;
    sound(&t, Operation::GetMachineStatus, &request, Some(&id)).await
}

/// Makes every call of the back end take much longer than the deadline, until `restore`. Returns the delay.
pub(super) async fn slow_down(t: &TestContext) -> CaseResult<Duration> {
    let slow = t.config().slow();
    let milliseconds = u64::try_from(slow.as_millis()).unwrap_or(u64::MAX);
    t.run_hook(HookCall::new(Hook::Slow).amount(milliseconds)).await?;
    Ok(slow)
}

/// Fails unless a call that ended at its deadline, and may still run, can be repeated and leaves nothing half
/// done.
pub(super) async fn after_deadline(
    t: &TestContext,
    operation: Operation,
    request: &MachineRequest,
    id: Option<&ProviderId>,
) -> CaseResult {
    if operation == Operation::DeleteMachine {
        t.remove(request, id).await?;
        return t.is_gone(request).await;
    }
    sound(t, operation, request, id).await
}

async fn deadline(t: TestContext, operation: Operation) -> CaseResult {
    let (request, id) = prepared(&t, operation).await?;
    let deadline = t.config().short_deadline();
    slow_down(&t).await?;
    // A caller in the same process drops the call at its deadline.
    let ended = tokio::time::timeout(deadline, t.invoke(operation, &request, None)).await;
    t.restore().await?;
    if let Ok(answer) = ended {
        let answer = answer?;
        needs_back_end(operation, &answer)?;
        answer.refused(Code::DeadlineExceeded)?;
    }
    after_deadline(&t, operation, &request, id.as_ref()).await
}

async fn create_lost(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.run_hook(HookCall::new(Hook::LoseResponse)).await?;
    let answer = t.create(&request).await?.ok_or(TRANSIENT)?;
    was_lost(&t, Operation::CreateMachine, answer.is_none());
    t.restore().await?;
    let id = t.make(&request).await?.provider_id;
    t.has_only(&request, &id).await
}

/// Warns when the call answered OK: the driver's library has repeated it, or the hook has lost nothing.
fn was_lost(t: &TestContext, operation: Operation, is_error: bool) {
    if !is_error {
        let seen = format!("{operation} answered OK, as that of a driver does which repeats what was lost");
        t.warn_of_no_effect(Hook::LoseResponse, &seen);
    }
}

async fn delete_lost(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.run_hook(HookCall::new(Hook::LoseResponse)).await?;
    let answer = t.delete(&request, Some(&id)).await?.ok_or(TRANSIENT)?;
    was_lost(&t, Operation::DeleteMachine, answer.is_none());
    t.restore().await?;
    t.remove(&request, Some(&id)).await?;
    t.is_gone(&request).await
}

async fn exhausted(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.run_hook(HookCall::new(Hook::Exhaust)).await?;
    let answer = t.create(&request).await;
    t.restore().await?;
    answer?.refused(Code::ResourceExhausted)?;
    t.has_none(&request).await?;
    sound(&t, Operation::CreateMachine, &request, None).await
}
