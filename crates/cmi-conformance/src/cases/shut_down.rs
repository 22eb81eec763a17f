//! ShutDownMachine: OK means that the guest has stopped, or has accepted to stop. Only its power state tells
//! the two apart.

use std::time::Duration;

use super::cases;
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, PowerState};

const SHUT_DOWN: Need = Need::Call(Operation::ShutDownMachine);
const BETWEEN_CALLS: Duration = Duration::from_millis(20);
/// The polling interval for a guest that is stopping.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(super) const CASES: &[Case] = cases! {
    "shut-down-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["PLG-SD-12", "CMI-126"], [] => offered;
    "shut-down-keeps-the-vm": "the VM still exists after the call"
        ["CMI-127", "CMI-132"], [SHUT_DOWN] => keeps_the_vm;
    "shut-down-stops": "the guest stops after the call is OK"
        ["PLG-SD-00", "CMI-127"], [SHUT_DOWN, Need::Call(Operation::GetMachineStatus)] => stops;
    "shut-down-again": "a second call is OK, or ABORTED while the guest stops"
        ["CMI-127", "CMI-129"], [SHUT_DOWN] => |t| again(t, 1);
    "shut-down-ten-times": "ten repeated calls are OK, or ABORTED while the guest stops"
        ["CMI-129"], [SHUT_DOWN] => |t| again(t, 10);
    "shut-down-other-cluster": "a VM of the same name in another cluster keeps running"
        ["CMI-128"], [SHUT_DOWN, Need::Call(Operation::GetMachineStatus)] => other_cluster;
};

/// Repeats ShutDownMachine while it answers ABORTED, since the guest is stopping.
pub(super) async fn until_accepted(t: &TestContext, request: &MachineRequest) -> CaseResult {
    let until = tokio::time::Instant::now() + t.config().shut_down_limit();
    while t.shut_down(request).await?.ok_or(&[Code::Aborted])?.is_none() {
        ensure(tokio::time::Instant::now() < until, || {
            format!("ShutDownMachine of `{}` still answers ABORTED", request.name)
        })?;
        tokio::time::sleep(BETWEEN_CALLS).await;
    }
    Ok(())
}

/// Whether the guest runs, as far as the driver knows. Other cases test that GetMachineStatus answers.
pub(super) async fn is_up(t: &TestContext, request: &MachineRequest) -> CaseResult<bool> {
    let read = t.status(request, None).await?.ok();
    match read.map_err(CaseError::in_preparation)?.power_state {
        Some(PowerState::Starting | PowerState::Running) => Ok(true),
        Some(PowerState::Stopping | PowerState::Stopped | PowerState::Failed) => Ok(false),
        None => Err(CaseError::Skipped(
            "GetMachineStatus says nothing of the power state, so the stop of a guest can't be seen"
                .to_owned(),
        )),
    }
}

/// Waits until the guest runs, or no longer runs: it takes its own time for either.
pub(super) async fn until(
    t: &TestContext,
    request: &MachineRequest,
    up: bool,
    limit: Duration,
    otherwise: &str,
) -> CaseResult {
    let until = tokio::time::Instant::now() + limit;
    while is_up(t, request).await? != up {
        ensure(tokio::time::Instant::now() < until, || {
            format!("{otherwise} after {} s", limit.as_secs_f64())
        })?;
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(())
}

pub(super) async fn until_down(t: &TestContext, request: &MachineRequest) -> CaseResult {
    let otherwise = "ShutDownMachine answered OK, and the guest still runs";
    until(t, request, false, t.config().shut_down_limit(), otherwise).await
}

/// Prepares a VM whose guest runs.
pub(super) async fn running(t: &TestContext, request: &MachineRequest) -> CaseResult {
    t.prepare(request).await?;
    let up = until(
        t,
        request,
        true,
        t.config().call_limit(),
        "the guest does not run",
    )
    .await;
    up.map_err(CaseError::in_preparation)
}

async fn offered(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.prepare(&request).await?;
    if t.supports(Operation::ShutDownMachine) {
        return until_accepted(&t, &request).await;
    }
    for _ in 0..3 {
        t.shut_down(&request).await?.refused(Code::Unimplemented)?;
    }
    Ok(())
}

async fn keeps_the_vm(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    until_accepted(&t, &request).await?;
    t.settle().await;
    t.has_only(&request, &id).await
}

async fn stops(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    running(&t, &request).await?;
    until_accepted(&t, &request).await?;
    until_down(&t, &request).await
}

async fn again(t: TestContext, times: usize) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    until_accepted(&t, &request).await?;
    for _ in 0..times {
        until_accepted(&t, &request).await?;
    }
    t.has_only(&request, &id).await
}

async fn other_cluster(t: TestContext) -> CaseResult {
    let here = t.machine_request("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    running(&t, &there).await?;
    // The machine has no VM to stop: the driver may answer OK or NOT_FOUND.
    t.shut_down(&here).await?.ok_or(&[Code::NotFound])?;
    // The stop of another guest shows how long a guest takes to stop.
    running(&t, &here).await?;
    until_accepted(&t, &here)
        .await
        .map_err(CaseError::in_preparation)?;
    until_down(&t, &here).await.map_err(CaseError::in_preparation)?;
    ensure(is_up(&t, &there).await?, || {
        "the guest of the other cluster's VM was stopped".to_owned()
    })
}
