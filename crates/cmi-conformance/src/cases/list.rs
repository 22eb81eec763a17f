//! ListMachines.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::requests::as_declared;
use super::{cases, published};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::machine_request::MachineRequest;
use crate::{Case, Hook, Need, Setting, TestContext};
use cmi_driver::{Code, Operation, ProviderId, tags};

const LIST: Need = Need::Call(Operation::ListMachines);
/// The number of concurrent creates for a long list.
const CONCURRENT_CALLS: usize = 8;
/// More VMs than a page of 100, the smallest page of most back ends.
const MORE_THAN_A_PAGE: usize = 110;
/// More VMs than the page of 200 of some back ends, if the configuration gives no number.
const MORE_THAN_A_LONG_PAGE: usize = 210;
/// The longest time that the missing VMs may take.
const NO_TIME: Duration = Duration::from_secs(5);

pub(super) const CASES: &[Case] = cases! {
    "list-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["DRV-33", "DRV-LM-12", "PLG-LM-12", "CMI-136"], [] => |t| as_declared(t, Operation::ListMachines);
    "list-all": "a list longer than a page is complete, without deleted VMs"
        ["DRV-34", "CMI-137"], [LIST] => all;
    "list-keys": "the list maps provider IDs to machine names"
        ["DRV-36", "DRV-LM-00", "PLG-LM-00", "CMI-138", "CMI-140"], [LIST] => keys;
    "list-empty": "a cluster without VMs has an empty list"
        ["DRV-LM-00", "PLG-LM-00", "CMI-17", "CMI-141"], [LIST] => empty;
    "list-other-cluster": "lists of two clusters have no common VM"
        ["DRV-03", "CMI-49", "CMI-137"], [LIST] => other_cluster;
    "list-tags": "a list with tags returns those that the VM was created with"
        ["CAP-04"], [LIST] => tags_of_each;
    "list-planted-vm": "a planted VM of another cluster is not listed"
        ["DRV-03", "CMI-49"], [LIST, Need::Hook(Hook::Plant)] => planted;
};

async fn all(t: TestContext) -> CaseResult {
    let started = Instant::now();
    let mut made = Vec::new();
    let most = t.config().many_machines();
    if !more(&t, &mut made, most).await? {
        return Err(CaseError::Inconclusive(format!(
            "there is room for {} VMs, and `manyMachines` is {most}",
            made.len()
        )));
    }
    longer_than_usual_pages(&t, &mut made, started.elapsed()).await?;
    t.settle().await;
    lists_all(&t, &made).await?;
    let left = made.split_off(made.len() / 5 + 1);
    t.remove_all(made).await?;
    t.settle().await;
    lists_all(&t, &left).await?;
    // The cleanup would take longer to delete them.
    t.remove_all(left).await
}

/// Checks the list with the provider's call and with the published call.
async fn lists_all(t: &TestContext, vms: &[(MachineRequest, ProviderId)]) -> CaseResult {
    let wanted: Vec<_> = vms.iter().map(|(request, id)| (request, id)).collect();
    let request = t.machine_request("n0");
    t.has_exactly(&request, &wanted).await?;
    if t.target().wire().is_some() {
        published::lists(t, &request, &wanted).await?;
    }
    Ok(())
}

