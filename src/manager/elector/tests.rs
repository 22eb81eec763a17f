//! Electors and an API server that holds one lease.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::time::advance;

use super::*;
use crate::manager::tests::client_of;

/// One lease, and whether the API server answers.
#[derive(Default)]
struct Store {
    lease: Option<Value>,
    version: u64,
    writes: usize,
    is_down: bool,
    /// The number of requests that get no answer, as over a dead connection.
    unanswered: usize,
    /// How long an answer takes.
    delay: Duration,
}

type Shared = Arc<Mutex<Store>>;

fn api_server(store: &Shared) -> Client {
    let (answering, store) = (answering(store), Arc::clone(store));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (answering, store) = (answering.clone(), Arc::clone(&store));
        async move {
            let is_lost = store.lock().unwrap().unanswered.checked_sub(1);
            if let Some(left) = is_lost {
                store.lock().unwrap().unanswered = left;
                std::future::pending::<()>().await;
            }
            let answer = answering.send(request).await;
            let delay = store.lock().unwrap().delay;
            sleep(delay).await;
            answer
        }
    });
    Client::new(service, "default")
}

fn answering(store: &Shared) -> Client {
    let store = Arc::clone(store);
    client_of(move |request, body| {
        let mut store = store.lock().unwrap();
        if store.is_down {
            return failure(503, "ServiceUnavailable");
        }
        let current = store
            .lease
            .as_ref()
            .map(|l| l["metadata"]["resourceVersion"].clone());
        match (request.method.as_str(), current) {
            ("GET", Some(_)) => (200, store.lease.clone().unwrap()),
            ("GET" | "PUT" | "PATCH", None) => failure(404, "NotFound"),
            ("POST", Some(_)) => failure(409, "AlreadyExists"),
            ("PUT", Some(current)) if body["metadata"]["resourceVersion"] != current => {
                failure(409, "Conflict")
            }
            ("POST" | "PUT" | "PATCH", current) => {
                let mut lease = body.clone();
                if current.is_some() && request.method == "PATCH" {
                    lease = store.lease.clone().unwrap();
                    let patch: json_patch::Patch = serde_json::from_value(body.clone()).unwrap();
                    if json_patch::patch(&mut lease, &patch).is_err() {
                        return failure(422, "Invalid");
                    }
                }
                store.version += 1;
                store.writes += 1;
                lease["metadata"]["resourceVersion"] = json!(store.version.to_string());
                store.lease = Some(lease.clone());
                (200, lease)
            }
            (other, _) => panic!("{other}"),
        }
    })
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
        "reason": reason, "code": code});
    (code, status)
}

/// The defaults of the flags.
fn timing() -> Timing {
    let seconds = Duration::from_secs;
    Timing::new(seconds(10), seconds(7), Duration::from_millis(1500)).unwrap()
}

struct Replica {
    leadership: Leadership,
    release: CancellationToken,
    elector: tokio::task::JoinHandle<()>,
}

fn start(store: &Shared, identity: &str) -> Replica {
    let election = Election {
        namespace: "ns".to_owned(),
        lease: "lease".to_owned(),
        identity: identity.to_owned(),
        timing: timing(),
    };
    let (leadership, release) = (Leadership::elected(), CancellationToken::new());
    let elector = Elector::new(api_server(store), election).run(leadership.clone(), release.clone());
    Replica {
        leadership,
        release,
        elector: tokio::spawn(elector),
    }
}

fn holder(store: &Shared) -> Value {
    store.lock().unwrap().lease.as_ref().unwrap()["spec"]["holderIdentity"].clone()
}

