//! The driver's process ends without warning, and is started again.

use std::time::Duration;

use tokio::time::Instant;

use super::cases;
use super::faults::slow_down;
use super::identity::{BETWEEN_PROBES, probe, says};
use super::requests::{INFO, raw};
use crate::answer::{CaseError, CaseResult, ensure, names};
use crate::{Case, Hook, HookCall, Need, TestContext};
use cmi_driver::{Code, CreateMachineRequest, Operation, Readiness};
use cmi_grpc::proto::cmi::v1::GetPluginInfoResponse;

const AFTER: &str = "after the hook `restart`";
const AMID: &str = "after the hook `restart`, which ended the driver in the middle of CreateMachine";
/// The longest time until the end of a process shows in its connections.
const NOTICE: Duration = Duration::from_secs(5);
/// The longest time until a process serves: a process starts slowly on a busy computer.
const MAX_START: Duration = Duration::from_mins(2);
const RESTART: Need = Need::Hook(Hook::Restart);

/// The first case compares the answers before and after a restart. Some drivers change their answers only
/// once, at their first restart, so no other case may restart the driver before it.
pub(super) const CASES: &[Case] = cases! {
    "restart-changes-nothing-said": "name, version and capabilities are the same after a restart"
        ["CMI-59"], [RESTART] => says_the_same;
    "restart-finds-the-vm": "an existing VM is found after a restart, with the same ID"
        ["DRV-13", "CMI-79", "CMI-85"], [RESTART] => finds_the_vm;
    "restart-adopts-the-vm": "an existing VM is not created again after a restart"
        ["DRV-12", "CMI-82", "CMI-84"], [RESTART] => adopts_the_vm;
    "restart-deletes-the-vm": "an existing VM is deleted after a restart, and deleted VMs stay deleted"
        ["DRV-18", "DRV-21", "CMI-99", "CMI-102"], [RESTART] => deletes_the_vm;
    "restart-amid-a-create": "a create that the restart interrupted can be repeated, and one VM exists"
        ["DRV-12", "CMI-22", "CMI-79", "CMI-84"], [Need::Hook(Hook::Slow), RESTART] => amid_a_create;
    "wire-restart": "a killed and restarted plugin serves at its endpoint, even with a stale socket"
        ["CMI-157", "CMI-159", "CMI-182"], [Need::Endpoint, RESTART] => serves_again;
};

/// Restarts the driver and waits until it serves again. From outside, an earlier connection shows whether the
/// driver restarted: the end of a process closes it.
async fn restarted(t: &TestContext) -> CaseResult {
    let connection = match t.target().wire() {
        Some(wire) => Some(wire.hold().await.map_err(|error| {
            CaseError::Inconclusive(format!(
                "preparation failed: the plugin takes no connection: {error:#}"
            ))
        })?),
        None => None,
    };
    t.run_hook(HookCall::new(Hook::Restart)).await?;
    ready_again(t).await.map_err(|error| error.after(AFTER))?;
    t.is_over(Hook::Restart);
    let Some(closed) = connection else {
        return Ok(());
    };
    tokio::time::timeout(NOTICE, closed).await.map_err(|_elapsed| {
        t.changed_nothing(
            Hook::Restart,
            "a connection that was open before it still is: either the process was not killed, or the \
             endpoint is that of a proxy in front of it",
        )
    })
}

/// Waits until a driver that is being started serves; before that, anything may answer in its place.
async fn ready_again(t: &TestContext) -> CaseResult {
    let limit = t.config().call_limit();
    let outage = limit.min(MAX_START);
    let _named = t.waits_for("the driver to serve again after the hook `restart`", outage);
    let started = Instant::now();
    let until = started + limit;
    loop {
        let answer = probe(t).await?;
        match &answer.result {
            Ok(Readiness::Ready) => return Ok(()),
            Err(status) if status.code() == Code::Unavailable && started.elapsed() < outage => {}
            Err(status) if status.code() == Code::Unavailable => {
                let reason = format!(
                    "it did not serve again within {} s: {status}",
                    outage.as_secs_f64()
                );
                return Err(t.never_came_back("the hook `restart`", &reason));
            }
            Ok(Readiness::NotReady) | Err(_) if Instant::now() < until => {}
            Ok(Readiness::NotReady) => {
                return Err(CaseError::failed(
                    "the driver is healthy and does not become ready",
                ));
            }
            Err(_) => return answer.ok().map(drop),
        }
        tokio::time::sleep(BETWEEN_PROBES).await;
    }
}

