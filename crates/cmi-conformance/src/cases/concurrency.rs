//! Concurrent and abandoned calls.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::future::{join, join_all};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{cases, family};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

/// The number of identical concurrent calls.
const CONCURRENT_CALLS: usize = 8;
/// The most rounds, each for another machine: with a quick back end, a look-up and the following create are
/// only microseconds apart.
const MAX_ROUNDS: usize = 100;
/// How long new rounds may start. At least one round runs; if it takes this long, the calls wait for each
/// other.
const ROUNDS_BEGIN_FOR: Duration = Duration::from_millis(1500);
/// The fewest rounds where a round is quick: on a busy computer some rounds take longer, and two calls seldom
/// meet.
const LEAST_ROUNDS: u32 = 25;
/// The longest average time of a quick round. A slower round shows that the back end is the slow part.
const QUICK_ROUND: Duration = Duration::from_millis(400);
/// How long the calls of a round wait for each other at most, so that none ends before the others start.
const TOGETHER: Duration = Duration::from_millis(5);
/// The delay between two calls in every second round.
const STAGGER: Duration = Duration::from_micros(5);
/// When callers give up: at each of the first waits, and some time later.
pub(super) const GIVE_UP: [GiveUp; 6] = [
    GiveUp::AtWait(1),
    GiveUp::AtWait(2),
    GiveUp::AtWait(3),
    GiveUp::After(Duration::from_millis(1)),
    GiveUp::After(Duration::from_millis(8)),
    GiveUp::After(Duration::from_millis(30)),
];

/// The moment when the caller gives up.
#[derive(Clone, Copy, Debug)]
pub(super) enum GiveUp {
    /// At its nth wait.
    AtWait(usize),
    /// After this time.
    After(Duration),
}

impl GiveUp {
    /// Runs the call until its caller gives up. Returns its answer if it ends before that.
    pub(super) async fn run<T>(self, call: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::After(time) => tokio::time::timeout(time, call).await.ok(),
            Self::AtWait(mut waits) => {
                let mut call = std::pin::pin!(call);
                poll_fn(|context| match call.as_mut().poll(context) {
                    Poll::Ready(answer) => Poll::Ready(Some(answer)),
                    Poll::Pending => {
                        waits -= 1;
                        if waits == 0 {
                            Poll::Ready(None)
                        } else {
                            Poll::Pending
                        }
                    }
                })
                .await
            }
        }
    }
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtWait(wait) => write!(f, "at its wait number {wait}"),
            Self::After(time) => write!(f, "after {:.1} ms", time.as_secs_f64() * 1000.0),
        }
    }
}

pub(super) const CASES: &[Case] = cases! {
    "create-at-once": "concurrent identical creates make one VM: each is OK or ABORTED"
        ["DRV-CR-10", "PLG-CR-10", "DRV-12", "CMI-10", "CMI-11", "CMI-34", "CMI-84"], [] => create_at_once;
    "delete-at-once": "concurrent deletes are OK or ABORTED, and the VM is deleted"
        ["DRV-DE-10", "PLG-DE-10", "DRV-21", "CMI-10", "CMI-34", "CMI-102"], [] => delete_at_once;
    "shut-down-at-once": "concurrent shutdowns are OK or ABORTED, and the VM remains"
        ["PLG-SD-10", "CMI-10"], [Need::Call(Operation::ShutDownMachine)] => shut_down_at_once;
    "create-and-delete-at-once": "a create and a concurrent delete end with at most one VM"
        ["CMI-10"], [] => create_and_delete;
    "create-and-status-at-once": "a look-up during a create finds the VM or is NOT_FOUND"
        ["CMI-10"], [Need::Call(Operation::GetMachineStatus)] => create_and_status;
};