/// Creates VMs up to this number. Returns whether there was room for them.
async fn more(
    t: &TestContext,
    made: &mut Vec<(MachineRequest, ProviderId)>,
    most: usize,
) -> CaseResult<bool> {
    while made.len() < most {
        let numbers = (made.len()..most).take(CONCURRENT_CALLS);
        let creates = numbers.map(|number| made_if_there_is_room(t, number));
        let ended = try_join_all(creates).await.map_err(CaseError::in_preparation)?;
        let is_full = ended.iter().any(Option::is_none);
        made.extend(ended.into_iter().flatten());
        if is_full {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn made_if_there_is_room(
    t: &TestContext,
    number: usize,
) -> CaseResult<Option<(MachineRequest, ProviderId)>> {
    let request = t.machine_request(&format!("n{number}"));
    let answer = t.create(&request).await?;
    let machine = match answer.code() {
        Some(Code::ResourceExhausted) => return Ok(None),
        Some(Code::Aborted) => t.created(&request).await?,
        Some(_) | None => answer.ok()?,
    };
    Ok(Some((request, machine.provider_id)))
}

/// Creates more VMs if that is fast, since most back ends have pages of at least 100. Only the author of a
/// driver knows how many VMs exceed a page: unless the configuration gives the number, longer lists count as
/// not tried.
async fn longer_than_usual_pages(
    t: &TestContext,
    made: &mut Vec<(MachineRequest, ProviderId)>,
    took: Duration,
) -> CaseResult {
    let is_said = t.config().says(Setting::ManyMachines);
    let wanted = if is_said {
        MORE_THAN_A_PAGE
    } else {
        MORE_THAN_A_LONG_PAGE
    };
    let missing = u32::try_from(wanted.saturating_sub(made.len())).unwrap_or(u32::MAX);
    let each = took / u32::try_from(made.len()).unwrap_or(u32::MAX).max(1);
    let is_quick = each.saturating_mul(missing) <= NO_TIME;
    let is_long = is_quick && more(t, made, wanted).await?;
    t.goes_only_so_far_without(Setting::ManyMachines);
    if !is_long || !is_said {
        t.warn(format!(
            "the list had {} VMs: a driver that reads one page of the back end and no more may pass. Set \
             `manyMachines` above the size of a page: 100 and 1000 are usual",
            made.len()
        ));
    }
    Ok(())
}

async fn keys(t: TestContext) -> CaseResult {
    let (a, b) = (t.machine_request("a"), t.machine_request("b"));
    let (first, second) = (t.prepare(&a).await?, t.prepare(&b).await?);
    t.has_exactly(&a, &[(&a, &first.provider_id), (&b, &second.provider_id)])
        .await
}

async fn empty(t: TestContext) -> CaseResult {
    let listed = t.list(&t.machine_request("a")).await?.ok()?;
    ensure(listed.is_empty(), || {
        format!("a cluster without VMs has {} in its list", listed.len())
    })
}

async fn other_cluster(t: TestContext) -> CaseResult {
    let here = t.machine_request("a");
    let there = t.machine_request("b").in_cluster(&t.other_cluster());
    let (one, two) = (t.prepare(&here).await?, t.prepare(&there).await?);
    t.has_only(&here, &one.provider_id).await?;
    t.has_only(&there, &two.provider_id).await
}

/// These tags decide the provider's treatment of a VM without a machine. A plain list has no tags, and so no
/// wrong tags.
async fn tags_of_each(t: TestContext) -> CaseResult {
    let (one, two) = (
        t.machine_request("a"),
        t.machine_request("b").with_identity("conformance-of-b"),
    );
    let (first, second) = (t.prepare(&one).await?, t.prepare(&two).await?);
    let owners = [(&one, &first.provider_id), (&two, &second.provider_id)];
    if !tells_owners(&t, &one, &owners).await? {
        return Err(CaseError::Skipped(
            "the list tells neither cluster nor machine of a VM".to_owned(),
        ));
    }
    // A VM that is made under the name of a deleted one belongs to another machine.
    t.remove(&one, Some(&first.provider_id)).await?;
    t.settle().await;
    let after = t.machine_request("a").with_identity("conformance-of-another");
    let third = t.prepare(&after).await?;
    let owners = [(&after, &third.provider_id), (&two, &second.provider_id)];
    tells_owners(&t, &after, &owners).await.map(drop)
}

/// Fails if a list shows wrong tags of these VMs. Returns whether it shows any tags.
pub(super) async fn tells_owners(
    t: &TestContext,
    request: &MachineRequest,
    owners: &[(&MachineRequest, &ProviderId)],
) -> CaseResult<bool> {
    // Other cases test that the driver answers with a list.
    let listed = t.list(request).await?.ok().map_err(CaseError::in_preparation)?;
    let mut tells = false;
    for (owner, id) in owners {
        let found = listed.iter().filter(|vm| vm.provider_id == **id);
        for vm in found {
            for (tag, told) in [(tags::CLUSTER, &vm.cluster_id), (tags::MACHINE, &vm.machine_id)] {
                let Some(told) = told else { continue };
                tells = true;
                let made_with = owner.tag(tag);
                ensure(*told == made_with, || {
                    format!(
                        "the VM `{id}` of `{}` was made with the tag {tag}={made_with}, and the list says \
                            {told}",
                        owner.name
                    )
                })?;
            }
        }
    }
    Ok(tells)
}

async fn planted(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let foreign = request.clone().in_cluster(&t.other_cluster());
    t.track(&foreign);
    t.run_hook_on(Hook::Plant, &foreign).await?;
    t.settle().await;
    t.has_none(&request).await?;
    let listed = t.list(&foreign).await?.ok()?;
    ensure(listed.len() == 1, || {
        format!("the planted VM's own cluster has {} VMs", listed.len())
    })
}
