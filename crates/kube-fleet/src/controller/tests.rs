use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::*;
use crate::fixtures::{config_map, reference};
use crate::store;

/// The reconciles so far, and the events that they wait for.
struct Seen {
    runs: Mutex<BTreeMap<String, usize>>,
    order: Mutex<Vec<String>>,
    at_once: Mutex<(usize, usize)>,
    may_end: Semaphore,
    began: Notify,
}

impl Seen {
    fn new(may_end: usize) -> Arc<Self> {
        Arc::new(Self {
            runs: Mutex::default(),
            order: Mutex::default(),
            at_once: Mutex::default(),
            may_end: Semaphore::new(may_end),
            began: Notify::new(),
        })
    }

    fn runs(&self, name: &str) -> usize {
        self.runs.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    fn order(&self) -> Vec<String> {
        self.order.lock().unwrap().clone()
    }

    /// The condition must stay true: the controller processes everything that is ready before this checks
    /// again.
    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            self.began.notified().await;
        }
    }
}

#[derive(Debug)]
struct Failed;

/// The object `again` is reconciled again in 5 s, and `busy` always and immediately. `fails` fails the first
/// time.
async fn reconcile(object: Arc<ConfigMap>, seen: Arc<Seen>) -> Result<Action, Failed> {
    let name = object.name_any();
    {
        *seen.runs.lock().unwrap().entry(name.clone()).or_default() += 1;
        seen.order.lock().unwrap().push(name.clone());
        let mut at_once = seen.at_once.lock().unwrap();
        at_once.0 += 1;
        at_once.1 = at_once.1.max(at_once.0);
    }
    seen.began.notify_one();
    seen.may_end.acquire().await.unwrap().forget();
    seen.at_once.lock().unwrap().0 -= 1;
    match (name.as_str(), seen.runs(&name)) {
        ("again", 1) => Ok(Action::requeue(Duration::from_secs(5))),
        ("busy", runs) if runs < MAX_RUNS => Ok(Action::requeue(Duration::ZERO)),
        ("fails", 1) => Err(Failed),
        _ => Ok(Action::await_change()),
    }
}

/// The limit of reconciles of `busy`: the paused clock does not advance in the meantime.
const MAX_RUNS: usize = 1000;

fn in_seven_seconds(_: Arc<ConfigMap>, _: &Failed, _: Arc<Seen>) -> Action {
    Action::requeue(Duration::from_secs(7))
}

async fn run_until(controller: Controller<ConfigMap>, seen: &Arc<Seen>, until: impl Future<Output = ()>) {
    tokio::select! {
        () = controller.run(reconcile, in_seven_seconds, Arc::clone(seen)) => panic!("it ended"),
        () = until => {}
    }
}

fn objects(names: &[&str]) -> Store<ConfigMap> {
    let (store, mut writer) = store();
    for name in names {
        writer.apply(Arc::new(config_map(name, name, 1)));
    }
    store
}

#[tokio::test(start_paused = true)]
async fn a_start_reconciles_every_object_once_within_its_limit() {
    let store = objects(&["a", "b", "c", "d", "e"]);
    let (seen, queue) = (Seen::new(0), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 2).with_backlog(|_| true);
    let all = async {
        seen.until(|seen| seen.runs.lock().unwrap().len() >= 2).await;
        seen.may_end.add_permits(100);
        seen.until(|seen| seen.runs.lock().unwrap().len() >= 5).await;
    };
    run_until(controller, &seen, all).await;
    assert_eq!(seen.at_once.lock().unwrap().1, 2);
    assert!(seen.runs.lock().unwrap().values().all(|runs| *runs == 1));
}

