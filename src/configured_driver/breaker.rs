//! A circuit breaker for creates: none where there is known to be no room, and one at a time to find out
//! whether there is some again.
//!
//! There is one for each class. It is closed while nothing is known against its creates. An answer that
//! capacity is exhausted opens it, and creates are refused without a call. It is half open when there may be
//! room again: its time is over, a VM that was made with the same credentials is gone (a quota is as a rule
//! one of an account, and a driver does not say of which classes), a create that was under way succeeded, a
//! person asks for a try, or a process that has just started has a machine that was refused before. Then one
//! create is let through. When it succeeds the breaker recovers: those that wait are called, two for each
//! create that succeeds, so that a fleet comes back at the pace of the back end, and in doubling numbers.
//! When it does not the breaker is open again, and signs that prove wrong count for less and less.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::permits::Waker;
use crate::retry::{self, LONG_WAIT, backoff};
use cmi_driver::{Code, JsonPointer, MachineClass, Secrets, Status, USER_DATA, USER_DATA_FORMAT, tags};

/// One that may create, and does not within this time, is not waited for: it may have been deleted meanwhile.
const TRIAL_EXPECTED_WITHIN: Duration = Duration::from_secs(10);

/// What shares a quota: a provider spec without the machine's identity, and the credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassKey {
    spec: [u8; 32],
    account: CredentialsKey,
}

/// What credentials open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CredentialsKey([u8; 32]);

/// The breakers of one driver; those that are closed are not kept.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    classes: Mutex<HashMap<ClassKey, Breaker>>,
}

/// Why a create may be let through that would else be refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialReason {
    /// A person has changed something, to have it tried at once.
    pub requested: bool,
    /// The machine was refused before, perhaps by the driver of a process before this one.
    pub recalled: bool,
}

/// A create was not made, since there is known to be no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("capacity was exhausted for another machine of this class; creates of the class are held back")]
pub struct CircuitOpen;

/// Whether an error, or one that led to it, is [`HeldBack`].
pub fn is_circuit_open(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(<dyn Error>::is::<CircuitOpen>)
}

/// A create that was let through. One that is dropped before it is answered has said nothing.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    breakers: &'a Breakers,
    key: ClassKey,
    /// Whether the breaker counts it: it was not closed.
    counted: bool,
}

#[derive(Debug)]
struct Breaker {
    state: State,
    /// When capacity was exhausted last.
    exhausted_at: Instant,
    /// Creates in a row that did not succeed, of those that were to find out.
    failures: u32,
    /// Signs of room in a row that proved wrong.
    wrong_signs: u32,
    /// Whether a sign of room ended its wait, or is to end it.
    follows_sign: bool,
    /// Whether there was one while a create was finding out.
    sign_meanwhile: bool,
    /// Creates that were let through and have no answer.
    in_flight: u32,
    places: u64,
    waiting: BTreeMap<u64, Waiter>,
}

#[derive(Debug)]
enum State {
    /// No create is let through before this time.
    Open(Instant),
    /// One is, and this one is expected to make it since then.
    HalfOpen(Option<Arc<str>>, Instant),
    /// So many are at a time; the last were called then.
    Recovering(u32, Instant),
}

struct Waiter {
    uid: Arc<str>,
    waker: Waker,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiter").field(&self.uid).finish()
    }
}

impl ClassKey {
    /// The key of a class, in which the machine's identity stands under `tag_path`.
    pub(super) fn of(class: &MachineClass, tag_path: &JsonPointer) -> Self {
        let mut spec = class.provider_spec.clone();
        spec.remove_tags(tag_path, &tags::RESERVED);
        // Objects are kept in the order of their keys.
        let spec = Sha256::digest(Value::Object(spec.0).to_string().as_bytes()).into();
        let account = CredentialsKey::of(&class.secrets);
        Self { spec, account }
    }
}

impl CredentialsKey {
    pub(super) fn of(secrets: &Secrets) -> Self {
        let mut hash = Sha256::new();
        for (key, value) in secrets.iter() {
            if key != USER_DATA && key != USER_DATA_FORMAT {
                hash_bytes(&mut hash, key.as_bytes());
                hash_bytes(&mut hash, value.expose());
            }
        }
        Self(hash.finalize().into())
    }
}