async fn finds_the_vm(t: TestContext) -> CaseResult {
    let (request, other) = (t.machine_request("a"), t.machine_request("b"));
    let (first, second) = (
        t.prepare(&request).await?.provider_id,
        t.prepare(&other).await?.provider_id,
    );
    restarted(&t).await?;
    let vms = [(&request, &first), (&other, &second)];
    t.has_exactly(&request, &vms).await?;
    if t.supports(Operation::GetMachineStatus) {
        for (request, id) in vms {
            for known in [None, Some(id)] {
                let read = t.status(request, known).await?.ok()?;
                ensure(read.provider_id == *id, || {
                    format!(
                        "the VM of `{}` was `{id}`, and is `{}` since the restart",
                        request.name, read.provider_id
                    )
                })?;
            }
        }
    }
    Ok(())
}

async fn adopts_the_vm(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let before = t.prepare(&request).await?;
    restarted(&t).await?;
    let after = t.create(&request).await?.ok()?;
    ensure(names(&after) == names(&before), || {
        format!(
            "the VM was `{}` of node `{}`, and a create after the restart gave `{}` of node `{}`",
            before.provider_id, before.node_name, after.provider_id, after.node_name
        )
    })?;
    t.has_only(&request, &before.provider_id).await
}

async fn deletes_the_vm(t: TestContext) -> CaseResult {
    let (request, gone) = (t.machine_request("a"), t.machine_request("b"));
    let id = t.prepare(&request).await?.provider_id;
    t.prepare_gone(&gone).await?;
    restarted(&t).await?;
    t.has_only(&request, &id).await?;
    t.remove(&request, Some(&id)).await?;
    t.is_gone(&request).await
}

/// A driver may hold a lock or a claim of the name while it creates a VM. The machine must get its VM whether
/// or not the lock outlives the driver. The caller of the create is gone with the connection, so the case
/// ignores the answer.
async fn amid_a_create(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.track(&request);
    let slow = slow_down(&t).await?;
    let begun = Instant::now();
    let driver = &t.target().driver;
    let mut create = driver.create_machine(CreateMachineRequest {
        machine: request.reference(),
        last_known_state: None,
    });
    let early = tokio::time::timeout(t.config().short_deadline(), &mut create).await;
    if let Ok(ended) = early {
        t.restore().await?;
        return Err(match ended {
            Ok(_) => t.changed_nothing(Hook::Slow, "CreateMachine answered OK before its deadline"),
            Err(status) => CaseError::Inconclusive(format!(
                "preparation failed: CreateMachine of `{}` was not under way any more when the driver was to \
                 be killed: it answered {status}",
                request.name
            )),
        });
    }
    let restarted = restarted(&t).await;
    drop(create);
    t.restore().await?;
    restarted?;
    let made = t.make(&request).await.map_err(|error| error.after(AMID))?;
    // The request of the killed process may take effect only now.
    t.pause(slow.saturating_sub(begun.elapsed())).await;
    t.settle().await;
    let one = t.has_only(&request, &made.provider_id).await;
    one.map_err(|error| error.after(AMID))?;
    t.remove(&request, Some(&made.provider_id)).await?;
    t.is_gone(&request).await
}

async fn says_the_same(t: TestContext) -> CaseResult {
    let before = says(&t).await.map_err(CaseError::in_preparation)?;
    restarted(&t).await?;
    let after = says(&t).await?;
    ensure(
        before.name == after.name && before.version == after.version,
        || {
            format!(
                "the driver was `{}` {} before the restart, and is `{}` {} after it",
                before.name, before.version, after.name, after.version
            )
        },
    )?;
    ensure(before.declared == after.declared, || {
        "the capabilities changed with the restart".to_owned()
    })
}

async fn serves_again(t: TestContext) -> CaseResult {
    for _ in 0..2 {
        restarted(&t).await?;
        raw(&t, INFO, &[]).await?.ok::<GetPluginInfoResponse>()?;
    }
    Ok(())
}
