//! A create that its caller abandons, followed by a deletion.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::cases;
use super::concurrency::{GIVE_UP, GiveUp};
use super::faults::slow_down;
use crate::answer::{CaseError, CaseResult};
use crate::{Case, Hook, Need, TestContext};
use cmi_driver::Code;

/// The pause between the abandoned create and the deletion: the case does not test which of the two a driver
/// handles first.
const BEFORE_THE_DELETION: Duration = Duration::from_millis(200);
/// The shortest time that the case watches for a VM.
const MIN_WATCH: Duration = Duration::from_millis(300);
/// The time that the case watches, as a multiple of a create's duration.
const TIMES_A_CREATE: u32 = 2;

pub(super) const CASES: &[Case] = cases! {
    "create-given-up-then-deleted":
        "no VM appears after a cancelled create and a delete; the delete may wait or be ABORTED"
        ["DRV-21", "DRV-23", "DRV-DE-10", "PLG-DE-10", "CMI-10", "CMI-34", "CMI-102", "CMI-111"],
        [] => given_up_then_deleted;
    "create-given-up-while-slow":
        "no VM appears after a delete if a slow back end caused the create to be cancelled"
        ["DRV-21", "DRV-23", "DRV-DE-10", "PLG-DE-10", "CMI-10", "CMI-34", "CMI-102", "CMI-111"],
        [Need::Hook(Hook::Slow)] => given_up_while_slow;
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
        // The call ended before its caller gave up.
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
    // An eventually consistent back end may not show the VM yet.
    t.settle().await;
    t.remove(&request, None).await?;
    t.pause(takes.saturating_mul(TIMES_A_CREATE).max(MIN_WATCH)).await;
    t.is_gone(&request).await.map_err(|error| {
        error.after(&format!(
            "CreateMachine of `{}` was given up ({give_up}), and DeleteMachine answered OK while it went on",
            request.name
        ))
    })
}

/// A fast back end ends a create before its caller can give up, so the hook `slow` delays the create. The
/// deletion runs at full speed again: it looks for the VM while the create's request is still on its way.
async fn given_up_while_slow(t: TestContext) -> CaseResult {
    let whole = t.machine_request("whole");
    let started = Instant::now();
    t.created(&whole).await.map_err(CaseError::in_preparation)?;
    let takes = started.elapsed();
    let request = t.machine_request("slow");
    let cluster = format!("{}-slow", request.cluster());
    let request = request.in_cluster(&cluster);
    let slow = slow_down(&t).await?;
    let begun = Instant::now();
    let ended = tokio::time::timeout(t.config().short_deadline(), t.create(&request)).await;
    t.restore().await?;
    if let Ok(ended) = ended {
        let gives_up = [Code::DeadlineExceeded, Code::Aborted, Code::Canceled];
        if ended?.ok_or(&gives_up)?.is_some() {
            let seen = "CreateMachine answered OK before its deadline";
            return Err(t.changed_nothing(Hook::Slow, seen));
        }
    }
    t.remove(&request, None).await?;
    let deleted = begun.elapsed();
    let rest = takes.saturating_mul(TIMES_A_CREATE).max(MIN_WATCH);
    t.pause(slow.saturating_sub(deleted).saturating_add(rest)).await;
    t.is_gone(&request).await.map_err(|error| {
        error.after(&format!(
            "CreateMachine of `{}` was given up while the back end was slow, and DeleteMachine answered OK \
             after {:.1} s while it went on",
            request.name,
            deleted.as_secs_f64()
        ))
    })
}
