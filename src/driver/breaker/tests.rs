use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::api::retry::backoff;
use cmi_driver::{MachineClass, ProviderSpec, SecretValue, USER_DATA};

fn class(spec: &Value, secrets: &[(&str, &str)]) -> MachineClass {
    MachineClass {
        provider_spec: ProviderSpec(spec.as_object().unwrap().clone()),
        secrets: secrets
            .iter()
            .map(|(key, value)| ((*key).to_owned(), SecretValue::from(value.as_bytes().to_vec())))
            .collect(),
    }
}

fn key(spec: &Value, secrets: &[(&str, &str)]) -> ClassKey {
    ClassKey::of(&class(spec, secrets), &"/meta/tags".parse().unwrap())
}

#[test]
fn machines_of_one_class_share_a_breaker_key() {
    let of = |machine: &str, token: &str| {
        key(
            &json!({"size": "s", "meta": {"tags": {"team": "a", "capcmi.io/machine": machine}}}),
            &[("token", "t"), (USER_DATA, token)],
        )
    };
    assert_eq!(of("one", "join-1"), of("two", "join-2"));
}

#[test]
fn another_size_zone_tag_or_credential_is_another_key() {
    let base = json!({"size": "s", "meta": {"tags": {"team": "a"}}});
    let credentials: &[(&str, &str)] = &[("token", "t")];
    let others = [
        key(
            &json!({"size": "l", "meta": {"tags": {"team": "a"}}}),
            credentials,
        ),
        key(
            &json!({"size": "s", "meta": {"tags": {"team": "b"}}}),
            credentials,
        ),
        key(
            &json!({"size": "s", "failureDomain": "z", "meta": {"tags": {"team": "a"}}}),
            credentials,
        ),
        key(&base, &[("token", "u")]),
    ];
    for other in others {
        assert_ne!(key(&base, credentials), other);
    }
}

/// The machines that were woken, in order.
#[derive(Clone, Default)]
struct Woken(Arc<Mutex<Vec<String>>>);

impl Woken {
    fn waker(&self, uid: &str) -> Waker {
        let (woken, uid) = (self.clone(), uid.to_owned());
        Waker::new(move || woken.0.lock().push(uid))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Breakers {
    /// Queues a machine that finds an open breaker.
    fn wait(&self, key: &ClassKey, uid: &str, waker: Waker) {
        assert!(self.begin_or_wait(*key, uid, false, waker).is_none());
    }

    /// Asks for a create, and does not wait for it.
    fn begin(&self, key: &ClassKey, uid: &str, requested: bool) -> Option<Attempt<'_>> {
        let attempt = self.begin_or_wait(*key, uid, requested, Waker::new(|| {}));
        if attempt.is_none() {
            self.forget(uid);
        }
        attempt
    }

    /// Lets a create of a machine through, which finds no capacity.
    fn exhaust(&self, key: &ClassKey, uid: &str, waker: Waker) {
        let attempt = self.begin_or_wait(*key, uid, false, waker).unwrap();
        attempt.record(&exhausted());
    }

    /// Does the same for a machine that is deleted then.
    fn exhaust_once(&self, key: &ClassKey) {
        self.exhaust(key, "another", Waker::new(|| {}));
        self.forget("another");
    }

    /// Asks for a create of another machine.
    fn attempt(&self, key: &ClassKey) -> Option<Attempt<'_>> {
        self.begin(key, "another", false)
    }
}

fn exhausted() -> Result<(), Status> {
    Err(Status::new(Code::ResourceExhausted, "full"))
}

/// Returns breakers whose driver has reported exhausted capacity, with this many waiting machines.
fn open(waiting: usize) -> (Breakers, ClassKey, Woken) {
    let (breakers, key, woken) = (Breakers::default(), key(&json!({}), &[]), Woken::default());
    breakers.exhaust_once(&key);
    for n in 0..waiting {
        let uid = format!("m-{n}");
        breakers.wait(&key, &uid, woken.waker(&uid));
    }
    (breakers, key, woken)
}

async fn tick(breakers: &Breakers, seconds: u64) {
    for _ in 0..seconds {
        tokio::time::advance(Duration::from_secs(1)).await;
        breakers.wake_due();
    }
}

