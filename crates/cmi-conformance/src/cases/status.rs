//! GetMachineStatus.

use super::cases;
use super::requests::as_declared;
use crate::answer::{CaseResult, ensure, names, same_names};
use crate::{Case, CaseError, Hook, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

/// The advice about a hook that can't make a second VM.
const UNIQUE_NAMES: &str = "; if the back end takes no second VM of a name, say `uniqueNames: true`";
const STATUS: Need = Need::Call(Operation::GetMachineStatus);

pub(super) const CASES: &[Case] = cases! {
    "status-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["DRV-26", "DRV-GS-12", "PLG-GS-12", "CMI-114"], [] => offered;
    "status-like-create": "the answer matches CreateMachine, with and without the provider ID"
        ["DRV-27", "DRV-GS-00", "PLG-GS-00", "CMI-115", "CMI-120", "CMI-121", "CMI-122"],
        [STATUS] => like_create;
    "status-never-made": "an unknown machine is NOT_FOUND"
        ["DRV-GS-05", "PLG-GS-05"], [STATUS] => never_made;
    "status-after-create": "a machine that was NOT_FOUND is found after its create"
        ["DRV-27", "DRV-GS-00", "PLG-GS-00", "CMI-115"], [STATUS] => after_create;
    "status-after-delete": "a deleted machine is NOT_FOUND, also by its provider ID"
        ["DRV-GS-05", "PLG-GS-05"], [STATUS] => after_delete;
    "status-other-cluster": "a VM of another cluster is NOT_FOUND, also by its provider ID"
        ["DRV-28", "CMI-116"], [STATUS] => other_cluster;
    "status-other-machine-id": "the provider ID of another machine does not find its VM"
        ["DRV-27", "CMI-79", "CMI-115"], [STATUS] => other_machine_id;
    "status-other-identity": "a VM of the same name with another machine tag is NOT_FOUND"
        ["CAP-03"], [STATUS] => other_identity;
    "status-ten-times": "ten calls return the same answer"
        ["DRV-29", "CMI-117"], [STATUS] => ten_times;
    "status-changes-nothing": "the call changes nothing at the back end"
        ["DRV-29", "CMI-117", "INI-01", "CAP-13"], [STATUS, Need::Hook(Hook::Mutations)] => changes_nothing;
    "status-vanished-vm": "a VM that vanished is NOT_FOUND"
        ["DRV-GS-05", "PLG-GS-05", "CAP-12"], [STATUS, Need::Hook(Hook::Vanish)] => vanished;
    "status-several-vms": "several VMs of one machine are OUT_OF_RANGE, and the message names them"
        ["DRV-GS-11", "PLG-GS-11"], [STATUS, Need::SecondVm, Need::Hook(Hook::Plant)] => several;
};

async fn offered(t: TestContext) -> CaseResult {
    t.prepare(&t.machine_request("a")).await?;
    as_declared(t, Operation::GetMachineStatus).await
}

async fn like_create(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let made = t.prepare(&request).await?;
    for id in [None, Some(&made.provider_id)] {
        let read = t.status(&request, id).await?.ok()?;
        same_names(&made, Operation::GetMachineStatus, names(&read))?;
    }
    Ok(())
}

async fn not_found(t: &TestContext, request: &MachineRequest, id: Option<&ProviderId>) -> CaseResult {
    t.status(request, id).await?.refused(Code::NotFound).map(drop)
}

async fn never_made(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    not_found(&t, &request, None).await?;
    // The answer is the same when another VM of the cluster exists.
    t.prepare(&t.machine_request("b")).await?;
    not_found(&t, &request, None).await
}

/// Asks in the order of a controller: before each create, and after it.
async fn after_create(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    for _ in 0..2 {
        // Other cases test that the answer is NOT_FOUND.
        let before = t.status(&request, None).await?.refused(Code::NotFound);
        before.map_err(CaseError::in_preparation)?;
        let id = t.prepare(&request).await?.provider_id;
        for known in [None, Some(&id)] {
            let read = t.status(&request, known).await?.ok()?;
            ensure(read.provider_id == id, || {
                format!(
                    "CreateMachine made `{id}`, and GetMachineStatus reads `{}`",
                    read.provider_id
                )
            })?;
        }
        let removed = t.remove(&request, Some(&id)).await;
        removed.map_err(CaseError::in_preparation)?;
        t.settle().await;
    }
    Ok(())
}

async fn after_delete(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.remove(&request, Some(&id)).await?;
    t.settle().await;
    not_found(&t, &request, None).await?;
    not_found(&t, &request, Some(&id)).await
}

async fn other_cluster(t: TestContext) -> CaseResult {
    let here = t.machine_request("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    let id = t.prepare(&there).await?.provider_id;
    not_found(&t, &here, None).await?;
    not_found(&t, &here, Some(&id)).await
}

async fn other_machine_id(t: TestContext) -> CaseResult {
    let (one, other) = (t.machine_request("a"), t.machine_request("b"));
    t.prepare(&one).await?;
    let id = t.prepare(&other).await?.provider_id;
    let read = t
        .status(&one, Some(&id))
        .await?
        .ok_or(&[Code::NotFound, Code::InvalidArgument])?;
    ensure(read.is_none_or(|read| read.provider_id != id), || {
        format!(
            "the VM `{id}` of `{}` is shown as that of `{}`",
            other.name, one.name
        )
    })
}

async fn other_identity(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.prepare(&request).await?;
    not_found(&t, &request.with_identity("another-machine"), None).await
}

async fn ten_times(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let made = t.prepare(&request).await?;
    for _ in 0..10 {
        let read = t.status(&request, None).await?.ok()?;
        ensure(names(&read) == names(&made), || {
            "the answer changed from one question to the next".to_owned()
        })?;
    }
    t.has_only(&request, &made.provider_id).await
}

/// Returns the number of changes that the back end has seen.
pub(super) async fn mutations(t: &TestContext) -> CaseResult<u64> {
    let printed = t.run_hook(crate::HookCall::new(Hook::Mutations)).await?;
    let text = String::from_utf8_lossy(&printed);
    text.trim().parse().map_err(|_| {
        CaseError::Inconclusive(format!(
            "the hook `mutations` has to print a number, and printed `{text}`"
        ))
    })
}

/// Creates the VM of a case that counts changes, and checks that the hook sees this change.
pub(super) async fn counted(t: &TestContext, request: &MachineRequest) -> CaseResult<ProviderId> {
    let before = mutations(t).await?;
    let id = t.prepare(request).await?.provider_id;
    let after = mutations(t).await?;
    if after == before {
        let seen = format!("it printed {before} before a VM was made, and {after} after");
        return Err(t.changed_nothing(Hook::Mutations, &seen));
    }
    Ok(id)
}

async fn changes_nothing(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = counted(&t, &request).await?;
    let before = mutations(&t).await?;
    for _ in 0..5 {
        t.status(&request, Some(&id)).await?.ok()?;
    }
    let after = mutations(&t).await?;
    ensure(after == before, || {
        format!(
            "five GetMachineStatus made {} changes",
            after.saturating_sub(before)
        )
    })
}

async fn vanished(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    t.run_hook_on(Hook::Vanish, &request).await?;
    t.settle().await;
    not_found(&t, &request, Some(&id)).await
}

async fn several(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    second(&t, &request).await?;
    let status = t.status(&request, None).await?.refused(Code::OutOfRange)?;
    ensure(status.message().contains(id.as_str()), || {
        format!(
            "the message has to name the VMs, `{id}` among them: {}",
            status.message()
        )
    })
}

/// Makes a second VM of a machine that has one, by the hook, and checks that it exists.
pub(super) async fn second(t: &TestContext, request: &MachineRequest) -> CaseResult {
    let planted = t.run_hook_on(Hook::Plant, request).await;
    t.settle().await;
    if t.config().unique_names {
        return there_is_one_of_a_name(t, request, planted.is_ok()).await;
    }
    planted.map_err(|error| error.before(UNIQUE_NAMES))?;
    match listed(t, request).await? {
        Some(listed) if listed < 2 => {
            let seen = format!("{listed} VM of the name is listed after it");
            Err(t.changed_nothing(Hook::Plant, &seen).before(UNIQUE_NAMES))
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns the number of VMs in a cluster, if the driver can list them.
async fn listed(t: &TestContext, request: &MachineRequest) -> CaseResult<Option<usize>> {
    if !t.supports(Operation::ListMachines) {
        return Ok(None);
    }
    let listed = t.list(request).await?.ok().map_err(CaseError::in_preparation)?;
    Ok(Some(listed.len()))
}

/// Skips the case if its author declares that the back end takes no second VM with a name. If the hook made a
/// second VM anyway, the declaration is wrong.
async fn there_is_one_of_a_name(t: &TestContext, request: &MachineRequest, planted: bool) -> CaseResult {
    let there_are_two = planted && listed(t, request).await?.is_none_or(|listed| listed > 1);
    if there_are_two {
        return Err(CaseError::Inconclusive(
            "`uniqueNames: true` says that the back end takes no second VM of a name, and the hook `plant` \
             has made one: take `uniqueNames` away, so that it is seen what the driver makes of two; or, if \
             the hook has made none, let it fail"
                .to_owned(),
        ));
    }
    Err(CaseError::Skipped(
        "the back end takes no second VM of a name (`uniqueNames`)".to_owned(),
    ))
}
