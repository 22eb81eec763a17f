//! One circuit breaker: open, half open, recovering, or closed.
//!
//! A circuit counts creates and knows no driver. The wakers that it returns have to run without the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::HalfOpenReason;
use crate::configured_driver::waker::Waker;
use crate::retry::{LONG_WAIT, backoff};

/// How long a circuit waits for the create of a machine to begin: the machine may have been deleted
/// meanwhile.
pub const ATTEMPT_EXPECTED_WITHIN: Duration = Duration::from_secs(10);

/// The circuit breaker of a class.
#[derive(Debug)]
pub struct Circuit {
    pub(super) state: CircuitState,
    /// When capacity was exhausted last.
    exhausted_at: Instant,
    /// How many of the creates that probe for capacity failed in a row.
    failures: u32,
    /// How many hints of capacity in a row proved wrong.
    wrong_hints: u32,
    /// Whether a hint of capacity ended the wait, or is to end it.
    follows_hint: bool,
    /// Whether there was a hint while the circuit was half open or recovering.
    hint_meanwhile: bool,
    /// Creates that were let through and are not answered yet.
    in_flight: u32,
    places: u64,
    waiting: BTreeMap<u64, Waiter>,
}

#[derive(Debug)]
pub enum CircuitState {
    /// No create is let through before this time.
    Open(Instant),
    /// One create may go through.
    HalfOpen {
        /// The machine that is expected to make the create; without one, any machine may.
        expected: Option<Arc<str>>,
        /// Since when the create is expected.
        since: Instant,
    },
    /// Some creates may run at once.
    Recovering {
        /// How many creates may run at once.
        allowed: u32,
        /// When waiters were last woken.
        woken_at: Instant,
    },
}

#[derive(Debug)]
struct Waiter {
    uid: Arc<str>,
    waker: Waker,
}

