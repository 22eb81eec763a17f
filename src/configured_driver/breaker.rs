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

use super::turns::Bell;
use crate::retry::{self, LONG_WAIT, backoff};
use cmi_driver::{Code, JsonPointer, MachineClass, Secrets, Status, USER_DATA, USER_DATA_FORMAT, tags};

/// One that may create, and does not within this time, is not waited for: it may have been deleted meanwhile.
const EXPECTED: Duration = Duration::from_secs(10);

/// What shares a quota: a provider spec without the machine's identity, and the credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    spec: [u8; 32],
    account: Account,
}

/// What credentials open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Account([u8; 32]);

/// The breakers of one driver; those that are closed are not kept.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    classes: Mutex<HashMap<Key, Breaker>>,
}

/// Why a create may be let through that would else be refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// A person has changed something, to have it tried at once.
    pub requested: bool,
    /// The machine was refused before, perhaps by the driver of a process before this one.
    pub recalled: bool,
}

/// A create was not made, since there is known to be no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("capacity was exhausted for another machine of this class; creates of the class are held back")]
pub struct HeldBack;

/// Whether an error, or one that led to it, is [`HeldBack`].
pub fn is_held_back(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(<dyn Error>::is::<HeldBack>)
}

/// A create that was let through. One that is dropped before it is answered has said nothing.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    breakers: &'a Breakers,
    key: Key,
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
    who: Arc<str>,
    bell: Bell,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiter").field(&self.who).finish()
    }
}

impl Key {
    /// The key of a class, in which the machine's identity stands under `tag_path`.
    pub(super) fn of(class: &MachineClass, tag_path: &JsonPointer) -> Self {
        let mut spec = class.provider_spec.clone();
        spec.remove_tags(tag_path, &tags::RESERVED);
        // Objects are kept in the order of their keys.
        let spec = Sha256::digest(Value::Object(spec.0).to_string().as_bytes()).into();
        let account = Account::of(&class.secrets);
        Self { spec, account }
    }
}

impl Account {
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
    /// Whether `who` may go on to a create of this class. It is asked before anything is done for the create,
    /// and expected to make it soon.
    pub(super) fn admits(&self, key: &Key, who: &str, trial: Trial) -> bool {
        let now = Instant::now();
        let mut classes = self.lock();
        let Some(breaker) = classes.get_mut(key) else {
            if trial.recalled {
                let state = State::HalfOpen(Some(who.into()), now);
                classes.insert(key.clone(), Breaker::new(state, now));
            }
            return true;
        };
        breaker.admits(who, trial, now)
    }

