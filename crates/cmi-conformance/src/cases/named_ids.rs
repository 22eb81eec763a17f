//! ProviderIDs that a driver names before there is a VM.

use super::cases;
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

const NEEDS: [Need; 2] = [Need::Call(Operation::GetMachineStatus), Need::NamedIds];

pub(super) const CASES: &[Case] = cases! {
    "named-id-is-the-vms": "the ID named in advance is the ID that CreateMachine returns"
        ["CAP-24"], NEEDS => is_the_vms;
    "named-id-stays": "the named ID is stable, even after a VM had it"
        ["CAP-25"], NEEDS => stays;
    "named-id-is-one-machines": "two machines never get the same ID"
        ["CAP-26"], NEEDS => is_one_machines;
};

/// Returns the id that the driver names for a machine without a VM.
///
/// # Errors
/// [`CaseError::Skipped`] where the driver names none: the id is not settled for machines of the sample
/// class.
pub(super) async fn named(t: &TestContext, request: &MachineRequest) -> CaseResult<ProviderId> {
    let answer = t.status(request, None).await?;
    if let Err(status) = &answer.result
        && status.code() == Code::NotFound
    {
        return status.named_provider_id().cloned().ok_or_else(|| {
            let why = "the driver names no id for a machine of `providerSpec`, as where it is not placed yet";
            CaseError::Skipped(why.to_owned())
        });
    }
    answer.refused(Code::NotFound)?;
    Err(CaseError::failed("NOT_FOUND is no error"))
}

/// Fails unless a VM has the id that was named.
fn is_named(named: &ProviderId, made: &ProviderId, what: &str) -> CaseResult {
    ensure(named == made, || {
        format!("GetMachineStatus named the id `{named}` beforehand, and {what} answered `{made}`")
    })
}

async fn is_the_vms(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = named(&t, &request).await?;
    t.has_none(&request).await?;
    let made = t.make(&request).await?;
    is_named(&id, &made.provider_id, "CreateMachine")?;
    let again = t.create(&request).await?.ok()?;
    is_named(&id, &again.provider_id, "a repeated CreateMachine")?;
    t.has_only(&request, &id).await
}

async fn stays(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = named(&t, &request).await?;
    let same = |again: &ProviderId, when: &str| {
        ensure(*again == id, || {
            format!("GetMachineStatus named the id `{id}` first, and `{again}` {when}")
        })
    };
    same(&named(&t, &request).await?, "the second time")?;
    t.prepare_gone(&request).await?;
    same(&named(&t, &request).await?, "when its VM was gone")
}

async fn is_one_machines(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = named(&t, &request).await?;
    let others = [
        (t.machine_request("b"), "another name"),
        (request.clone().in_cluster(&t.other_cluster()), "another cluster"),
        (
            request.clone().with_identity("another-machine"),
            "another machine object",
        ),
    ];
    for (other, what) in others {
        let other = named(&t, &other).await?;
        ensure(other != id, || {
            format!("a machine of {what} is named the same id `{id}`")
        })?;
    }
    Ok(())
}
