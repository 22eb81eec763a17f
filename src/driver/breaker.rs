//! A circuit breaker for creates: no creates while capacity is known to be exhausted, and one at a time to
//! find out whether there is capacity again.
//!
//! There is one breaker for each class. It is closed while nothing is known against creates of the class. An
//! answer that capacity is exhausted opens it, and creates are held back without a call. It becomes half open
//! when there may be capacity again: the open time is over, a VM with the same credentials is gone, a create
//! in flight succeeded, or an operator requests an attempt. The credentials matter because a quota usually
//! belongs to an account, and drivers do not report its classes.
//!
//! A half-open breaker lets one create through, and one more for each create that succeeds. So a fleet comes
//! back at the pace of the back end, in doubling numbers. If one fails, the breaker opens again, and hints
//! that prove wrong count less and less.
//!
//! A new process has closed breakers. The machines that waited retry, as many at a time as there are permits,
//! until the first answer opens the breaker again.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::waker::Waker;
use crate::api::fingerprint;
use crate::api::retry::{LONG_WAIT, backoff, requested_delay};
use crate::telemetry::metrics::BreakerCount;
use cmi_driver::{Code, JsonPointer, MachineClass, Secrets, Status, USER_DATA, USER_DATA_FORMAT, tags};

/// Why a create of a machine waits.
pub const CREATES_SUSPENDED: &str =
    "creates of this class are suspended, because another machine of the class exhausted the capacity";

/// How long an idle breaker is kept, as the last machine that it woke may still be on its way.
const KEPT_IDLE: Duration = Duration::from_secs(10);

/// A class of VMs that share a quota: a provider spec without the machine's identity, and the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassKey {
    spec: u64,
    account: u64,
}

/// The breakers of one driver, of the classes with creates or waiting machines.
#[derive(Debug, Default)]
pub struct Breakers {
    by_class: Mutex<HashMap<ClassKey, Circuit>>,
}

/// A create that was let through. An attempt that is dropped without an answer is inconclusive.
#[derive(Debug)]
pub struct Attempt<'a> {
    breakers: &'a Breakers,
    key: ClassKey,
    /// An error is that of exhausted capacity, with the time that the driver asks to wait.
    answer: Option<Result<(), Option<Duration>>>,
    /// The machine, which waits again if it finds no capacity.
    machine: Option<(Arc<str>, Waker)>,
}

/// The circuit breaker of a class. The wakers that it returns have to run without the lock.
#[derive(Debug)]
struct Circuit {
    /// No create is let through before this time.
    until: Instant,
    /// The number of creates that may run at the same time. Without a limit while the breaker is closed.
    allowed: u32,
    /// Creates that were let through and are not answered yet.
    in_flight: u32,
    /// When capacity was exhausted last.
    exhausted_at: Instant,
    /// The number of creates in a row that failed, each soon after the previous one.
    failures: u32,
    /// Whether there was a hint of capacity since the last create began.
    is_hinted: bool,
    waiting: VecDeque<(Arc<str>, Waker)>,
}

/// Returns the account that credentials belong to, as a hash. Bootstrap data says nothing about it.
pub(super) fn account(secrets: &Secrets) -> u64 {
    let is_bootstrap = |key: &str| [USER_DATA, USER_DATA_FORMAT].contains(&key);
    let own = secrets.iter().filter(|(key, _)| !is_bootstrap(key));
    let own: Vec<_> = own.map(|(key, value)| (key, value.expose())).collect();
    fingerprint(own)
}

impl ClassKey {
    /// Returns the key of a class. The machine's identity is below `tag_path` in the provider spec.
    pub(super) fn of(class: &MachineClass, tag_path: &JsonPointer) -> Self {
        let mut spec = class.provider_spec.clone();
        spec.remove_tags(tag_path, &tags::RESERVED);
        spec.remove_static_addresses();
        Self {
            spec: fingerprint(&spec.0),
            account: account(&class.secrets),
        }
    }
}

