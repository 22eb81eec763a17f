//! One circuit breaker: when creates of a class may run, and how many at the same time.
//!
//! A circuit counts creates and knows no driver. The wakers that it returns have to run without the lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::HalfOpenReason;
use crate::api::retry::{LONG_WAIT, backoff};
use crate::driver::waker::Waker;

/// How long a circuit waits for the create of a machine to begin: the machine may have been deleted.
pub const EXPECTED_WITHIN: Duration = Duration::from_secs(10);

/// The circuit breaker of a class: open until a time, then half open for one create, then recovering.
#[derive(Debug)]
pub struct Circuit {
    pub(super) until: Instant,
    /// The number of creates that may run at the same time: one, and one more for each create that succeeds.
    allowed: u32,
    /// Creates that were let through and are not answered yet.
    in_flight: u32,
    /// The machine that was woken or admitted last, and when.
    expected: Option<(Arc<str>, Instant)>,
    /// When capacity was exhausted last.
    exhausted_at: Instant,
    /// The number of creates in a row that failed, each soon after the previous one.
    failures: u32,
    /// Whether there was a hint of capacity since the last create began.
    is_hinted: bool,
    waiting: VecDeque<(Arc<str>, Waker)>,
}

impl Circuit {
    /// Returns a circuit that lets this machine try; without one, any machine.
    pub fn half_open(expected: Option<Arc<str>>, now: Instant) -> Self {
        Self {
            until: now,
            allowed: 1,
            in_flight: 0,
            expected: expected.map(|uid| (uid, now)),
            exhausted_at: now,
            failures: 0,
            is_hinted: false,
            waiting: VecDeque::new(),
        }
    }

    /// Admits a machine to a create, if the state allows one.
    pub fn try_admit(&mut self, uid: &str, reason: HalfOpenReason, now: Instant) -> bool {
        if reason.requested && self.in_flight == 0 {
            self.until = self.until.min(now);
            self.expected = None;
        }
        let is_expected = self
            .expected
            .as_ref()
            .is_some_and(|(expected, _)| **expected == *uid);
        let is_free = is_expected || self.allowed > 1 || !self.is_expecting(now);
        let is_admitted = self.has_room(now) && is_free;
        if is_admitted {
            self.forget(uid);
            self.expected = Some((uid.into(), now));
        }
        is_admitted
    }

    /// Lets a create through and counts it, if the state allows one.
    pub fn begin(&mut self, now: Instant) -> bool {
        let is_begun = self.has_room(now);
        if is_begun {
            self.in_flight += 1;
            self.is_hinted = false;
        }
        is_begun
    }

    fn has_room(&self, now: Instant) -> bool {
        !self.is_open(now) && self.in_flight < self.allowed
    }

    fn is_expecting(&self, now: Instant) -> bool {
        let since = self.expected.as_ref().map(|(_, since)| *since);
        since.is_some_and(|since| now.saturating_duration_since(since) < EXPECTED_WITHIN)
    }

    /// Queues a machine. A machine that waits already keeps its place.
    pub fn wait(&mut self, uid: &str, waker: Waker) {
        match self.waiting.iter_mut().find(|(waiting, _)| **waiting == *uid) {
            Some((_, before)) => *before = waker,
            None => self.waiting.push_back((uid.into(), waker)),
        }
    }

    /// How many machines wait for the circuit.
    pub fn waiting(&self) -> u64 {
        u64::try_from(self.waiting.len()).unwrap_or(u64::MAX)
    }

    /// Records exhausted capacity, and how long the driver asks to wait. A hint that came while the create
    /// ran counts for the next create.
    pub fn on_exhausted(&mut self, asked: Option<Duration>, counted: bool, now: Instant) {
        self.in_flight -= u32::from(counted);
        // Otherwise another create was in flight at the same time.
        if !self.is_open(now) {
            let is_early = now.saturating_duration_since(self.exhausted_at) < LONG_WAIT;
            self.failures = if is_early {
                self.failures.saturating_add(1)
            } else {
                1
            };
        }
        self.exhausted_at = now;
        self.allowed = 1;
        self.expected = None;
        let least = backoff(self.failures, 0.0);
        let wait = match asked {
            _ if std::mem::take(&mut self.is_hinted) => least,
            Some(asked) => asked.max(least),
            None => LONG_WAIT,
        };
        self.until = self.until.max(now + wait);
    }

    /// Records that a create succeeded. Returns the wakers of the machines that may try now.
    pub fn on_success(&mut self, counted: bool, now: Instant) -> Vec<Waker> {
        self.in_flight -= u32::from(counted);
        if self.is_open(now) {
            // The create was in flight when another one found no capacity.
            self.on_capacity_hint(now);
            return Vec::new();
        }
        if !counted {
            return Vec::new();
        }
        self.allowed = self.allowed.saturating_add(1);
        self.failures = 0;
        self.wake(2, now)
    }

    /// Records a create that did not reveal whether there is capacity.
    pub fn on_inconclusive(&mut self, now: Instant) {
        self.in_flight -= 1;
        if self.allowed == 1 && !self.is_open(now) {
            self.failures = self.failures.saturating_add(1);
            self.until = now + backoff(self.failures, 0.0);
            self.expected = None;
        }
    }

    /// Records a hint that there may be capacity: an open circuit lets a create through earlier, but not
    /// before a back-off. The back-off grows with each hint that proves wrong, so that the replacement of a
    /// fleet does not keep trying a class in vain.
    pub fn on_capacity_hint(&mut self, now: Instant) {
        self.is_hinted = true;
        let soon = self.exhausted_at + backoff(self.failures, 0.0);
        self.until = self.until.min(soon.max(now));
    }

    /// Forgets a machine that is gone.
    pub fn forget(&mut self, uid: &str) {
        self.waiting.retain(|(waiting, _)| **waiting != *uid);
    }

    /// Whether no create is let through.
    pub fn is_open(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Returns the wakers of the machines whose time has come.
    pub fn wake_due(&mut self, now: Instant) -> Vec<Waker> {
        if self.is_open(now) || self.in_flight > 0 || self.is_expecting(now) {
            return Vec::new();
        }
        self.wake(self.allowed, now)
    }

    fn wake(&mut self, most: u32, now: Instant) -> Vec<Waker> {
        let next = std::iter::from_fn(|| self.waiting.pop_front());
        let (uids, wakers): (Vec<_>, _) = (0..most).zip(next).map(|(_, next)| next).unzip();
        self.expected = uids
            .into_iter()
            .next_back()
            .map(|uid| (uid, now))
            .or(self.expected.take());
        wakers
    }

    /// Whether nothing speaks against creates, and no machine waits.
    pub fn is_closed(&self, now: Instant) -> bool {
        let is_over = !self.is_open(now) && (self.allowed > 1 || !self.is_expecting(now));
        is_over && self.in_flight == 0 && self.waiting.is_empty()
    }
}