    /// Lets a create through.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED from [`HeldBack`].
    pub(super) fn pass(&self, key: &Key) -> Result<Pass<'_>, Status> {
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
        Ok(Pass {
            breakers: self,
            key: key.clone(),
            counted,
        })
    }

    /// Has `who` wait until there is room; `bell` rings then.
    pub(super) fn wait(&self, key: &Key, who: &str, bell: Bell) {
        let mut classes = self.lock();
        let Some(breaker) = classes.get_mut(key) else {
            drop(classes);
            // There is room already.
            bell();
            return;
        };
        breaker.wait(who, bell);
    }

    /// Takes out of all queues one that is no more.
    pub(super) fn withdraw(&self, who: &str) {
        for breaker in self.lock().values_mut() {
            breaker.waiting.retain(|_, waiter| *waiter.who != *who);
        }
    }

    /// Takes note of an initialization that failed: exhausted is exhausted.
    pub(super) fn note_failure(&self, key: &Key, status: &Status) {
        if status.code() == Code::ResourceExhausted {
            self.exhausted(key, status, false);
        }
    }

    /// A VM of this account is gone: there may be room for each of its classes.
    pub(super) fn freed(&self, account: &Account) {
        let now = Instant::now();
        let mut classes = self.lock();
        let of_account = classes.iter_mut().filter(|(key, _)| key.account == *account);
        of_account.for_each(|(_, breaker)| breaker.may_have_room(now));
    }

    /// Calls those whose time has come: to be called now and then.
    pub(super) fn call_waiting(&self) {
        let now = Instant::now();
        let mut bells = Vec::new();
        self.lock().retain(|_, breaker| {
            bells.extend(breaker.call_due(now));
            !breaker.is_closed(now)
        });
        for bell in bells {
            bell();
        }
    }

    fn exhausted(&self, key: &Key, status: &Status, counted: bool) {
        let now = Instant::now();
        let mut classes = self.lock();
        classes
            .entry(key.clone())
            .or_insert_with(|| Breaker::new(State::HalfOpen(None, now), now))
            .exhausted(retry::asked(status), counted, now);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Breaker>> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused() -> Status {
    Status::new(Code::ResourceExhausted, HeldBack.to_string())
        .with_source(HeldBack)
        .never_sent()
}

impl Pass<'_> {
    /// Whether the create is still to be made: the breaker may have opened since, for the answer to another.
    pub(super) fn check(&self) -> Result<(), Status> {
        let is_open = match self.breakers.lock().get(&self.key) {
            Some(breaker) => !self.counted && matches!(breaker.state, State::Open(_)),
            None => false,
        };
        if is_open { Err(refused()) } else { Ok(()) }
    }

    /// Takes note of the driver's answer.
    pub(super) fn answered<T>(mut self, answer: &Result<T, Status>) {
        let counted = std::mem::take(&mut self.counted);
        match answer {
            Ok(_) => {
                let bells = self
                    .breakers
                    .lock()
                    .get_mut(&self.key)
                    .map(|breaker| breaker.succeeded(counted, Instant::now()));
                for bell in bells.into_iter().flatten() {
                    bell();
                }
            }
            Err(status) if is_held_back(status) => self.counted = counted,
            Err(status) if status.code() == Code::ResourceExhausted => {
                self.breakers.exhausted(&self.key, status, counted);
            }
            Err(_) => self.counted = counted,
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.counted
            && let Some(breaker) = self.breakers.lock().get_mut(&self.key)
        {
            breaker.said_nothing(Instant::now());
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

    fn admits(&mut self, who: &str, trial: Trial, now: Instant) -> bool {
        let admits = match &self.state {
            State::Open(until) => now >= *until || trial.requested,
            State::HalfOpen(expected, since) => {
                let is_expected = expected.as_deref().is_none_or(|expected| expected == who);
                self.in_flight == 0
                    && (is_expected || trial.requested || now.saturating_duration_since(*since) >= EXPECTED)
            }
            State::Recovering(allowed, _) => return self.in_flight < *allowed,
        };
        if admits {
            self.state = State::HalfOpen(Some(who.into()), now);
        }
        admits
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
    fn wait(&mut self, who: &str, bell: Bell) {
        let stands = self.waiting.iter().find(|(_, waiter)| *waiter.who == *who);
        let number = if let Some((number, _)) = stands {
            *number
        } else {
            self.places += 1;
            self.places
        };
        let who = who.into();
        self.waiting.insert(number, Waiter { who, bell });
    }

    fn exhausted(&mut self, asked: Option<Duration>, counted: bool, now: Instant) {
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
            self.may_have_room(now);
        }
    }

    /// A create of the class succeeded. Those that are to be called now.
    fn succeeded(&mut self, counted: bool, now: Instant) -> Vec<Bell> {
        self.in_flight -= u32::from(counted);
        let allowed = match self.state {
            // It was under way when another one found no room.
            State::Open(_) => {
                self.may_have_room(now);
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
        self.call(2)
    }

    /// The create that was let through has not found out whether there is room.
    fn said_nothing(&mut self, now: Instant) {
        self.in_flight -= 1;
        if matches!(self.state, State::HalfOpen(..)) {
            self.failures = self.failures.saturating_add(1);
            self.state = State::Open(now + backoff(self.failures, 0.0));
        }
    }

    /// There may be room before the time that the driver asked for; soon, but not at once, and later each
    /// time that it proves wrong, so that a fleet that is replaced has no class tried in vain all the while.
    fn may_have_room(&mut self, now: Instant) {
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

    fn call_due(&mut self, now: Instant) -> Vec<Bell> {
        match &self.state {
            State::Open(until) if now >= *until && self.in_flight == 0 => self.call_one(now),
            State::HalfOpen(_, since)
                if self.in_flight == 0 && now.saturating_duration_since(*since) >= EXPECTED =>
            {
                self.call_one(now)
            }
            State::Recovering(allowed, since)
                if self.in_flight == 0 && now.saturating_duration_since(*since) >= EXPECTED =>
            {
                let allowed = *allowed;
                self.state = State::Recovering(allowed, now);
                self.call(allowed)
            }
            State::Open(_) | State::HalfOpen(..) | State::Recovering(..) => Vec::new(),
        }
    }

    /// Calls the one that is to find out.
    fn call_one(&mut self, now: Instant) -> Vec<Bell> {
        let Some((_, Waiter { who, bell })) = self.waiting.pop_first() else {
            return Vec::new();
        };
        self.state = State::HalfOpen(Some(who), now);
        vec![bell]
    }

    fn call(&mut self, most: u32) -> Vec<Bell> {
        (0..most)
            .map_while(|_| self.waiting.pop_first())
            .map(|(_, waiter)| waiter.bell)
            .collect()
    }

    /// Whether nothing is known any more against creates, and nothing waits.
    fn is_closed(&self, now: Instant) -> bool {
        let is_over = match &self.state {
            State::Open(until) => now >= *until,
            State::HalfOpen(_, since) => now.saturating_duration_since(*since) >= EXPECTED,
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

    fn key(spec: &Value, secrets: &[(&str, &str)]) -> Key {
        Key::of(&class(spec, secrets), &"/meta/tags".parse().unwrap())
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
    struct Calls(Arc<Mutex<Vec<String>>>);

    impl Calls {
        fn bell(&self, who: &str) -> Bell {
            let (calls, who) = (self.clone(), who.to_owned());
            Box::new(move || calls.0.lock().unwrap().push(who))
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn exhausted() -> Result<(), Status> {
        Err(Status::new(Code::ResourceExhausted, "full"))
    }

    const NONE: Trial = Trial {
        requested: false,
        recalled: false,
    };

    /// One whose driver has answered that capacity is exhausted, with so many machines that wait.
    fn open(waiting: usize) -> (Breakers, Key, Calls) {
        let (breakers, key, calls) = (Breakers::default(), key(&json!({}), &[]), Calls::default());
        breakers.pass(&key).unwrap().answered(&exhausted());
        for n in 0..waiting {
            let who = format!("m-{n}");
            assert!(!breakers.admits(&key, &who, NONE));
            breakers.wait(&key, &who, calls.bell(&who));
        }
        (breakers, key, calls)
    }

    async fn tick(breakers: &Breakers, seconds: u64) {
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            breakers.call_waiting();
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
            breakers.pass(&one).unwrap().answered(&answer);
            tick(&breakers, seconds - 1).await;
            let refused = breakers.pass(&one).unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted);
            assert!(is_held_back(&refused), "{asked:?}");
            assert!(breakers.pass(&other).is_ok());
            tick(&breakers, 1).await;
            assert!(breakers.pass(&one).is_ok(), "{asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_errors_leave_a_closed_breaker_closed() {
        let (breakers, key) = (Breakers::default(), key(&json!({}), &[]));
        let down: Result<(), _> = Err(Status::new(Code::Unavailable, "down"));
        breakers.pass(&key).unwrap().answered(&down);
        assert!(breakers.admits(&key, "m", NONE) && breakers.lock().is_empty());
    }

    /// What was let through before it opened, and has waited for the driver's rate since.
    #[tokio::test(start_paused = true)]
    async fn a_create_that_is_under_way_and_not_made_is_held_back_too() {
        let (breakers, key) = (Breakers::default(), key(&json!({}), &[]));
        let (first, second) = (breakers.pass(&key).unwrap(), breakers.pass(&key).unwrap());
        assert!(second.check().is_ok());
        first.answered(&exhausted());
        assert!(is_held_back(&second.check().unwrap_err()));
    }

    #[tokio::test(start_paused = true)]
    async fn when_its_time_is_over_one_machine_finds_out_and_the_others_come_in_doubling_numbers() {
        let (breakers, key, calls) = open(20);
        tick(&breakers, 599).await;
        assert!(calls.take().is_empty());
        tick(&breakers, 1).await;
        assert_eq!(calls.take(), ["m-0"]);
        assert!(!breakers.admits(&key, "another", NONE), "one finds out");
        let mut rounds = Vec::new();
        let mut called = vec!["m-0".to_owned()];
        while !called.is_empty() {
            let passes: Vec<_> = called
                .iter()
                .map(|who| {
                    assert!(breakers.admits(&key, who, NONE), "{who}");
                    breakers.pass(&key).unwrap()
                })
                .collect();
            let more = breakers.admits(&key, "another", NONE);
            assert_eq!(more, called.len() == 5, "{called:?} are under way");
            for pass in passes {
                pass.answered(&Ok(()));
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
        assert!(breakers.admits(&key, "m-0", NONE));
        breakers.pass(&key).unwrap().answered(&exhausted());
        breakers.wait(&key, "m-0", calls.bell("m-0"));
        tick(&breakers, 599).await;
        assert!(calls.take().is_empty());
        tick(&breakers, 1).await;
        assert_eq!(calls.take(), ["m-1"], "each in its turn");
    }

    /// It may have been deleted meanwhile, and its create given up.
    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_find_out_holds_the_others_up_for_seconds() {
        let (breakers, key, calls) = open(3);
        tick(&breakers, 600).await;
        assert_eq!(calls.take(), ["m-0"]);
        tick(&breakers, EXPECTED.as_secs()).await;
        assert_eq!(calls.take(), ["m-1"], "the first one did not come");
        drop(breakers.pass(&key).unwrap());
        tick(&breakers, backoff(2, 0.0).as_secs()).await;
        assert_eq!(calls.take(), ["m-2"], "the second one was not answered");
    }

    #[tokio::test(start_paused = true)]
    async fn room_that_a_vm_leaves_may_be_for_any_class_of_its_account_and_for_no_other_account() {
        let breakers = Breakers::default();
        let calls = Calls::default();
        let theirs = key(&json!({"size": "s"}), &[("token", "theirs")]);
        let ours = [json!({"size": "s"}), json!({"size": "l"})].map(|spec| key(&spec, &[("token", "ours")]));
        for (n, key) in ours.iter().chain([&theirs]).enumerate() {
            breakers.pass(key).unwrap().answered(&exhausted());
            for m in 0..2 {
                let who = format!("{n}-{m}");
                breakers.wait(key, &who, calls.bell(&who));
            }
        }
        breakers.freed(&ours[0].account);
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
        let pass = breakers.pass(&key).unwrap();
        breakers.freed(&key.account);
        pass.answered(&exhausted());
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
            breakers.freed(&key.account);
            for who in calls.take() {
                tries.push(start.elapsed().as_secs());
                breakers.pass(&key).unwrap().answered(&exhausted());
                breakers.wait(&key, &who, calls.bell(&who));
            }
        }
        assert_eq!(tries, [5, 15, 35, 75, 155]);
        breakers.lock().get_mut(&key).unwrap().state = State::HalfOpen(None, Instant::now());
        breakers.pass(&key).unwrap().answered(&Ok(()));
        assert_eq!(calls.take(), ["m-0"]);
        breakers.pass(&key).unwrap().answered(&exhausted());
        breakers.freed(&key.account);
        breakers.wait(&key, "m-0", calls.bell("m-0"));
        tick(&breakers, 5).await;
        assert_eq!(
            calls.take(),
            ["m-0"],
            "a create that succeeds makes signs believed again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_is_gone_and_a_create_that_succeeds_late_have_one_machine_find_out_soon() {
        let freed = |breakers: &Breakers, key: &Key| breakers.freed(&key.account);
        let late = |breakers: &Breakers, key: &Key| {
            let pass = Pass {
                breakers,
                key: key.clone(),
                counted: false,
            };
            pass.answered(&Ok(()));
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
        let requested = Trial {
            requested: true,
            ..NONE
        };
        assert!(breakers.admits(&key, "m-0", requested));
        let pass = breakers.pass(&key).unwrap();
        assert!(!breakers.admits(&key, "m-1", requested), "one finds out");
        pass.answered(&exhausted());
        assert!(!breakers.admits(&key, "m-1", NONE));
    }

    #[tokio::test(start_paused = true)]
    async fn of_machines_that_recall_that_they_were_refused_one_finds_out_after_a_restart() {
        let (breakers, key, calls) = (Breakers::default(), key(&json!({}), &[]), Calls::default());
        let recalled = Trial {
            recalled: true,
            ..NONE
        };
        assert!(breakers.admits(&key, "m-0", recalled));
        assert!(
            breakers.admits(&key, "m-0", recalled),
            "it asks again before its create"
        );
        for who in ["m-1", "m-2"] {
            assert!(!breakers.admits(&key, who, recalled));
            breakers.wait(&key, who, calls.bell(who));
        }
        breakers.pass(&key).unwrap().answered(&Ok(()));
        assert_eq!(calls.take(), ["m-1", "m-2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_no_more_is_not_called() {
        let (breakers, _, calls) = open(2);
        breakers.withdraw("m-0");
        tick(&breakers, 600).await;
        assert_eq!(calls.take(), ["m-1"]);
    }
}
