//! UpdateMachine of a VM that was adopted without the tag `capcmi.io/machine`. Until the answer to the update
//! is recorded, calls about the VM come without the tag, even if the VM already has it.

use super::cases;
use crate::answer::CaseResult;
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, ProviderId, tags};

const STATUS: Need = Need::Call(Operation::GetMachineStatus);

pub(super) const CASES: &[Case] = cases! {
    "machine-tag-added": "a VM without the tag `capcmi.io/machine` gets it; repeating is OK"
        ["CAP-18"], [Need::MachineTag, STATUS] => added;
    "machine-tag-unknown-to-the-caller": "a VM with the tag is found by its provider ID without the tag"
        ["CAP-19"], [Need::MachineTag, STATUS] => found_without;
    "machine-tag-deleted-without": "a VM with the tag is deleted by its provider ID without the tag"
        ["CAP-19"], [Need::MachineTag] => deleted_without;
    "machine-tag-kept": "an existing tag is not replaced"
        ["CAP-20"], [Need::MachineTag] => kept;
};

/// A VM that was made without the tag and got it later: its requests without and with the tag, and its id.
struct Tagged {
    without: MachineRequest,
    with: MachineRequest,
    id: ProviderId,
}

impl Tagged {
    async fn prepare(t: &TestContext) -> CaseResult<Self> {
        let with = t.machine_request("a");
        let without = with.clone().untagged(tags::MACHINE);
        let id = t.prepare(&without).await?.provider_id;
        t.update(&without, &with, &id).await?.ok()?;
        t.settle().await;
        Ok(Self { without, with, id })
    }
}

async fn added(t: TestContext) -> CaseResult {
    let vm = Tagged::prepare(&t).await?;
    t.is_there(&vm.with, &vm.id).await?;
    t.update(&vm.without, &vm.with, &vm.id).await?.ok()?;
    t.settle().await;
    t.has_exactly(&vm.with, &[(&vm.with, &vm.id)]).await
}

async fn found_without(t: TestContext) -> CaseResult {
    let vm = Tagged::prepare(&t).await?;
    t.status(&vm.without, Some(&vm.id)).await?.ok().map(drop)
}

async fn deleted_without(t: TestContext) -> CaseResult {
    let vm = Tagged::prepare(&t).await?;
    t.remove(&vm.without, Some(&vm.id)).await?;
    t.settle().await;
    t.is_gone(&vm.with).await
}

async fn kept(t: TestContext) -> CaseResult {
    let vm = Tagged::prepare(&t).await?;
    let other = vm.with.clone().with_identity("another-machine");
    for from in [&vm.without, &vm.with] {
        t.update(from, &other, &vm.id).await?.refused(Code::NotFound)?;
    }
    t.survives(&vm.with, &vm.id).await
}
