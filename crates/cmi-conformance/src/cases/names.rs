//! Names that are easily confused.

use std::collections::BTreeSet;

use futures::future::join_all;

use super::cases;
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, MachineRequest, Setting, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

/// The lengths of the common beginnings of two names: back ends cut names at such lengths. The cases also try
/// names that differ in the last character of the longest name.
const DIFFER_AFTER: [usize; 3] = [0, 20, 63];

pub(super) const CASES: &[Case] = cases! {
    "create-similar-names": "names that differ in one character belong to different machines"
        ["DRV-07", "DRV-11", "DRV-22", "CMI-79", "CMI-83", "CMI-103"], [] => similar_names;
    "create-name-that-begins-another":
        "a name and a longer name with that prefix belong to different machines"
        ["DRV-07", "DRV-11", "DRV-22", "CMI-79", "CMI-83", "CMI-103"], [] => beginnings;
    "create-dotted-name": "names that differ only in `.` and `-` belong to different machines"
        ["DRV-07", "DRV-11", "DRV-22", "CMI-79", "CMI-83", "CMI-103"], [] => dots;
    "create-joined-names":
        "different pairs of cluster and name with the same concatenation belong to different machines"
        ["DRV-08", "DRV-11", "DRV-20", "CMI-79", "CMI-80", "CMI-83", "CMI-101"], [] => joined;
};

async fn similar_names(t: TestContext) -> CaseResult {
    t.goes_only_so_far_without(Setting::LongestName);
    let longest = t.config().longest_name();
    let last = longest.saturating_sub(1);
    let places = DIFFER_AFTER.into_iter().chain([last]);
    let places: BTreeSet<_> = places.filter(|place| *place < longest).collect();
    let pairs = places.into_iter().map(|place| {
        let t = &t;
        async move {
            let apart = are_apart(t, &pair(t, place)).await;
            apart.map_err(|error| {
                error.after(&format!(
                    "two names that differ in the character after the first {place} alone"
                ))
            })
        }
    });
    let ended = join_all(pairs).await;
    let errors = ended.into_iter().filter_map(CaseResult::err);
    // A driver that cuts names fails at the later places, too: only the first of them is reported.
    errors.min_by_key(rank).map_or(Ok(()), Err)
}

/// Ranks errors: the error with the lowest rank is the most informative.
fn rank(error: &CaseError) -> u8 {
    match error {
        CaseError::DriverGone(_) => 0,
        CaseError::Failed(_) => 1,
        CaseError::Inconclusive(_) => 2,
        CaseError::Skipped(_) | CaseError::Unconfigured { .. } => 3,
    }
}

/// Returns two machines in a separate cluster for each pair.
fn pair(t: &TestContext, place: usize) -> [MachineRequest; 2] {
    let request = t.machine_request(&format!("n{place}"));
    let cluster = format!("{}-{place}", request.cluster());
    ["a", "b"].map(|letter| {
        let common = &request.name;
        let name = if place == 0 {
            format!("{letter}{common}")
        } else {
            format!("{common:x<place$}{letter}")
        };
        let identity = format!("{cluster}.{letter}");
        request
            .clone()
            .named(name)
            .in_cluster(&cluster)
            .with_identity(&identity)
    })
}

/// Fails unless the driver keeps the two machines apart. Creates the second machine first: a driver that
/// mistakes the first for it adopts its VM, or deletes both.
async fn are_apart(t: &TestContext, [one, other]: &[MachineRequest; 2]) -> CaseResult {
    let (second, first) = (t.make(other).await?.provider_id, t.make(one).await?.provider_id);
    ensure(first != second, || {
        format!(
            "`{}` of cluster `{}` and `{}` of cluster `{}` share the VM `{first}`",
            one.name,
            one.cluster(),
            other.name,
            other.cluster()
        )
    })?;
    has_its_own(t, one, &[(one, &first), (other, &second)]).await?;
    has_its_own(t, other, &[(one, &first), (other, &second)]).await?;
    t.remove(one, Some(&first)).await?;
    t.survives(other, &second).await?;
    has_its_own(t, other, &[(other, &second)]).await?;
    if t.supports(Operation::GetMachineStatus) {
        t.status(one, None).await?.refused(Code::NotFound)?;
    }
    // Deletes the first machine by its name alone, while the other one exists.
    t.make(one).await?;
    t.remove(one, None).await?;
    t.survives(other, &second).await?;
    t.remove(other, None).await?;
    t.is_gone(other).await?;
    t.is_gone(one).await
}

/// Fails unless the machine's cluster has exactly those of these VMs that are its own.
async fn has_its_own(
    t: &TestContext,
    machine_request: &MachineRequest,
    vms: &[(&MachineRequest, &ProviderId)],
) -> CaseResult {
    let own = vms
        .iter()
        .filter(|(owner, _)| owner.cluster() == machine_request.cluster());
    t.has_exactly(machine_request, &own.copied().collect::<Vec<_>>())
        .await
}

/// A name may be a prefix of another name, and the filters of many back ends match by prefix.
async fn beginnings(t: TestContext) -> CaseResult {
    let short = t.machine_request("a");
    let long = t.machine_request("a-b");
    are_apart(&t, &[short, long]).await
}

/// Many back ends do not allow a `.` in a name, and get `-` instead.
async fn dots(t: TestContext) -> CaseResult {
    let [dotted, dashed] = ["a.b", "a-b"].map(|label| t.machine_request(label));
    t.track(&dotted);
    let first = t.create(&dotted).await?;
    if first.code() == Some(Code::InvalidArgument) {
        t.warn("a name with a dot is refused, which is one that Kubernetes has");
        return t.has_none(&dotted).await;
    }
    first.ok_or(&[Code::Aborted])?;
    t.make(&dotted).await?;
    t.remove(&dotted, None).await?;
    t.settle().await;
    are_apart(&t, &[dotted, dashed]).await
}

/// Joined into one text, cluster and name may equal those of another machine in another cluster.
async fn joined(t: TestContext) -> CaseResult {
    for (number, between) in ["-", ""].into_iter().enumerate() {
        let plain = t.machine_request(&format!("n{number}"));
        let part = format!("b{number}");
        let here = plain.clone().named(format!("{part}{between}{}", plain.name));
        let there = plain
            .clone()
            .in_cluster(&format!("{}{between}{part}", plain.cluster()));
        let apart = are_apart(&t, &[here, there]).await;
        apart.map_err(|error| {
            error.after(&format!(
                "clusters and names that are the same text when joined by `{between}`"
            ))
        })?;
    }
    Ok(())
}
