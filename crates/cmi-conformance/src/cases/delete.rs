//! DeleteMachine.

use super::cases;
use crate::answer::{CaseResult, ensure};
use crate::{Case, CaseError, Hook, MachineRequest, Need, Setting, TestContext};
use cmi_driver::{Code, Operation};

const INITIALIZE: Need = Need::Call(Operation::InitializeMachine);
const STATUS: Need = Need::Call(Operation::GetMachineStatus);

pub(super) const CASES: &[Case] = cases! {
    "delete-deletes": "a VM is deleted"
        ["DRV-18", "DRV-DE-00", "DRV-DE-12", "PLG-DE-00", "PLG-DE-12", "CMI-107", "CMI-110"],
        [] => |t| deletes(t, false);
    "delete-by-id": "a VM can be deleted with and without its provider ID"
        ["CMI-108"], [] => |t| deletes(t, true);
    "delete-means-gone": "the VM is gone as soon as the call is OK"
        ["DRV-23", "CMI-111"], [] => |t| deletes(t, true);
    "delete-never-made": "deleting an unknown machine is OK"
        ["DRV-19", "CMI-100"], [] => never_made;
    "delete-again": "deleting a deleted machine is OK, with and without its provider ID"
        ["DRV-19", "DRV-21", "CMI-100", "CMI-102"], [] => |t| again(t, 1);
    "delete-ten-times": "ten repeated deletes are OK"
        ["DRV-21", "CMI-102"], [] => |t| again(t, 10);
    "delete-just-its-vm": "only the named VM of three is deleted"
        ["DRV-07", "DRV-22", "CMI-79", "CMI-103"], [] => just_its_vm;
    "delete-other-cluster":
        "a VM of the same name in another cluster is kept, even if its provider ID is given"
        ["DRV-20", "CMI-101"], [] => other_cluster;
    "delete-other-machine-id": "the provider ID of another machine does not delete its VM"
        ["DRV-07", "DRV-20", "DRV-22", "CMI-79", "CMI-101"], [] => other_machine_id;
    "delete-other-identity": "a VM of the same name with another machine tag is kept"
        ["CAP-02"], [] => other_identity;
    "delete-other-parameters": "a VM is deleted even if the spec describes another VM"
        ["CAP-30"], [Need::Setting(Setting::IncompatibleChange)] => other_parameters;
    "delete-several-vms": "all VMs of a machine are deleted"
        ["CAP-31"], [Need::SecondVm, Need::Hook(Hook::Plant)] => several;
    "delete-planted-vm": "a planted VM of another machine is kept"
        ["DRV-20", "CMI-101"], [STATUS, Need::Hook(Hook::Plant)] => planted;
    "delete-vanished-vm": "deleting a VM that vanished is OK"
        ["DRV-19", "CMI-100", "CAP-12"], [Need::Hook(Hook::Vanish)] => vanished;
    "delete-uninitialized": "an uninitialized VM can be deleted"
        ["DRV-DE-00", "PLG-DE-00"], [INITIALIZE, Need::Hook(Hook::Uninitialize)] => uninitialized;
};

async fn deletes(t: TestContext, by_id: bool) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.remove(&request, by_id.then_some(&id)).await?;
    t.is_gone(&request).await
}

async fn never_made(t: TestContext) -> CaseResult {
    t.delete(&t.machine_request("a"), None).await?.ok().map(|_| ())
}

async fn again(t: TestContext, times: usize) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.remove(&request, Some(&id)).await?;
    for _ in 0..times {
        t.delete(&request, None).await?.ok()?;
        t.delete(&request, Some(&id)).await?.ok()?;
    }
    t.is_gone(&request).await
}

async fn just_its_vm(t: TestContext) -> CaseResult {
    let [a, b, c] = ["a", "b", "c"].map(|label| t.machine_request(label));
    let (first, second, third) = (t.prepare(&a).await?, t.prepare(&b).await?, t.prepare(&c).await?);
    t.remove(&b, Some(&second.provider_id)).await?;
    t.settle().await;
    let left = [(&a, &first.provider_id), (&c, &third.provider_id)];
    t.has_exactly(&a, &left).await?;
    for (request, id) in left {
        t.survives(request, id).await?;
    }
    Ok(())
}

async fn other_cluster(t: TestContext) -> CaseResult {
    let here = t.machine_request("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    let id = t.prepare(&there).await?.provider_id;
    t.delete(&here, None).await?.ok()?;
    t.survives(&there, &id).await?;
    // The driver may refuse a foreign id or ignore it.
    t.delete(&here, Some(&id)).await?.ok_or(&[
        Code::InvalidArgument,
        Code::NotFound,
        Code::PermissionDenied,
    ])?;
    t.survives(&there, &id).await
}

async fn other_machine_id(t: TestContext) -> CaseResult {
    let (one, other) = (t.machine_request("a"), t.machine_request("b"));
    t.prepare(&one).await?;
    let id = t.prepare(&other).await?.provider_id;
    // The driver may delete the VM of the name, or refuse the contradiction.
    let refusals = [Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition];
    t.remove_unless(&one, Some(&id), &refusals).await?;
    t.survives(&other, &id).await
}

async fn other_identity(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let other = request.clone().with_identity("another-machine");
    t.delete(&other, None).await?.ok()?;
    t.survives(&request, &id).await
}

async fn planted(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let foreign = request
        .clone()
        .in_cluster(&t.other_cluster())
        .with_identity("another-machine");
    t.track(&foreign);
    t.run_hook_on(Hook::Plant, &foreign).await?;
    t.settle().await;
    t.delete(&request, None).await?.ok()?;
    ensure(t.seen(&foreign).await?.is_some(), || {
        "the VM of another cluster was deleted".to_owned()
    })
}

/// The spec of DeleteMachine differs from the VM's, as after the correction of a spec.
async fn other_parameters(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.prepare(&request).await?;
    let change = t.config().incompatible_change.clone().unwrap_or_default();
    t.remove(&request.clone().changed(&change), None).await?;
    t.settle().await;
    t.has_none(&request).await
}

/// A machine has several VMs, as a race or an administrator may leave them.
async fn several(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.prepare(&request).await?;
    super::status::second(&t, &request).await?;
    t.remove(&request, None).await?;
    t.settle().await;
    t.has_none(&request).await
}

async fn vanished(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.run_hook_on(Hook::Vanish, &request).await?;
    t.settle().await;
    // If the hook did nothing, the deletion below would delete the VM and hide that.
    t.has_none(&request).await.map_err(|error| match error {
        CaseError::Failed(seen) => t.changed_nothing(Hook::Vanish, &seen),
        other => other,
    })?;
    t.delete(&request, Some(&id)).await?.ok()?;
    t.has_none(&request).await
}

async fn uninitialized(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.run_hook_on(Hook::Uninitialize, &request).await?;
    is_uninitialized(&t, &request).await?;
    t.remove(&request, Some(&id)).await?;
    t.is_gone(&request).await
}

/// Checks that the hook took effect, as far as the driver shows it.
async fn is_uninitialized(t: &TestContext, request: &MachineRequest) -> CaseResult {
    if !t.supports(Operation::GetMachineStatus) {
        t.warn_of_no_effect(Hook::Uninitialize, "without GetMachineStatus nothing shows it");
        return Ok(());
    }
    let read = t.status(request, None).await?.ok_or(&[Code::Uninitialized]);
    match read.map_err(CaseError::in_preparation)? {
        None => Ok(()),
        Some(_) => Err(t.changed_nothing(
            Hook::Uninitialize,
            "GetMachineStatus takes the VM for initialized; `initialize-status` tells whether it looks",
        )),
    }
}