/// The running reconcile may have missed the change.
#[tokio::test(start_paused = true)]
async fn a_request_during_a_reconcile_leads_to_one_more_after_it() {
    let store = objects(&["a"]);
    let (seen, queue) = (Seen::new(0), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 8);
    queue.enqueue(reference("a"));
    queue.enqueue(reference("not there"));
    let all = async {
        seen.until(|seen| seen.runs("a") >= 1).await;
        queue.enqueue(reference("a"));
        queue.enqueue(reference("a"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(seen.runs("a"), 1);
        seen.may_end.add_permits(100);
        seen.until(|seen| seen.runs("a") >= 2).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    run_until(controller, &seen, all).await;
    assert_eq!((seen.runs("a"), seen.at_once.lock().unwrap().1), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_object_is_requeued_and_earlier_when_it_changes() {
    let store = objects(&["again"]);
    let (seen, queue) = (Seen::new(100), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 1).with_backlog(|_| true);
    let started = Instant::now();
    run_until(controller, &seen, seen.until(|seen| seen.runs("again") >= 2)).await;
    assert_eq!(started.elapsed().as_secs(), 5);

    let (seen, queue) = (Seen::new(100), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 1).with_backlog(|_| true);
    let started = Instant::now();
    let changes = async {
        seen.until(|seen| seen.runs("again") >= 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue.enqueue(reference("again"));
        seen.until(|seen| seen.runs("again") >= 2).await;
    };
    run_until(controller, &seen, changes).await;
    assert_eq!(started.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_running_reconciles_and_begins_none() {
    let store = objects(&["a", "b"]);
    let (seen, queue) = (Seen::new(0), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 1).with_backlog(|_| true);
    let shutdown = Arc::new(Notify::new());
    let controller = controller.graceful_shutdown_on(Arc::clone(&shutdown).notified_owned());
    let run = controller.run(reconcile, in_seven_seconds, Arc::clone(&seen));
    let mut run = std::pin::pin!(run);
    tokio::select! {
        () = &mut run => panic!("it ended"),
        () = seen.until(|seen| !seen.runs.lock().unwrap().is_empty()) => {}
    }
    shutdown.notify_one();
    let early = tokio::time::timeout(Duration::from_secs(1), &mut run).await;
    assert!(early.is_err(), "a reconcile was broken off");
    seen.may_end.add_permits(100);
    run.await;
    assert_eq!(seen.runs.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_reconcile_is_repeated_by_the_error_policy() {
    let store = objects(&["fails"]);
    let (seen, queue) = (Seen::new(100), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 1).with_backlog(|_| true);
    let started = Instant::now();
    run_until(controller, &seen, seen.until(|seen| seen.runs("fails") >= 2)).await;
    assert_eq!(started.elapsed().as_secs(), 7);
}

/// A start of a hundred thousand objects must not delay the object that a user has just changed.
#[tokio::test(start_paused = true)]
async fn a_changed_object_overtakes_the_backlog() {
    let names: Vec<_> = (0..100).map(|number| format!("m-{number}")).collect();
    let (store, mut writer) = store();
    for name in &names {
        writer.apply(Arc::new(config_map(name, name, 1)));
    }
    let (seen, queue) = (Seen::new(0), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 1).with_backlog(|_| true);
    writer.apply(Arc::new(config_map("changed", "u", 1)));
    let all = async {
        seen.until(|seen| !seen.order().is_empty()).await;
        queue.enqueue(reference("changed"));
        seen.may_end.add_permits(1000);
        seen.until(|seen| seen.order().len() >= 101).await;
    };
    run_until(controller, &seen, all).await;
    assert_eq!(seen.order()[1], "changed");
}

/// An object that is never done must not keep a start from the others.
#[tokio::test(start_paused = true)]
async fn a_busy_object_does_not_block_the_backlog() {
    let store = objects(&["a", "b", "busy", "c", "d"]);
    let (seen, queue) = (Seen::new(10 * MAX_RUNS), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 1).with_backlog(|_| true);
    queue.enqueue(reference("busy"));
    run_until(
        controller,
        &seen,
        seen.until(|seen| seen.runs("busy") >= MAX_RUNS),
    )
    .await;
    let order = seen.order();
    for name in ["a", "b", "c", "d"] {
        let place = order.iter().position(|seen| seen == name);
        assert!(place.is_some_and(|place| place < 20), "{name}: {place:?}");
    }
}

/// With one thread, the renewal of a lease would wait for the whole fleet.
#[tokio::test]
async fn other_tasks_run_while_a_fleet_at_rest_is_reconciled() {
    const FLEET: usize = 1000;
    let names: Vec<_> = (0..FLEET).map(|n| format!("m-{n}")).collect();
    let store = objects(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (seen, queue) = (Seen::new(0), WorkQueue::default());
    let controller = Controller::new(&store, &queue, 2).with_backlog(|_| true);
    let run = tokio::spawn(controller.run(at_rest, in_seven_seconds, Arc::clone(&seen)));
    tokio::task::yield_now().await;
    let reconciled = seen.order().len();
    assert!((1..FLEET).contains(&reconciled), "{reconciled}");
    run.abort();
}

async fn at_rest(object: Arc<ConfigMap>, seen: Arc<Seen>) -> Result<Action, Failed> {
    seen.order.lock().unwrap().push(object.name_any());
    Ok(Action::await_change())
}
