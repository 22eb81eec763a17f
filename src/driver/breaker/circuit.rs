//! One circuit breaker: when creates of a class may run, and how many at the same time.
//!
//! A circuit counts creates and knows no driver. The wakers that it returns have to run without the lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::retry::{LONG_WAIT, backoff};
use crate::driver::waker::Waker;

/// How long a circuit waits for the creates of the machines that it woke: they may have been deleted.
pub const EXPECTED_WITHIN: Duration = Duration::from_secs(10);

/// The circuit breaker of a class: open until a time, then half open for one create, then recovering.
#[derive(Debug)]
pub struct Circuit {
    pub(super) until: Instant,
    /// The number of creates that may run at the same time: one, and one more for each create that succeeds.
    allowed: u32,
    /// Creates that were let through and are not answered yet.
    in_flight: u32,
    /// When machines were woken last, until a create begins.
    woken_at: Option<Instant>,
    /// When capacity was exhausted last.
    exhausted_at: Instant,
    /// The number of creates in a row that failed, each soon after the previous one.
    failures: u32,
    /// Whether there was a hint of capacity since the last create began.
    is_hinted: bool,
    waiting: VecDeque<(Arc<str>, Waker)>,
}

impl Circuit {
    /// Returns a circuit that lets one create through.
    pub fn half_open(now: Instant) -> Self {
        Self {
            until: now,
            allowed: 1,
            in_flight: 0,
            woken_at: None,
            exhausted_at: now,
            failures: 0,
            is_hinted: false,
            waiting: VecDeque::new(),
        }
    }

    /// Lets a create of a machine through and counts it, if the state allows one. An operator can request an
    /// attempt while none is in flight.
    pub fn begin(&mut self, uid: &str, requested: bool, now: Instant) -> bool {
        if requested && self.in_flight == 0 {
            self.until = self.until.min(now);
        }
        let is_begun = !self.is_open(now) && self.in_flight < self.allowed;
        if is_begun {
            self.in_flight += 1;
            self.is_hinted = false;
            self.woken_at = None;
            self.forget(uid);
        }
        is_begun
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
            self.failures += 1;
            self.until = now + backoff(self.failures, 0.0);
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

    /// Whether a create is in flight, or expected from a machine that was woken.
    fn is_busy(&self, now: Instant) -> bool {
        let is_recent = |woken: Instant| now.saturating_duration_since(woken) < EXPECTED_WITHIN;
        self.in_flight > 0 || self.woken_at.is_some_and(is_recent)
    }

    /// Returns the wakers of the machines whose time has come.
    pub fn wake_due(&mut self, now: Instant) -> Vec<Waker> {
        if self.is_open(now) || self.is_busy(now) {
            return Vec::new();
        }
        self.wake(self.allowed, now)
    }

    fn wake(&mut self, most: u32, now: Instant) -> Vec<Waker> {
        let count = self
            .waiting
            .len()
            .min(usize::try_from(most).unwrap_or(usize::MAX));
        if count > 0 {
            self.woken_at = Some(now);
        }
        self.waiting.drain(..count).map(|(_, waker)| waker).collect()
    }

    /// Whether nothing speaks against creates, and no machine waits.
    pub fn is_closed(&self, now: Instant) -> bool {
        !self.is_open(now) && !self.is_busy(now) && self.waiting.is_empty()
    }
}