pub(super) const CANCELLED: &[Case] = family! {
    "-cancelled": "a cancelled call can be repeated and leaves no partial state"
        [] => cancelled;
    "create" CreateMachine ["DRV-CR-01", "PLG-CR-01", "DRV-12", "CMI-22", "CMI-84"];
    "delete" DeleteMachine ["DRV-DE-01", "PLG-DE-01", "DRV-21", "CMI-22", "CMI-102"];
    "status" GetMachineStatus ["DRV-GS-01", "PLG-GS-01"];
    "list" ListMachines ["DRV-LM-01", "PLG-LM-01"];
    "shut-down" ShutDownMachine ["PLG-SD-01"];
    "volumes" GetVolumeIds ["DRV-GV-01", "PLG-GV-01"];
};

async fn at_once(t: &TestContext, operation: Operation, request: &MachineRequest) -> CaseResult {
    let answers = join_all((0..CONCURRENT_CALLS).map(|_| t.invoke(operation, request, None))).await;
    for answer in answers {
        answer?.ok_or(&[Code::Aborted])?;
    }
    Ok(())
}

/// Whether another round starts after this many rounds, which together took this long.
fn begins(rounds: usize, took: Duration) -> bool {
    let Some(rounds) = u32::try_from(rounds).ok().filter(|rounds| *rounds > 0) else {
        return true;
    };
    took < ROUNDS_BEGIN_FOR || rounds < LEAST_ROUNDS && took < QUICK_ROUND * rounds
}

/// Whether concurrent calls run on several processors. On a single-threaded runtime, they alternate at their
/// await points, in the same way in every round.
fn runs_threads() -> bool {
    Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread
}

async fn create_at_once(t: TestContext) -> CaseResult {
    let started = Instant::now();
    let mut made = Vec::new();
    let rounds = if runs_threads() { MAX_ROUNDS } else { 1 };
    for round in 0..rounds {
        if !begins(round, started.elapsed()) {
            break;
        }
        let request = t.machine_request(&format!("n{round}"));
        let Some(id) = makes_one_vm(&t, &request, round).await? else {
            // The VMs so far have used up the quota.
            break;
        };
        made.push((request, id));
    }
    t.settle().await;
    let wanted: Vec<_> = made.iter().map(|(request, id)| (request, id)).collect();
    t.has_exactly(&made[0].0, &wanted).await?;
    // The cleanup would take longer to delete them.
    t.remove_all(made).await
}

/// A barrier for threads that have to start at the same moment. With a quick back end, waking them one by one
/// takes longer than a create.
#[derive(Debug, Default)]
struct Begin {
    arrived: AtomicUsize,
}

impl Begin {
    /// Waits for the other threads, then for the delay.
    fn together(&self, later: Duration) {
        let longest = Instant::now() + TOGETHER;
        self.arrived.fetch_add(1, Ordering::SeqCst);
        while self.arrived.load(Ordering::SeqCst) < CONCURRENT_CALLS && Instant::now() < longest {
            std::thread::yield_now();
        }
        let begin = Instant::now() + later;
        while Instant::now() < begin {
            // A timer would be late by more than the time between a look-up and a create.
            std::hint::spin_loop();
        }
    }
}

/// Makes several identical creates. Returns their common id, or `None` if there is no room for another VM.
/// Unless the runtime has one thread, each create has its own, so that a driver in this process runs them on
/// several processors, however busy these are.
async fn makes_one_vm(
    t: &TestContext,
    request: &MachineRequest,
    round: usize,
) -> CaseResult<Option<ProviderId>> {
    let begin = Arc::new(Begin::default());
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let creates = (0_u32..).take(CONCURRENT_CALLS).map(|number| {
        let (t, request, stop) = (t.clone(), request.clone(), stop.clone());
        let later = if round.is_multiple_of(2) {
            Duration::ZERO
        } else {
            STAGGER * number
        };
        let (runtime, begin) = (Handle::current(), Arc::clone(&begin));
        if !runs_threads() {
            return tokio::spawn(async move { stop.run_until_cancelled(t.create(&request)).await });
        }
        tokio::task::spawn_blocking(move || {
            begin.together(later);
            runtime.block_on(stop.run_until_cancelled(t.create(&request)))
        })
    });
    let creates: Vec<_> = creates.collect();
    let (mut ids, mut is_full) = (BTreeSet::new(), false);
    for create in join_all(creates).await {
        let answer = create.map_err(|error| {
            CaseError::Failed(format!("a create beside others did not end by itself: {error}"))
        })?;
        let Some(answer) = answer else { continue };
        let answer = answer?;
        is_full |= round > 0 && answer.code() == Some(Code::ResourceExhausted);
        if !is_full {
            let made = answer.ok_or(&[Code::Aborted])?;
            ids.extend(made.map(|machine| machine.provider_id));
        }
    }
    if is_full {
        t.remove(request, None).await?;
        return Ok(None);
    }
    let id = t.created(request).await?.provider_id;
    ids.insert(id.clone());
    ensure(ids.len() == 1, || {
        let ids: Vec<_> = ids.iter().map(ProviderId::as_str).collect();
        format!(
            "{CONCURRENT_CALLS} identical requests for machine `{}` made the VMs {}",
            request.name,
            ids.join(", ")
        )
    })?;
    Ok(Some(id))
}

