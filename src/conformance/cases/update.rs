//! UpdateMachine.

use super::case;
use super::requests::reaches_the_plugin;
use crate::conformance::answer::{Outcome, ensure};
use crate::conformance::{Case, Need, Setting, Trial};
use crate::driver::{Code, Operation};

const UPDATE: Need = Need::Call(Operation::UpdateMachine);

pub(super) const CASES: &[Case] = &[
    case!(
        "update-offered",
        "the call works when it is declared, and is UNIMPLEMENTED when it is not",
        proves: ["UPD-02"],
        needs: [],
        offered
    ),
    case!(
        "update-there-and-back",
        "each change is made and taken back, on the same VM, and may be repeated",
        proves: ["UPD-03"],
        needs: [UPDATE, Need::Setting(Setting::HotUpdates)],
        there_and_back
    ),
];

async fn offered(t: Trial) -> Outcome {
    reaches_the_plugin(&t, Operation::UpdateMachine)?;
    let order = t.order("a");
    let id = t.prepare(&order).await?.provider_id;
    let answer = t.update(&order, &order, &id).await?;
    if t.offers(Operation::UpdateMachine) {
        answer.ok()
    } else {
        answer.refused(Code::Unimplemented).map(|_| ())
    }
}

async fn there_and_back(t: Trial) -> Outcome {
    let order = t.order("a");
    let id = t.prepare(&order).await?.provider_id;
    for change in t.config().hot_updates.clone() {
        let changed = order.clone().changed(&change);
        ensure(changed.class.provider_spec != order.class.provider_spec, || {
            format!("the change {change} changes nothing")
        })?;
        for _ in 0..2 {
            t.update(&order, &changed, &id).await?.ok()?;
        }
        // What was half done is taken back although the spec of before was the last that was applied in full.
        t.update(&order, &order, &id).await?.ok()?;
        let again = t.create(&order).await?.ok()?;
        ensure(again.provider_id == id, || {
            "the VM is another one since it was updated".to_owned()
        })?;
    }
    t.has_exactly(&order, &[(&order, &id)]).await
}