impl Breakers {
    /// Lets a create of this class through if the breaker allows one. Otherwise queues `uid`, and `waker`
    /// runs when there may be capacity. `requested` is whether an operator requests an attempt.
    pub(super) fn begin_or_wait(
        &self,
        key: ClassKey,
        uid: &str,
        requested: bool,
        waker: Waker,
    ) -> Option<Attempt<'_>> {
        let now = Instant::now();
        let mut circuits = self.by_class.lock();
        let circuit = circuits.entry(key).or_insert_with(|| Circuit::closed(now));
        if !circuit.begin(uid, requested, now) {
            circuit.wait(uid.into(), waker);
            return None;
        }
        Some(Attempt {
            breakers: self,
            key,
            answer: None,
            machine: Some((uid.into(), waker)),
        })
    }

    pub(super) fn forget(&self, uid: &str) {
        for circuit in self.by_class.lock().values_mut() {
            circuit.forget(uid);
        }
    }

    /// Counts the breakers that hold back creates, and the machines that wait.
    pub(super) fn count(&self) -> BreakerCount {
        let (mut count, now) = (BreakerCount::default(), Instant::now());
        for circuit in self.by_class.lock().values() {
            if circuit.is_open(now) {
                count.open += 1;
            } else if circuit.allowed < u32::MAX {
                count.half_open += 1;
            }
            count.waiting += u64::try_from(circuit.waiting.len()).unwrap_or(u64::MAX);
        }
        count
    }

    /// Records that a VM of this account is gone: each class of the account may have capacity.
    pub(super) fn on_freed(&self, account: u64) {
        let now = Instant::now();
        for (key, circuit) in self.by_class.lock().iter_mut() {
            if key.account == account {
                circuit.on_capacity_hint(now);
            }
        }
    }

    /// Wakes the machines whose time has come. Runs at an interval.
    pub(super) fn wake_due(&self) {
        let now = Instant::now();
        let mut wakers = Vec::new();
        self.by_class.lock().retain(|_, circuit| {
            wakers.extend(circuit.wake_due(now));
            !circuit.is_idle(now)
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Attempt<'_> {
    /// Records the driver's answer. Errors other than exhausted capacity are inconclusive.
    pub fn record<T>(mut self, answer: &Result<T, Status>) {
        self.answer = match answer {
            Ok(_) => Some(Ok(())),
            Err(status) if status.code() == Code::ResourceExhausted => Some(Err(requested_delay(status))),
            Err(_) => None,
        };
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(circuit) = self.breakers.by_class.lock().get_mut(&self.key) {
            circuit.end(self.answer.take(), self.machine.take(), Instant::now());
        }
    }
}

impl Circuit {
    /// Returns a circuit that lets every create through.
    fn closed(now: Instant) -> Self {
        Self {
            until: now,
            allowed: u32::MAX,
            in_flight: 0,
            exhausted_at: now,
            failures: 0,
            is_hinted: false,
            waiting: VecDeque::new(),
        }
    }

    /// Lets a create of a machine through and counts it, if the state allows one. An operator can request an
    /// attempt while none is in flight.
    fn begin(&mut self, uid: &str, requested: bool, now: Instant) -> bool {
        if requested && self.in_flight == 0 {
            self.until = self.until.min(now);
        }
        let is_begun = !self.is_open(now) && self.in_flight < self.allowed;
        if is_begun {
            self.in_flight += 1;
            self.is_hinted = false;
            self.forget(uid);
        }
        is_begun
    }

    /// Queues a machine. A machine that waits already keeps its place.
    fn wait(&mut self, uid: Arc<str>, waker: Waker) {
        match self.waiting.iter_mut().find(|(waiting, _)| *waiting == uid) {
            Some((_, before)) => *before = waker,
            None => self.waiting.push_back((uid, waker)),
        }
    }

    fn forget(&mut self, uid: &str) {
        self.waiting.retain(|(waiting, _)| **waiting != *uid);
    }

    /// Records the end of a create. A machine that found no capacity waits.
    fn end(
        &mut self,
        answer: Option<Result<(), Option<Duration>>>,
        machine: Option<(Arc<str>, Waker)>,
        now: Instant,
    ) {
        self.in_flight -= 1;
        match answer {
            // The create was in flight when another one found no capacity.
            Some(Ok(())) if self.is_open(now) => self.on_capacity_hint(now),
            Some(Ok(())) => {
                self.allowed = self.allowed.saturating_add(1);
                self.failures = 0;
            }
            Some(Err(asked)) => {
                self.on_exhausted(asked, now);
                self.waiting.extend(machine);
            }
            None if self.allowed == 1 && !self.is_open(now) => {
                self.failures += 1;
                self.until = now + backoff(self.failures, 0.0);
            }
            None => {}
        }
    }

    /// Records exhausted capacity, and how long the driver asks to wait. A hint that came while the create
    /// ran counts for the next create.
    fn on_exhausted(&mut self, asked: Option<Duration>, now: Instant) {
        // Otherwise another create was in flight at the same time.
        if !self.is_open(now) {
            let is_early = now.saturating_duration_since(self.exhausted_at) < LONG_WAIT;
            self.failures = if is_early { self.failures + 1 } else { 1 };
        }
        self.exhausted_at = now;
        self.allowed = 1;
        let least = backoff(self.failures, 0.0);
        let wait = match asked {
            _ if std::mem::take(&mut self.is_hinted) => least,
            Some(asked) => asked.max(least),
            None => LONG_WAIT,
        };
        self.until = self.until.max(now + wait);
    }

    /// Records a hint that there may be capacity: an open circuit lets a create through earlier, but not
    /// before a back-off. The back-off grows with each hint that proves wrong, so that the replacement of a
    /// fleet does not keep trying a class in vain.
    fn on_capacity_hint(&mut self, now: Instant) {
        self.is_hinted = true;
        let soon = self.exhausted_at + backoff(self.failures, 0.0);
        self.until = self.until.min(soon.max(now));
    }

    fn is_open(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Returns the wakers of the machines that may try now. A machine that does not come, as it was deleted,
    /// is followed by the next one.
    fn wake_due(&mut self, now: Instant) -> impl Iterator<Item = Waker> {
        let room = if self.is_open(now) {
            0
        } else {
            self.allowed.saturating_sub(self.in_flight)
        };
        let count = usize::try_from(room)
            .unwrap_or(usize::MAX)
            .min(self.waiting.len());
        self.waiting.drain(..count).map(|(_, waker)| waker)
    }

    fn is_idle(&self, now: Instant) -> bool {
        now >= self.until + KEPT_IDLE && self.in_flight == 0 && self.waiting.is_empty()
    }
}
