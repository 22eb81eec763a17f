//! The process of the driver ends, without warning, and is started again.

use super::cases;
use super::identity::{comes_back, says};
use super::requests::{INFO, raw};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, Hook, Need, Pull, TestContext};
use cmi_driver::Operation;
use cmi_grpc::proto::cmi::v1::GetPluginInfoResponse;

const RESTART: Need = Need::Hook(Hook::Restart);

pub(super) const CASES: &[Case] = cases! {
    "restart-finds-the-vm": "a VM that was made before a restart is found afterwards, under the same id"
        ["DRV-13", "CMI-79", "CMI-85"], [RESTART] => finds_the_vm;
    "restart-adopts-the-vm": "a VM that was made before a restart is not made a second time"
        ["DRV-12", "CMI-82", "CMI-84"], [RESTART] => adopts_the_vm;
    "restart-deletes-the-vm": "a VM that was made before a restart is deleted, and what was deleted stays gone"
        ["DRV-18", "DRV-21", "CMI-99", "CMI-102"], [RESTART] => deletes_the_vm;
    "restart-changes-nothing-said": "name, version and capabilities are the same after a restart"
        ["CMI-59"], [RESTART] => says_the_same;
    "wire-restart":
        "a plugin that was killed and started again serves at its endpoint, also where its socket was left"
        ["CMI-157", "CMI-159", "CMI-182"], [Need::Endpoint, RESTART] => serves_again;
};

/// The driver as it is after a restart.
async fn restarted(t: &TestContext) -> CaseResult {
    t.pull(Pull::new(Hook::Restart)).await?;
    comes_back(t)
        .await
        .map_err(|error| error.after("after the hook `restart`"))
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
    if t.offers(Operation::GetMachineStatus) {
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
    ensure(
        (&after.provider_id, &after.node_name) == (&before.provider_id, &before.node_name),
        || {
            format!(
                "the VM was `{}` of node `{}`, and a create after the restart gave `{}` of node `{}`",
                before.provider_id, before.node_name, after.provider_id, after.node_name
            )
        },
    )?;
    t.has_exactly(&request, &[(&request, &before.provider_id)]).await
}

async fn deletes_the_vm(t: TestContext) -> CaseResult {
    let (request, gone) = (t.machine_request("a"), t.machine_request("b"));
    let id = t.prepare(&request).await?.provider_id;
    let gone_id = t.prepare(&gone).await?.provider_id;
    let removed = t.remove(&gone, Some(&gone_id)).await;
    removed.map_err(CaseError::in_preparation)?;
    t.settle().await;
    restarted(&t).await?;
    t.has_exactly(&request, &[(&request, &id)]).await?;
    t.remove(&request, Some(&id)).await?;
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