impl Circuit {
    /// Returns a circuit that lets this machine try, or without one, any machine.
    pub fn half_open(expected: Option<Arc<str>>, now: Instant) -> Self {
        Self {
            state: CircuitState::HalfOpen { expected, since: now },
            exhausted_at: now,
            failures: 0,
            wrong_hints: 0,
            follows_hint: false,
            hint_meanwhile: false,
            in_flight: 0,
            places: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// Lets a machine go on to a create, if the state allows one: an open circuit becomes half open for it.
    pub fn try_admit(&mut self, uid: &str, reason: HalfOpenReason, now: Instant) -> bool {
        let is_admitted = match &self.state {
            CircuitState::Open(until) => now >= *until || reason.requested,
            CircuitState::HalfOpen { expected, since } => {
                let is_expected = expected.as_deref().is_none_or(|expected| expected == uid);
                self.in_flight == 0
                    && (is_expected
                        || reason.requested
                        || now.saturating_duration_since(*since) >= ATTEMPT_EXPECTED_WITHIN)
            }
            CircuitState::Recovering { allowed, .. } => return self.in_flight < *allowed,
        };
        if is_admitted {
            self.state = CircuitState::HalfOpen {
                expected: Some(uid.into()),
                since: now,
            };
        }
        is_admitted
    }

    /// Lets a create through and counts it, if the state allows one.
    pub fn begin(&mut self, now: Instant) -> bool {
        let is_begun = self.may_begin(now);
        self.in_flight += u32::from(is_begun);
        is_begun
    }

    /// Whether a create may begin. A circuit whose time is over becomes half open.
    fn may_begin(&mut self, now: Instant) -> bool {
        match &self.state {
            CircuitState::Open(until) if now >= *until => {
                self.state = CircuitState::HalfOpen {
                    expected: None,
                    since: now,
                };
                true
            }
            CircuitState::Open(_) => false,
            CircuitState::HalfOpen { .. } => self.in_flight == 0,
            CircuitState::Recovering { allowed, .. } => self.in_flight < *allowed,
        }
    }

    /// Queues a machine, which has one place: a machine that waits already keeps its place.
    pub fn wait(&mut self, uid: &str, waker: Waker) {
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

    /// How many machines wait for the circuit.
    pub fn waiting(&self) -> u64 {
        u64::try_from(self.waiting.len()).unwrap_or(u64::MAX)
    }

    pub fn on_exhausted(&mut self, asked: Option<Duration>, counted: bool, now: Instant) {
        self.in_flight -= u32::from(counted);
        let was_open = match self.state {
            // Another create was in flight at the same time.
            CircuitState::Open(until) => Some(until),
            CircuitState::HalfOpen { .. } | CircuitState::Recovering { .. } => {
                self.failures = self.failures.saturating_add(1);
                let was_hint = std::mem::take(&mut self.follows_hint);
                self.wrong_hints = if was_hint {
                    self.wrong_hints.saturating_add(1)
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
        self.state = CircuitState::Open(was_open.map_or(until, |was| was.max(until)));
        if std::mem::take(&mut self.hint_meanwhile) {
            self.on_capacity_hint(now);
        }
    }

    /// Records that a create of the class succeeded. Returns the wakers of the machines that may try now.
    pub fn on_success(&mut self, counted: bool, now: Instant) -> Vec<Waker> {
        self.in_flight -= u32::from(counted);
        let allowed = match self.state {
            // The create was in flight when another one found no capacity.
            CircuitState::Open(_) => {
                self.on_capacity_hint(now);
                return Vec::new();
            }
            CircuitState::HalfOpen { .. } if !counted => return Vec::new(),
            CircuitState::HalfOpen { .. } => 2,
            CircuitState::Recovering { allowed, .. } => allowed.saturating_add(1),
        };
        self.failures = 0;
        self.wrong_hints = 0;
        self.follows_hint = false;
        self.hint_meanwhile = false;
        self.state = CircuitState::Recovering {
            allowed,
            woken_at: now,
        };
        self.wake(2)
    }

    /// Records that a create that was let through did not find out whether there is capacity.
    pub fn on_inconclusive(&mut self, now: Instant) {
        self.in_flight -= 1;
        if matches!(self.state, CircuitState::HalfOpen { .. }) {
            self.failures = self.failures.saturating_add(1);
            self.state = CircuitState::Open(now + backoff(self.failures, 0.0));
        }
    }

    /// Records a hint that there may be capacity. An open circuit lets a create through earlier, but not
    /// before a back-off has passed since capacity was exhausted last. That back-off is longer each time that
    /// a hint proves wrong, so that the replacement of a fleet does not keep trying a class in vain. In any
    /// other state, the circuit keeps the hint for a create that then finds no capacity.
    pub fn on_capacity_hint(&mut self, now: Instant) {
        match &mut self.state {
            CircuitState::Open(until) => {
                let soon = (self.exhausted_at + backoff(self.wrong_hints.saturating_add(1), 0.0)).max(now);
                if soon < *until {
                    *until = soon;
                    self.follows_hint = true;
                }
            }
            CircuitState::HalfOpen { .. } | CircuitState::Recovering { .. } => self.hint_meanwhile = true,
        }
    }

    /// Forgets a machine that is gone.
    pub fn forget(&mut self, uid: &str) {
        self.waiting.retain(|_, waiter| *waiter.uid != *uid);
    }

    /// Whether no create is let through.
    pub fn is_open(&self) -> bool {
        matches!(self.state, CircuitState::Open(_))
    }

    /// Returns the wakers of the machines whose time has come.
    pub fn wake_due(&mut self, now: Instant) -> Vec<Waker> {
        match &self.state {
            CircuitState::Open(until) if now >= *until && self.in_flight == 0 => self.wake_one(now),
            CircuitState::HalfOpen { since, .. }
                if self.in_flight == 0
                    && now.saturating_duration_since(*since) >= ATTEMPT_EXPECTED_WITHIN =>
            {
                self.wake_one(now)
            }
            CircuitState::Recovering { allowed, woken_at }
                if self.in_flight == 0
                    && now.saturating_duration_since(*woken_at) >= ATTEMPT_EXPECTED_WITHIN =>
            {
                let allowed = *allowed;
                self.state = CircuitState::Recovering {
                    allowed,
                    woken_at: now,
                };
                self.wake(allowed)
            }
            CircuitState::Open(_) | CircuitState::HalfOpen { .. } | CircuitState::Recovering { .. } => {
                Vec::new()
            }
        }
    }

    /// Returns the waker of the machine that is to find out whether there is capacity.
    fn wake_one(&mut self, now: Instant) -> Vec<Waker> {
        let Some((_, Waiter { uid, waker })) = self.waiting.pop_first() else {
            return Vec::new();
        };
        self.state = CircuitState::HalfOpen {
            expected: Some(uid),
            since: now,
        };
        vec![waker]
    }

    fn wake(&mut self, most: u32) -> Vec<Waker> {
        (0..most)
            .map_while(|_| self.waiting.pop_first())
            .map(|(_, waiter)| waiter.waker)
            .collect()
    }

    /// Whether nothing is known against creates any more, and no machine waits.
    pub fn is_closed(&self, now: Instant) -> bool {
        let is_over = match &self.state {
            CircuitState::Open(until) => now >= *until,
            CircuitState::HalfOpen { since, .. } => {
                now.saturating_duration_since(*since) >= ATTEMPT_EXPECTED_WITHIN
            }
            CircuitState::Recovering { .. } => true,
        };
        is_over && self.in_flight == 0 && self.waiting.is_empty()
    }
}