/// CTL-CR-08
#[tokio::test(start_paused = true)]
async fn exhaustion_stops_creates_for_ten_minutes_or_the_drivers_time() {
    for (asked, seconds) in [(None, 600), (Some(30), 30), (Some(1), 5), (Some(1_000_000), 3600)] {
        let breakers = Breakers::default();
        let (one, other) = (key(&json!({"a": 1}), &[]), key(&json!({"a": 2}), &[]));
        let status = Status::new(Code::ResourceExhausted, "full");
        let answer: Result<(), _> = Err(match asked {
            Some(asked) => status.with_retry_after(Duration::from_secs(asked)),
            None => status,
        });
        breakers.attempt(&one).unwrap().record(&answer);
        tick(&breakers, seconds - 1).await;
        assert!(breakers.attempt(&one).is_none(), "{asked:?}");
        assert!(breakers.attempt(&other).is_some());
        tick(&breakers, 1).await;
        assert!(breakers.attempt(&one).is_some(), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_errors_leave_a_closed_breaker_closed() {
    let (breakers, key) = (Breakers::default(), key(&json!({}), &[]));
    let down: Result<(), _> = Err(Status::new(Code::Unavailable, "down"));
    breakers.attempt(&key).unwrap().record(&down);
    assert!(breakers.attempt(&key).is_some());
    assert_eq!((breakers.count().open, breakers.count().half_open), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn after_its_pause_the_breaker_admits_one_machine_and_then_twice_as_many() {
    let (breakers, key, woken) = open(20);
    tick(&breakers, 599).await;
    assert!(woken.take().is_empty());
    tick(&breakers, 1).await;
    assert_eq!(woken.take(), ["m-0"]);
    let mut rounds = Vec::new();
    let mut uids = vec!["m-0".to_owned()];
    while !uids.is_empty() {
        let attempts: Vec<_> = uids
            .iter()
            .map(|uid| breakers.begin(&key, uid, false).unwrap())
            .collect();
        tick(&breakers, 10).await;
        assert!(woken.take().is_empty(), "{uids:?} are under way");
        for attempt in attempts {
            attempt.record(&Ok(()));
        }
        rounds.push(uids.len());
        tick(&breakers, 1).await;
        uids = woken.take();
    }
    assert_eq!(rounds, [1, 2, 4, 8, 5]);
    assert!(breakers.by_class.lock().is_empty(), "it is closed");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_finds_no_room_opens_it_again() {
    let (breakers, key, woken) = open(2);
    tick(&breakers, 600).await;
    assert_eq!(woken.take(), ["m-0"]);
    breakers.exhaust(&key, "m-0", woken.waker("m-0"));
    tick(&breakers, 599).await;
    assert!(woken.take().is_empty());
    tick(&breakers, 1).await;
    assert_eq!(woken.take(), ["m-1"], "one after the other");
    tick(&breakers, 1).await;
    assert_eq!(woken.take(), ["m-0"], "it waits again");
}

/// The machine may have been deleted, and its create abandoned.
#[tokio::test(start_paused = true)]
async fn one_that_does_not_find_out_holds_the_others_up_for_a_second() {
    let (breakers, key, woken) = open(3);
    tick(&breakers, 600).await;
    assert_eq!(woken.take(), ["m-0"]);
    tick(&breakers, 1).await;
    assert_eq!(woken.take(), ["m-1"], "the first one did not come");
    drop(breakers.attempt(&key).unwrap());
    tick(&breakers, backoff(2, 0.0).as_secs()).await;
    assert_eq!(woken.take(), ["m-2"], "the second one was not answered");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_vm_frees_room_for_all_classes_of_its_account_only() {
    let breakers = Breakers::default();
    let woken = Woken::default();
    let theirs = key(&json!({"size": "s"}), &[("token", "theirs")]);
    let ours = [json!({"size": "s"}), json!({"size": "l"})].map(|spec| key(&spec, &[("token", "ours")]));
    for (n, key) in ours.iter().chain([&theirs]).enumerate() {
        breakers.exhaust_once(key);
        for m in 0..2 {
            let uid = format!("{n}-{m}");
            breakers.wait(key, &uid, woken.waker(&uid));
        }
    }
    breakers.on_freed(ours[0].account);
    tick(&breakers, backoff(1, 0.0).as_secs()).await;
    let mut uids = woken.take();
    uids.sort_unstable();
    assert_eq!(uids, ["0-0", "1-0"], "one of each class");
}

#[tokio::test(start_paused = true)]
async fn a_hint_of_room_that_comes_while_one_machine_finds_out_is_not_lost() {
    let (breakers, key, woken) = open(2);
    tick(&breakers, 600).await;
    assert_eq!(woken.take(), ["m-0"]);
    let attempt = breakers.attempt(&key).unwrap();
    breakers.on_freed(key.account);
    attempt.record(&exhausted());
    tick(&breakers, backoff(1, 0.0).as_secs()).await;
    assert_eq!(woken.take(), ["m-1"]);
}

/// A rollout of another class deletes a VM every second.
#[tokio::test(start_paused = true)]
async fn hints_of_room_that_prove_wrong_have_a_class_tried_ever_more_rarely() {
    let (breakers, key, woken) = open(1);
    let start = Instant::now();
    let mut tries = Vec::new();
    while start.elapsed() < Duration::from_mins(5) {
        tick(&breakers, 1).await;
        breakers.on_freed(key.account);
        for uid in woken.take() {
            tries.push(start.elapsed().as_secs());
            breakers.exhaust(&key, &uid, woken.waker(&uid));
        }
    }
    assert_eq!(tries, [5, 15, 35, 75, 155]);
    breakers.by_class.lock().get_mut(&key).unwrap().until = Instant::now();
    breakers.attempt(&key).unwrap().record(&Ok(()));
    tick(&breakers, 1).await;
    assert_eq!(woken.take(), ["m-0"]);
    breakers.exhaust(&key, "m-0", woken.waker("m-0"));
    breakers.on_freed(key.account);
    tick(&breakers, 5).await;
    assert_eq!(
        woken.take(),
        ["m-0"],
        "a create that succeeds makes hints believed again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_vm_and_a_late_create_let_one_machine_try_soon() {
    for is_freed in [true, false] {
        let (breakers, key, woken) = (Breakers::default(), key(&json!({}), &[]), Woken::default());
        let mut late: Vec<_> = (0..3).map(|_| breakers.attempt(&key).unwrap()).collect();
        late.pop().unwrap().record(&exhausted());
        breakers.forget("another");
        for uid in ["m-0", "m-1"] {
            breakers.wait(&key, uid, woken.waker(uid));
        }
        for attempt in late {
            if is_freed {
                drop(attempt);
                breakers.on_freed(key.account);
            } else {
                attempt.record(&Ok(()));
            }
        }
        tick(&breakers, backoff(1, 0.0).as_secs() - 1).await;
        assert!(woken.take().is_empty(), "not in a loop");
        tick(&breakers, 1).await;
        assert_eq!(woken.take(), ["m-0"]);
    }
}

/// Several machines of a class may get the annotation, and only one machine tries immediately.
#[tokio::test(start_paused = true)]
async fn a_try_that_an_operator_asks_for_is_admitted_at_once() {
    let (breakers, key, _) = open(1);
    assert!(breakers.attempt(&key).is_none());
    let attempt = breakers.begin(&key, "m-0", true).unwrap();
    assert!(breakers.begin(&key, "m-1", true).is_none(), "one finds out");
    attempt.record(&exhausted());
    assert!(breakers.attempt(&key).is_none());
}

/// A machine that tries on its own leaves the queue. Otherwise, it would be woken in vain.
#[tokio::test(start_paused = true)]
async fn machine_that_tries_leaves_the_queue() {
    let (breakers, key, woken) = open(2);
    tokio::time::advance(Duration::from_mins(10)).await;
    breakers.begin(&key, "m-0", false).unwrap().record(&Ok(()));
    tick(&breakers, 1).await;
    assert_eq!(woken.take(), ["m-1"]);
    assert_eq!(breakers.count().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_no_more_is_not_woken() {
    let (breakers, _, woken) = open(2);
    breakers.forget("m-0");
    tick(&breakers, 600).await;
    assert_eq!(woken.take(), ["m-1"]);
}
