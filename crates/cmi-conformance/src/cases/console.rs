//! GetConsole.

use super::cases;
use super::requests::reaches_the_plugin;
use super::status::mutations;
use crate::answer::{CaseResult, ensure};
use crate::{Case, Hook, Need, TestContext};
use cmi_driver::{Code, Operation};

const CONSOLE: Need = Need::Call(Operation::GetConsole);

pub(super) const CASES: &[Case] = cases! {
    "console-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["CAP-05"], [] => offered;
    "console-only-reads": "reading the console changes nothing at the back end"
        ["CAP-35"], [CONSOLE, Need::Hook(Hook::Mutations)] => only_reads;
    "console-never-made": "the console of an unknown machine is NOT_FOUND, and nothing is created"
        ["CAP-36"], [CONSOLE] => never_made;
    "console-other-cluster": "the console of a VM in another cluster is not shown"
        ["CAP-36"], [CONSOLE] => other_cluster;
    "console-other-identity": "the console of a VM with another machine tag is NOT_FOUND"
        ["CAP-36"], [CONSOLE] => other_identity;
};

async fn offered(t: TestContext) -> CaseResult {
    reaches_the_plugin(&t, Operation::GetConsole)?;
    let (request, id) = t.prepare_vm("a").await?;
    let answer = t.console(&request, &id).await?;
    if t.supports(Operation::GetConsole) {
        // A VM may have no console.
        return answer.ok_or(&[Code::FailedPrecondition]).map(drop);
    }
    answer.refused(Code::Unimplemented).map(drop)
}

async fn only_reads(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let before = mutations(&t).await?;
    for _ in 0..3 {
        t.console(&request, &id)
            .await?
            .ok_or(&[Code::FailedPrecondition])?;
    }
    let after = mutations(&t).await?;
    ensure(before == after, || {
        format!(
            "GetConsole of `{id}` changed the back end {} times",
            after - before
        )
    })
}

async fn never_made(t: TestContext) -> CaseResult {
    let (request, other) = (t.machine_request("a"), t.machine_request("b"));
    // The id is of the driver's own kind, and its VM is gone.
    let id = t.prepare_gone(&other).await?;
    for request in [&request, &other] {
        t.console(request, &id).await?.refused(Code::NotFound)?;
        t.has_none(request).await?;
    }
    Ok(())
}

async fn other_cluster(t: TestContext) -> CaseResult {
    let (there, id) = t.prepare_vm("a").await?;
    let here = there.in_cluster(&t.other_cluster());
    // The driver may refuse a foreign id, or find no VM by it.
    let refusals = [Code::NotFound, Code::InvalidArgument, Code::PermissionDenied];
    t.console(&here, &id).await?.refused_with(&refusals).map(drop)
}

async fn other_identity(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let other = request.with_identity("another-machine");
    t.console(&other, &id).await?.refused(Code::NotFound).map(drop)
}
