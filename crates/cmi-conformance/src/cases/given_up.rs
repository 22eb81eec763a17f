//! A create that nothing waits for any more, followed by a deletion.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::cases;
use super::concurrency::{GIVE_UP, GiveUp};
use crate::answer::{CaseError, CaseResult};
use crate::{Case, TestContext};
use cmi_driver::Code;

/// Between a create that is given up and the deletion: which of the two a driver takes up first is not about
/// what either does.
const BEFORE_THE_DELETION: Duration = Duration::from_millis(200);
/// How long at least no VM may appear.
const SHORTEST_WATCH: Duration = Duration::from_millis(300);
/// How much longer than a create takes.
const TIMES_A_CREATE: u32 = 2;

pub(super) const CASES: &[Case] = cases! {
    "create-given-up-then-deleted":
        "once a machine whose create was given up is deleted, no VM of it appears: the create is over, or the \
         deletion waits for it or is ABORTED"
        ["DRV-21", "DRV-23", "DRV-DE-10", "PLG-DE-10", "CMI-10", "CMI-34", "CMI-102", "CMI-111"],
        [] => given_up_then_deleted;
};

async fn given_up_then_deleted(t: TestContext) -> CaseResult {
    let whole = t.machine_request("whole");
    let started = Instant::now();
    t.created(&whole).await.map_err(CaseError::in_preparation)?;
    let takes = started.elapsed();
    let parts = (1..4).map(|part| GiveUp::After(takes * part / 4));
    let all = GIVE_UP.into_iter().chain(parts).enumerate();
    let watches = all.map(|(number, give_up)| no_vm_appears(&t, number, give_up, takes));
    try_join_all(watches).await.map(drop)
}

async fn no_vm_appears(t: &TestContext, number: usize, give_up: GiveUp, takes: Duration) -> CaseResult {
    let request = t.machine_request(&format!("n{number}"));
    let cluster = format!("{}-{number}", request.cluster());
    let request = request.in_cluster(&cluster);
    if let Some(ended) = give_up.run(t.create(&request)).await {
        // It was faster.
        let ended = ended?;
        if let Err(status) = &ended.result
            && status.code() == Code::ResourceExhausted
        {
            return Err(CaseError::Inconclusive(format!(
                "there is no room for its VMs: {status}"
            )));
        }
        ended.ok_or(&[Code::Aborted, Code::Canceled])?;
    }
    t.pause(BEFORE_THE_DELETION).await;
    // A back end that is behind does not find yet what is there.
    t.settle().await;
    t.remove(&request, None).await?;
    t.pause(takes.saturating_mul(TIMES_A_CREATE).max(SHORTEST_WATCH))
        .await;
    t.is_gone(&request).await.map_err(|error| {
        error.after(&format!(
            "CreateMachine of `{}` was given up ({give_up}), and DeleteMachine answered OK while it went on",
            request.name
        ))
    })
}
