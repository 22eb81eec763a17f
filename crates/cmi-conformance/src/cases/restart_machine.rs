//! RestartMachine. The power state of a guest that was off shows that it restarts, and so does the back end.

use super::cases;
use super::requests::reaches_the_plugin;
use super::shut_down::{running, until, until_accepted, until_down};
use super::status::mutations;
use crate::answer::{CaseError, CaseResult, ensure, names};
use crate::{Case, Hook, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

const RESTART: Need = Need::Call(Operation::RestartMachine);

pub(super) const CASES: &[Case] = cases! {
    "restart-machine-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["CAP-05"], [] => offered;
    "restart-machine-again": "three restarts are OK, or ABORTED during a restart"
        ["CAP-14"], [RESTART] => |t| keeps(t, 3);
    "restart-machine-keeps-the-vm": "a restarted VM keeps its ID, tags and node name"
        ["CAP-15"], [RESTART] => |t| keeps(t, 1);
    "restart-machine-switches-on": "a stopped VM runs after a restart"
        ["CAP-14"],
        [RESTART, Need::Call(Operation::ShutDownMachine), Need::Call(Operation::GetMachineStatus)]
        => switches_on;
    "restart-machine-is-made": "the back end records the restart"
        ["CAP-14"], [RESTART, Need::Hook(Hook::Mutations)] => is_made;
    "restart-machine-never-made": "an unknown machine is neither restarted nor created"
        ["CAP-16"], [RESTART] => never_made;
    "restart-machine-other-cluster": "a VM of the same name in another cluster is not restarted"
        ["CAP-17"], [RESTART] => other_cluster;
    "restart-machine-other-identity": "a VM with another machine tag is not restarted"
        ["CAP-17"], [RESTART] => other_identity;
};

/// Restarts the VM: OK means that the order was accepted, ABORTED that a restart is running.
async fn restarted(t: &TestContext, request: &MachineRequest, id: &ProviderId) -> CaseResult {
    t.restart(request, id).await?.ok_or(&[Code::Aborted]).map(drop)
}

async fn offered(t: TestContext) -> CaseResult {
    reaches_the_plugin(&t, Operation::RestartMachine)?;
    let (request, id) = t.prepare_vm("a").await?;
    if t.supports(Operation::RestartMachine) {
        return restarted(&t, &request, &id).await;
    }
    let answer = t.restart(&request, &id).await?;
    answer.refused(Code::Unimplemented).map(drop)
}

async fn keeps(t: TestContext, times: usize) -> CaseResult {
    let request = t.machine_request("a");
    let made = t.prepare(&request).await?;
    for _ in 0..times {
        restarted(&t, &request, &made.provider_id).await?;
    }
    t.settle().await;
    t.has_only(&request, &made.provider_id).await?;
    let again = t.create(&request).await?.ok()?;
    ensure(names(&again) == names(&made), || {
        format!(
            "the VM `{}` of Node `{}` is `{}` of Node `{}` since it was restarted",
            made.provider_id, made.node_name, again.provider_id, again.node_name
        )
    })
}

async fn switches_on(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    running(&t, &request).await?;
    let off = async {
        until_accepted(&t, &request).await?;
        until_down(&t, &request).await
    };
    off.await.map_err(CaseError::in_preparation)?;
    let id = t
        .create(&request)
        .await?
        .ok()
        .map_err(CaseError::in_preparation)?
        .provider_id;
    restarted(&t, &request, &id).await?;
    let otherwise = "RestartMachine answered OK, and the guest does not run";
    until(&t, &request, true, t.config().call_limit(), otherwise).await
}

async fn is_made(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let before = mutations(&t).await?;
    // A VM that still boots may answer ABORTED, since it is already starting.
    if t.restart(&request, &id).await?.ok_or(&[Code::Aborted])?.is_none() {
        return Ok(());
    }
    ensure(mutations(&t).await? > before, || {
        format!("RestartMachine answered OK, and the back end has not seen that `{id}` is restarted")
    })
}

async fn never_made(t: TestContext) -> CaseResult {
    let (request, other) = (t.machine_request("a"), t.machine_request("b"));
    // The id is of the driver's own kind, and its VM is gone.
    let id = t.prepare_gone(&other).await?;
    for request in [&request, &other] {
        t.restart(request, &id).await?.refused(Code::NotFound)?;
        t.has_none(request).await?;
    }
    Ok(())
}

async fn other_cluster(t: TestContext) -> CaseResult {
    let there = t.machine_request("a");
    let here = there.clone().in_cluster(&t.other_cluster());
    let id = t.prepare(&there).await?.provider_id;
    // The driver may refuse a foreign id, or find no VM by it.
    t.restart(&here, &id).await?.refused_with(&[
        Code::NotFound,
        Code::InvalidArgument,
        Code::PermissionDenied,
    ])?;
    t.survives(&there, &id).await
}

async fn other_identity(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let other = request.clone().with_identity("another-machine");
    t.restart(&other, &id).await?.refused(Code::NotFound)?;
    t.survives(&request, &id).await
}
