//! UpdateMachine.

use serde_json::Value;

use super::cases;
use super::requests::reaches_the_plugin;
use super::status::mutations;
use crate::answer::{CaseResult, ensure};
use crate::{Case, Hook, MachineRequest, Need, Setting, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

const UPDATE: Need = Need::Call(Operation::UpdateMachine);
const HOT_UPDATES: Need = Need::Setting(Setting::HotUpdates);

pub(super) const CASES: &[Case] = cases! {
    "update-offered": "the call works when it is declared, and is UNIMPLEMENTED when it is not"
        ["UPD-02"], [] => offered;
    "update-there-and-back":
        "each change is answered OK and taken back, also when it was half done, on the same VM, and may be \
         repeated"
        ["UPD-02"], [UPDATE, HOT_UPDATES] => there_and_back;
    "update-changes-once":
        "the back end sees each change when it is made and when it is taken back, and none when that is \
         repeated"
        ["UPD-03"], [UPDATE, HOT_UPDATES, Need::Hook(Hook::Mutations)] => changes_once;
};

async fn offered(t: TestContext) -> CaseResult {
    reaches_the_plugin(&t, Operation::UpdateMachine)?;
    let request = t.machine_request("a");
    let id = t.prepare(&request).await?.provider_id;
    let answer = t.update(&request, &request, &id).await?;
    if t.offers(Operation::UpdateMachine) {
        answer.ok()
    } else {
        answer.refused(Code::Unimplemented).map(|_| ())
    }
}

/// The spec with each hot update.
fn updated(t: &TestContext, request: &MachineRequest) -> CaseResult<Vec<(MachineRequest, Value)>> {
    let updates = t.config().hot_updates.iter();
    updates
        .map(|change| {
            let wanted = request.clone().changed(change);
            ensure(wanted.class.provider_spec != request.class.provider_spec, || {
                format!("the change {change} changes nothing")
            })?;
            Ok((wanted, change.clone()))
        })
        .collect()
}

async fn there_and_back(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = t.prepare(&request).await?.provider_id;
    for (wanted, _) in updated(&t, &request)? {
        for _ in 0..2 {
            t.update(&request, &wanted, &id).await?.ok()?;
        }
        // What was half done is taken back although the spec of before was the last that was applied in full.
        t.update(&request, &request, &id).await?.ok()?;
        is_the_same(&t, &request, &id).await?;
    }
    t.has_exactly(&request, &[(&request, &id)]).await
}

/// What UpdateMachine does can't be seen by its answers: one that does nothing gives the same.
async fn changes_once(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = t.prepare(&request).await?.provider_id;
    for (wanted, change) in updated(&t, &request)? {
        is_made_once(&t, &request, &wanted, &id, &format!("the change {change}")).await?;
        let back = format!("what takes the change {change} back");
        is_made_once(&t, &wanted, &request, &id, &back).await?;
        is_the_same(&t, &request, &id).await?;
    }
    t.has_exactly(&request, &[(&request, &id)]).await
}

/// Updates twice: the first time there is something to do, the second time it is done.
async fn is_made_once(
    t: &TestContext,
    from: &MachineRequest,
    to: &MachineRequest,
    id: &ProviderId,
    what: &str,
) -> CaseResult {
    let before = mutations(t).await?;
    t.update(from, to, id).await?.ok()?;
    let made = mutations(t).await?;
    ensure(made > before, || {
        format!("UpdateMachine answered OK, and the back end has not seen {what}")
    })?;
    t.settle().await;
    t.update(from, to, id).await?.ok()?;
    ensure(mutations(t).await? == made, || {
        format!("the VM was changed again although {what} had been made")
    })
}

async fn is_the_same(t: &TestContext, request: &MachineRequest, id: &ProviderId) -> CaseResult {
    let again = t.create(request).await?.ok()?;
    ensure(again.provider_id == *id, || {
        "the VM is another one since it was updated".to_owned()
    })
}