async fn pass(seconds: u64) {
    for _ in 0..seconds * 10 {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_and_renews_in_time() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    let two = start(&store, "two");
    pass(60).await;
    assert!(one.leadership.is_held() && !two.leadership.is_held());
    assert_eq!(holder(&store), "one");
    let writes = store.lock().unwrap().writes;
    assert!((35..=41).contains(&writes), "{writes} writes in 60 s");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_hands_the_lease_over_at_once() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    let two = start(&store, "two");
    pass(3).await;
    one.release.cancel();
    one.elector.await.unwrap();
    assert!(!one.leadership.is_held());
    assert_eq!(holder(&store), Value::Null);
    pass(3).await;
    assert!(two.leadership.is_held());
    assert_eq!(
        store.lock().unwrap().lease.as_ref().unwrap()["spec"]["leaseTransitions"],
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_taken_after_its_duration_and_no_sooner() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    one.elector.abort();
    let two = start(&store, "two");
    pass(9).await;
    assert!(!one.leadership.is_held(), "the renew deadline has passed");
    assert!(!two.leadership.is_held(), "the lease has not");
    pass(3).await;
    assert!(two.leadership.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_is_none_before_others_may_lead() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    store.lock().unwrap().is_down = true;
    let start = Instant::now();
    one.leadership.lost().await;
    assert!(start.elapsed() <= timing().renew_deadline);
    one.elector.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_of_the_api_server_is_survived() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    store.lock().unwrap().is_down = true;
    pass(6).await;
    store.lock().unwrap().is_down = false;
    pass(30).await;
    assert!(one.leadership.is_held());
}

/// The connection that renewed the lease is dead, without notice.
#[tokio::test(start_paused = true)]
async fn an_unanswered_renewal_is_repeated_before_the_lease_is_lost() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    for _ in 0..3 {
        store.lock().unwrap().unanswered = 1;
        pass(12).await;
        assert!(one.leadership.is_held());
    }
}

/// Each renewal counts from when it was sent, and does not wait for the previous answer.
#[tokio::test(start_paused = true)]
async fn answers_after_five_seconds_do_not_cost_the_lease() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    let two = start(&store, "two");
    store.lock().unwrap().delay = Duration::from_secs(5);
    pass(120).await;
    assert!(one.leadership.is_held() && !two.leadership.is_held());
    store.lock().unwrap().delay = Duration::from_secs(6);
    pass(60).await;
    assert!(
        !one.leadership.is_held(),
        "a renewal that is answered after the deadline renews nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_is_made_again_by_the_leader() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    store.lock().unwrap().lease = None;
    pass(30).await;
    assert!(one.leadership.is_held());
    assert_eq!(holder(&store), "one");
    store.lock().unwrap().lease = None;
    one.release.cancel();
    one.elector.await.unwrap();
    assert!(
        store.lock().unwrap().lease.is_none(),
        "there is nothing to hand over"
    );
}

/// As in a SIGSTOP, the clock continues and no timer fires.
#[tokio::test(start_paused = true)]
async fn a_process_that_sleeps_past_its_lease_has_lost_it_when_it_wakes() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    advance(Duration::from_secs(20)).await;
    assert!(!one.leadership.is_held());
    one.elector.await.unwrap();
    assert!(!one.leadership.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_by_force_gives_up() {
    let store = Shared::default();
    let one = start(&store, "one");
    one.leadership.acquired().await;
    {
        let mut store = store.lock().unwrap();
        let lease = store.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = json!("another");
        lease["metadata"]["resourceVersion"] = json!("99");
    }
    one.elector.await.unwrap();
    assert!(!one.leadership.is_held());
    assert_eq!(holder(&store), "another");
}

#[test]
fn times_that_do_not_fit_together_are_refused() {
    let of = |lease, deadline, retry| {
        let seconds = Duration::from_secs;
        Timing::new(seconds(lease), seconds(deadline), seconds(retry))
    };
    assert_eq!(of(10, 10, 2), Err(TimingError::LeaseTooShort));
    assert_eq!(of(15, 2, 2), Err(TimingError::DeadlineTooShort));
    assert_eq!(of(15, 10, 0), Err(TimingError::NoPause));
    assert_eq!(of(90_000, 10, 2), Err(TimingError::LeaseTooLong));
    assert!(of(15, 10, 2).is_ok());
}

#[test]
fn no_two_processes_of_a_host_have_the_same_identity() {
    assert_ne!(holder_identity("host"), holder_identity("host"));
}