fn hash_bytes(hash: &mut Sha256, bytes: &[u8]) {
    hash.update(bytes.len().to_le_bytes());
    hash.update(bytes);
}

impl Breakers {
    /// Whether `uid` may go on to a create of this class. It is asked before anything is done for the create,
    /// and expected to make it soon.
    pub(super) fn allows(&self, key: &ClassKey, uid: &str, trial: TrialReason) -> bool {
        let now = Instant::now();
        let mut classes = self.lock();
        let Some(breaker) = classes.get_mut(key) else {
            if trial.recalled {
                let state = State::HalfOpen(Some(uid.into()), now);
                classes.insert(key.clone(), Breaker::new(state, now));
            }
            return true;
        };
        breaker.allows(uid, trial, now)
    }

    /// Lets a create through.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED from [`HeldBack`].
    pub(super) fn attempt(&self, key: &ClassKey) -> Result<Attempt<'_>, Status> {
        let mut classes = self.lock();
        let counted = match classes.get_mut(key) {
            None => false,
            Some(breaker) => {
                if !breaker.has_room(Instant::now()) {
                    return Err(refused());
                }
                breaker.in_flight += 1;
                true
            }
        };
        Ok(Attempt {
            breakers: self,
            key: key.clone(),
            counted,
        })
    }

    /// Has `uid` wait until there is room; `waker` is called then.
    pub(super) fn wait(&self, key: &ClassKey, uid: &str, waker: Waker) {
        let mut classes = self.lock();
        let Some(breaker) = classes.get_mut(key) else {
            drop(classes);
            // There is room already.
            waker();
            return;
        };
        breaker.wait(uid, waker);
    }

    /// Takes out of all queues one that is no more.
    pub(super) fn forget(&self, uid: &str) {
        for breaker in self.lock().values_mut() {
            breaker.waiting.retain(|_, waiter| *waiter.uid != *uid);
        }
    }

    /// Takes note of an initialization that failed: exhausted is exhausted.
    pub(super) fn note_failure(&self, key: &ClassKey, status: &Status) {
        if status.code() == Code::ResourceExhausted {
            self.on_exhausted(key, status, false);
        }
    }

    /// A VM of this account is gone: there may be room for each of its classes.
    pub(super) fn on_freed(&self, account: &CredentialsKey) {
        let now = Instant::now();
        let mut classes = self.lock();
        let of_account = classes.iter_mut().filter(|(key, _)| key.account == *account);
        of_account.for_each(|(_, breaker)| breaker.on_capacity_hint(now));
    }

    /// Calls those whose time has come: to be called now and then.
    pub(super) fn wake_due(&self) {
        let now = Instant::now();
        let mut wakers = Vec::new();
        self.lock().retain(|_, breaker| {
            wakers.extend(breaker.wake_due(now));
            !breaker.is_closed(now)
        });
        for waker in wakers {
            waker();
        }
    }

    fn on_exhausted(&self, key: &ClassKey, status: &Status, counted: bool) {
        let now = Instant::now();
        let mut classes = self.lock();
        classes
            .entry(key.clone())
            .or_insert_with(|| Breaker::new(State::HalfOpen(None, now), now))
            .on_exhausted(retry::asked(status), counted, now);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClassKey, Breaker>> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused() -> Status {
    Status::new(Code::ResourceExhausted, CircuitOpen.to_string())
        .with_source(CircuitOpen)
        .never_sent()
}

impl Attempt<'_> {
    /// Whether the create is still to be made: the breaker may have opened since, for the answer to another.
    pub(super) fn check(&self) -> Result<(), Status> {
        let is_open = match self.breakers.lock().get(&self.key) {
            Some(breaker) => !self.counted && matches!(breaker.state, State::Open(_)),
            None => false,
        };
        if is_open { Err(refused()) } else { Ok(()) }
    }

    /// Takes note of the driver's answer.
    pub(super) fn record<T>(mut self, answer: &Result<T, Status>) {
        let counted = std::mem::take(&mut self.counted);
        match answer {
            Ok(_) => {
                let wakers = self
                    .breakers
                    .lock()
                    .get_mut(&self.key)
                    .map(|breaker| breaker.on_success(counted, Instant::now()));
                for waker in wakers.into_iter().flatten() {
                    waker();
                }
            }
            Err(status) if is_circuit_open(status) => self.counted = counted,
            Err(status) if status.code() == Code::ResourceExhausted => {
                self.breakers.on_exhausted(&self.key, status, counted);
            }
            Err(_) => self.counted = counted,
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.counted
            && let Some(breaker) = self.breakers.lock().get_mut(&self.key)
        {
            breaker.on_inconclusive(Instant::now());
        }
    }
}

impl Breaker {
    fn new(state: State, now: Instant) -> Self {
        Self {
            state,
            exhausted_at: now,
            failures: 0,
            wrong_signs: 0,
            follows_sign: false,
            sign_meanwhile: false,
            in_flight: 0,
            places: 0,
            waiting: BTreeMap::new(),
        }
    }

    fn allows(&mut self, uid: &str, trial: TrialReason, now: Instant) -> bool {
        let allows = match &self.state {
            State::Open(until) => now >= *until || trial.requested,
            State::HalfOpen(expected, since) => {
                let is_expected = expected.as_deref().is_none_or(|expected| expected == uid);
                self.in_flight == 0
                    && (is_expected
                        || trial.requested
                        || now.saturating_duration_since(*since) >= TRIAL_EXPECTED_WITHIN)
            }
            State::Recovering(allowed, _) => return self.in_flight < *allowed,
        };
        if allows {
            self.state = State::HalfOpen(Some(uid.into()), now);
        }
        allows
    }

    fn has_room(&mut self, now: Instant) -> bool {
        match &self.state {
            State::Open(until) if now >= *until => {
                self.state = State::HalfOpen(None, now);
                true
            }
            State::Open(_) => false,
            State::HalfOpen(..) => self.in_flight == 0,
            State::Recovering(allowed, _) => self.in_flight < *allowed,
        }
    }

    /// One place for each, the same one as before for one that waits already.
    fn wait(&mut self, uid: &str, waker: Waker) {
        let stands = self.waiting.iter().find(|(_, waiter)| *waiter.uid == *uid);
        let number = if let Some((number, _)) = stands {
            *number
        } else {
            self.places += 1;
            self.places
        };
        let uid = uid.into();
        self.waiting.insert(number, Waiter { uid, waker });
    }

    fn on_exhausted(&mut self, asked: Option<Duration>, counted: bool, now: Instant) {
        self.in_flight -= u32::from(counted);
        let was_open = match self.state {
            // Others that were under way at the same time.
            State::Open(until) => Some(until),
            State::HalfOpen(..) | State::Recovering(..) => {
                self.failures = self.failures.saturating_add(1);
                let was_sign = std::mem::take(&mut self.follows_sign);
                self.wrong_signs = if was_sign {
                    self.wrong_signs.saturating_add(1)
                } else {
                    0
                };
                None
            }
        };
        let wait = match asked {
            Some(asked) => asked.max(backoff(self.failures, 0.0)),
            None => LONG_WAIT,
        };
        self.exhausted_at = now;
        let until = now + wait;
        self.state = State::Open(was_open.map_or(until, |was| was.max(until)));
        if std::mem::take(&mut self.sign_meanwhile) {
            self.on_capacity_hint(now);
        }
    }

    /// A create of the class succeeded. Those that are to be called now.
    fn on_success(&mut self, counted: bool, now: Instant) -> Vec<Waker> {
        self.in_flight -= u32::from(counted);
        let allowed = match self.state {
            // It was under way when another one found no room.
            State::Open(_) => {
                self.on_capacity_hint(now);
                return Vec::new();
            }
            State::HalfOpen(..) if !counted => return Vec::new(),
            State::HalfOpen(..) => 2,
            State::Recovering(allowed, _) => allowed.saturating_add(1),
        };
        self.failures = 0;
        self.wrong_signs = 0;
        self.follows_sign = false;
        self.sign_meanwhile = false;
        self.state = State::Recovering(allowed, now);
        self.wake(2)
    }

    /// The create that was let through has not found out whether there is room.
    fn on_inconclusive(&mut self, now: Instant) {
        self.in_flight -= 1;
        if matches!(self.state, State::HalfOpen(..)) {
            self.failures = self.failures.saturating_add(1);
            self.state = State::Open(now + backoff(self.failures, 0.0));
        }
    }

    /// There may be room before the time that the driver asked for; soon, but not at once, and later each
    /// time that it proves wrong, so that a fleet that is replaced has no class tried in vain all the while.
    fn on_capacity_hint(&mut self, now: Instant) {
        match &mut self.state {
            State::Open(until) => {
                let soon = (self.exhausted_at + backoff(self.wrong_signs.saturating_add(1), 0.0)).max(now);
                if soon < *until {
                    *until = soon;
                    self.follows_sign = true;
                }
            }
            State::HalfOpen(..) | State::Recovering(..) => self.sign_meanwhile = true,
        }
    }

    fn wake_due(&mut self, now: Instant) -> Vec<Waker> {
        match &self.state {
            State::Open(until) if now >= *until && self.in_flight == 0 => self.wake_one(now),
            State::HalfOpen(_, since)
                if self.in_flight == 0 && now.saturating_duration_since(*since) >= TRIAL_EXPECTED_WITHIN =>
            {
                self.wake_one(now)
            }
            State::Recovering(allowed, since)
                if self.in_flight == 0 && now.saturating_duration_since(*since) >= TRIAL_EXPECTED_WITHIN =>
            {
                let allowed = *allowed;
                self.state = State::Recovering(allowed, now);
                self.wake(allowed)
            }
            State::Open(_) | State::HalfOpen(..) | State::Recovering(..) => Vec::new(),
        }
    }

    /// Calls the one that is to find out.
    fn wake_one(&mut self, now: Instant) -> Vec<Waker> {
        let Some((_, Waiter { uid, waker })) = self.waiting.pop_first() else {
            return Vec::new();
        };
        self.state = State::HalfOpen(Some(uid), now);
        vec![waker]
    }

    fn wake(&mut self, most: u32) -> Vec<Waker> {
        (0..most)
            .map_while(|_| self.waiting.pop_first())
            .map(|(_, waiter)| waiter.waker)
            .collect()
    }

    /// Whether nothing is known any more against creates, and nothing waits.
    fn is_closed(&self, now: Instant) -> bool {
        let is_over = match &self.state {
            State::Open(until) => now >= *until,
            State::HalfOpen(_, since) => now.saturating_duration_since(*since) >= TRIAL_EXPECTED_WITHIN,
            State::Recovering(..) => true,
        };
        is_over && self.in_flight == 0 && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cmi_driver::{ProviderSpec, SecretValue};

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
    fn machines_of_one_class_share_a_key_whatever_their_identity_and_bootstrap_data() {
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

    /// Those that were called, in order.
    #[derive(Clone, Default)]
    struct Woken(Arc<Mutex<Vec<String>>>);

    impl Woken {
        fn waker(&self, uid: &str) -> Waker {
            let (calls, uid) = (self.clone(), uid.to_owned());
            Box::new(move || calls.0.lock().unwrap().push(uid))
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn exhausted() -> Result<(), Status> {
        Err(Status::new(Code::ResourceExhausted, "full"))
    }

    const NONE: TrialReason = TrialReason {
        requested: false,
        recalled: false,
    };

    /// One whose driver has answered that capacity is exhausted, with so many machines that wait.
    fn open(waiting: usize) -> (Breakers, ClassKey, Woken) {
        let (breakers, key, calls) = (Breakers::default(), key(&json!({}), &[]), Woken::default());
        breakers.attempt(&key).unwrap().record(&exhausted());
        for n in 0..waiting {
            let uid = format!("m-{n}");
            assert!(!breakers.allows(&key, &uid, NONE));
            breakers.wait(&key, &uid, calls.waker(&uid));
        }
        (breakers, key, calls)
    }

    async fn tick(breakers: &Breakers, seconds: u64) {
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            breakers.wake_due();
        }
    }

    /// CTL-CR-08
    #[tokio::test(start_paused = true)]
    async fn exhausted_holds_creates_of_its_class_back_for_ten_minutes_or_as_long_as_the_driver_says() {
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
            let refused = breakers.attempt(&one).unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted);
            assert!(is_circuit_open(&refused), "{asked:?}");
            assert!(breakers.attempt(&other).is_ok());
            tick(&breakers, 1).await;
            assert!(breakers.attempt(&one).is_ok(), "{asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_errors_leave_a_closed_breaker_closed() {
        let (breakers, key) = (Breakers::default(), key(&json!({}), &[]));
        let down: Result<(), _> = Err(Status::new(Code::Unavailable, "down"));
        breakers.attempt(&key).unwrap().record(&down);
        assert!(breakers.allows(&key, "m", NONE) && breakers.lock().is_empty());
    }

    /// What was let through before it opened, and has waited for the driver's rate since.
    #[tokio::test(start_paused = true)]
    async fn a_create_that_is_under_way_and_not_made_is_held_back_too() {
        let (breakers, key) = (Breakers::default(), key(&json!({}), &[]));
        let (first, second) = (breakers.attempt(&key).unwrap(), breakers.attempt(&key).unwrap());
        assert!(second.check().is_ok());
        first.record(&exhausted());
        assert!(is_circuit_open(&second.check().unwrap_err()));
    }

    #[tokio::test(start_paused = true)]
    async fn when_its_time_is_over_one_machine_finds_out_and_the_others_come_in_doubling_numbers() {
        let (breakers, key, calls) = open(20);
        tick(&breakers, 599).await;
        assert!(calls.take().is_empty());
        tick(&breakers, 1).await;
        assert_eq!(calls.take(), ["m-0"]);
        assert!(!breakers.allows(&key, "another", NONE), "one finds out");
        let mut rounds = Vec::new();
        let mut called = vec!["m-0".to_owned()];
        while !called.is_empty() {
            let attempts: Vec<_> = called
                .iter()
                .map(|uid| {
                    assert!(breakers.allows(&key, uid, NONE), "{uid}");
                    breakers.attempt(&key).unwrap()
                })
                .collect();
            let more = breakers.allows(&key, "another", NONE);
            assert_eq!(more, called.len() == 5, "{called:?} are under way");
            for attempt in attempts {
                attempt.record(&Ok(()));
            }
            rounds.push(called.len());
            called = calls.take();
        }
        assert_eq!(rounds, [1, 2, 4, 8, 5]);
        tick(&breakers, 1).await;
        assert!(breakers.lock().is_empty(), "it is closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_finds_no_room_opens_it_again() {
        let (breakers, key, calls) = open(2);
        tick(&breakers, 600).await;
        assert_eq!(calls.take(), ["m-0"]);
        assert!(breakers.allows(&key, "m-0", NONE));
        breakers.attempt(&key).unwrap().record(&exhausted());
        breakers.wait(&key, "m-0", calls.waker("m-0"));
        tick(&breakers, 599).await;
        assert!(calls.take().is_empty());
        tick(&breakers, 1).await;
        assert_eq!(calls.take(), ["m-1"], "one after the other");
    }

    /// It may have been deleted meanwhile, and its create given up.
    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_find_out_holds_the_others_up_for_seconds() {
        let (breakers, key, calls) = open(3);
        tick(&breakers, 600).await;
        assert_eq!(calls.take(), ["m-0"]);
        tick(&breakers, TRIAL_EXPECTED_WITHIN.as_secs()).await;
        assert_eq!(calls.take(), ["m-1"], "the first one did not come");
        drop(breakers.attempt(&key).unwrap());
        tick(&breakers, backoff(2, 0.0).as_secs()).await;
        assert_eq!(calls.take(), ["m-2"], "the second one was not answered");
    }

    #[tokio::test(start_paused = true)]
    async fn room_that_a_vm_leaves_may_be_for_any_class_of_its_account_and_for_no_other_account() {
        let breakers = Breakers::default();
        let calls = Woken::default();
        let theirs = key(&json!({"size": "s"}), &[("token", "theirs")]);
        let ours = [json!({"size": "s"}), json!({"size": "l"})].map(|spec| key(&spec, &[("token", "ours")]));
        for (n, key) in ours.iter().chain([&theirs]).enumerate() {
            breakers.attempt(key).unwrap().record(&exhausted());
            for m in 0..2 {
                let uid = format!("{n}-{m}");
                breakers.wait(key, &uid, calls.waker(&uid));
            }
        }
        breakers.on_freed(&ours[0].account);
        tick(&breakers, backoff(1, 0.0).as_secs()).await;
        let mut called = calls.take();
        called.sort_unstable();
        assert_eq!(called, ["0-0", "1-0"], "one of each class");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_of_room_that_comes_while_one_machine_finds_out_is_not_lost() {
        let (breakers, key, calls) = open(2);
        tick(&breakers, 600).await;
        assert_eq!(calls.take(), ["m-0"]);
        let attempt = breakers.attempt(&key).unwrap();
        breakers.on_freed(&key.account);
        attempt.record(&exhausted());
        tick(&breakers, backoff(1, 0.0).as_secs()).await;
        assert_eq!(calls.take(), ["m-1"]);
    }

    /// A roll-out of another class deletes a VM every second.
    #[tokio::test(start_paused = true)]
    async fn signs_of_room_that_prove_wrong_have_a_class_tried_ever_more_rarely() {
        let (breakers, key, calls) = open(1);
        let start = Instant::now();
        let mut tries = Vec::new();
        while start.elapsed() < Duration::from_mins(5) {
            tick(&breakers, 1).await;
            breakers.on_freed(&key.account);
            for uid in calls.take() {
                tries.push(start.elapsed().as_secs());
                breakers.attempt(&key).unwrap().record(&exhausted());
                breakers.wait(&key, &uid, calls.waker(&uid));
            }
        }
        assert_eq!(tries, [5, 15, 35, 75, 155]);
        breakers.lock().get_mut(&key).unwrap().state = State::HalfOpen(None, Instant::now());
        breakers.attempt(&key).unwrap().record(&Ok(()));
        assert_eq!(calls.take(), ["m-0"]);
        breakers.attempt(&key).unwrap().record(&exhausted());
        breakers.on_freed(&key.account);
        breakers.wait(&key, "m-0", calls.waker("m-0"));
        tick(&breakers, 5).await;
        assert_eq!(
            calls.take(),
            ["m-0"],
            "a create that succeeds makes signs believed again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_is_gone_and_a_create_that_succeeds_late_have_one_machine_find_out_soon() {
        let freed = |breakers: &Breakers, key: &ClassKey| breakers.on_freed(&key.account);
        let late = |breakers: &Breakers, key: &ClassKey| {
            let attempt = Attempt {
                breakers,
                key: key.clone(),
                counted: false,
            };
            attempt.record(&Ok(()));
        };
        for is_freed in [true, false] {
            let (breakers, key, calls) = open(3);
            for _ in 0..2 {
                if is_freed {
                    freed(&breakers, &key);
                } else {
                    late(&breakers, &key);
                }
            }
            tick(&breakers, backoff(1, 0.0).as_secs() - 1).await;
            assert!(calls.take().is_empty(), "not in a loop");
            tick(&breakers, 2).await;
            assert_eq!(calls.take(), ["m-0"]);
        }
    }

    /// An annotation has it tried at once: of all machines of the class that get one, by one machine.
    #[tokio::test(start_paused = true)]
    async fn a_try_that_a_person_asks_for_is_admitted_at_once() {
        let (breakers, key, _) = open(1);
        let requested = TrialReason {
            requested: true,
            ..NONE
        };
        assert!(breakers.allows(&key, "m-0", requested));
        let attempt = breakers.attempt(&key).unwrap();
        assert!(!breakers.allows(&key, "m-1", requested), "one finds out");
        attempt.record(&exhausted());
        assert!(!breakers.allows(&key, "m-1", NONE));
    }

    #[tokio::test(start_paused = true)]
    async fn of_machines_that_recall_that_they_were_refused_one_finds_out_after_a_restart() {
        let (breakers, key, calls) = (Breakers::default(), key(&json!({}), &[]), Woken::default());
        let recalled = TrialReason {
            recalled: true,
            ..NONE
        };
        assert!(breakers.allows(&key, "m-0", recalled));
        assert!(
            breakers.allows(&key, "m-0", recalled),
            "it asks again before its create"
        );
        for uid in ["m-1", "m-2"] {
            assert!(!breakers.allows(&key, uid, recalled));
            breakers.wait(&key, uid, calls.waker(uid));
        }
        breakers.attempt(&key).unwrap().record(&Ok(()));
        assert_eq!(calls.take(), ["m-1", "m-2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_no_more_is_not_called() {
        let (breakers, _, calls) = open(2);
        breakers.forget("m-0");
        tick(&breakers, 600).await;
        assert_eq!(calls.take(), ["m-1"]);
    }
}
