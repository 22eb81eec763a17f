//! Names that are easily taken for each other.

use std::collections::BTreeSet;

use futures::future::try_join_all;

use super::cases;
use crate::answer::{CaseResult, ensure};
use crate::{Case, MachineRequest, TestContext};

/// After how many characters names begin to differ: back ends cut names at such places. The most that there
/// are but one is tried besides.
const DIFFER_AFTER: [usize; 3] = [0, 20, 63];

pub(super) const CASES: &[Case] = cases! {
    "create-similar-names":
        "names that differ in one character, the first or a late one, are different machines, and each is \
         found and deleted by its own"
        ["DRV-07", "DRV-11", "DRV-22", "CMI-79", "CMI-83", "CMI-103"], [] => similar_names;
};

async fn similar_names(t: TestContext) -> CaseResult {
    let longest = t.config().longest_name;
    let last = longest.saturating_sub(1);
    let places = DIFFER_AFTER.into_iter().chain([last]);
    let places: BTreeSet<_> = places.filter(|place| *place < longest).collect();
    let pairs = places.into_iter().map(|place| {
        let t = &t;
        async move {
            let apart = are_apart(t, place).await;
            apart.map_err(|error| {
                error.after(&format!(
                    "two names that differ in the character after the first {place} alone"
                ))
            })
        }
    });
    try_join_all(pairs).await.map(drop)
}

/// Two machines in a cluster of their own, which is found out by each alone.
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

async fn are_apart(t: &TestContext, place: usize) -> CaseResult {
    let [one, other] = pair(t, place);
    let (first, second) = (t.make(&one).await?.provider_id, t.make(&other).await?.provider_id);
    ensure(first != second, || {
        format!("`{}` and `{}` share the VM `{first}`", one.name, other.name)
    })?;
    t.has_exactly(&one, &[(&one, &first), (&other, &second)]).await?;
    t.remove(&one, Some(&first)).await?;
    t.survives(&other, &second).await?;
    t.has_exactly(&other, &[(&other, &second)]).await?;
    t.remove(&other, None).await?;
    t.is_gone(&other).await
}