async fn delete_at_once(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    at_once(&t, Operation::DeleteMachine, &request).await?;
    t.remove(&request, Some(&id)).await?;
    t.is_gone(&request).await
}

async fn shut_down_at_once(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    at_once(&t, Operation::ShutDownMachine, &request).await?;
    t.has_only(&request, &id).await
}

async fn create_and_delete(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let (made, deleted) = join(t.create(&request), t.delete(&request, None)).await;
    made?.ok_or(&[Code::Aborted])?;
    deleted?.ok_or(&[Code::Aborted])?;
    // An eventually consistent back end may not show the VM yet.
    t.settle().await;
    t.remove(&request, None).await?;
    t.is_gone(&request).await
}

async fn create_and_status(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let (made, read) = join(t.create(&request), t.status(&request, None)).await;
    let id = match made?.ok_or(&[Code::Aborted])? {
        Some(machine) => machine.provider_id,
        None => t.created(&request).await?.provider_id,
    };
    let read = read?.ok_or(&[Code::NotFound, Code::Aborted, Code::Uninitialized])?;
    ensure(read.is_none_or(|read| read.provider_id == id), || {
        "GetMachineStatus saw another VM than CreateMachine made".to_owned()
    })
}

async fn cancelled(t: TestContext, operation: Operation) -> CaseResult {
    for (number, give_up) in GIVE_UP.into_iter().enumerate() {
        let request = t
            .machine_request(&format!("n{number}"))
            .in_cluster(&format!("{}-{number}", t.machine_request("a").cluster()));
        if !matches!(operation, Operation::CreateMachine | Operation::GetVolumeIds) {
            t.prepare(&request).await?;
        }
        let call = t.invoke(operation, &request, None);
        if let Some(ended) = give_up.run(call).await {
            // The call ended before its caller gave up; a repeat has to be sound anyway.
            ended?.ok_or(&[Code::Aborted, Code::Canceled])?;
        }
        if operation == Operation::DeleteMachine {
            t.remove(&request, None).await?;
            t.is_gone(&request).await?;
            continue;
        }
        t.invoke(operation, &request, None)
            .await?
            .ok_or(&[Code::Aborted])?;
        if operation != Operation::GetVolumeIds {
            let id = t.make(&request).await?.provider_id;
            t.has_only(&request, &id).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_slow_back_end_end_earlier() {
        for (rounds, millis, another) in [
            (0, 60_000, true),
            (1, 1400, true),
            (1, 1600, false),
            (8, 2000, true),
            (8, 4000, false),
            (25, 2000, false),
            (60, 1400, true),
        ] {
            let took = Duration::from_millis(millis);
            assert_eq!(begins(rounds, took), another, "{rounds} rounds in {took:?}");
        }
    }

    #[tokio::test]
    async fn a_call_is_given_up_at_the_wait_that_is_asked_for_and_not_before() {
        let waits_twice = || async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(GiveUp::AtWait(1).run(waits_twice()).await, None);
        assert_eq!(GiveUp::AtWait(2).run(waits_twice()).await, None);
        assert_eq!(GiveUp::AtWait(3).run(waits_twice()).await, Some(7));
    }
}
