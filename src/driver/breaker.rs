//! A circuit breaker for creates: no creates while capacity is known to be exhausted, and one at a time to
//! find out whether there is capacity again.
//!
//! There is one breaker for each class. It is closed while nothing is known against creates of the class. An
//! answer that capacity is exhausted opens it, and creates are refused without a call. It becomes half open
//! when there may be capacity again:
//!
//! * the open time is over,
//! * a VM with the same credentials is gone,
//! * a create in flight succeeded,
//! * an operator requests an attempt, or
//! * a process starts with a machine that was refused before.
//!
//! The credentials matter because a quota usually belongs to an account, and drivers do not report its
//! classes.
//!
//! A half-open breaker lets one create through. If it succeeds, the circuit recovers: each create that
//! succeeds wakes two waiters. So a fleet comes back at the pace of the back end, in doubling numbers. If it
//! fails, the circuit opens again, and hints that prove wrong count less and less.

mod circuit;
mod key;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::error::Error;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::circuit::Circuit;
pub(super) use self::key::{ClassKey, CredentialsKey};
use super::waker::Waker;
use crate::api::retry;
use crate::telemetry::metrics::BreakerCount;
use cmi_driver::{Code, Status};

/// The breakers of one driver; closed breakers are not kept.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    by_class: Mutex<HashMap<ClassKey, Circuit>>,
}

/// Why a breaker becomes half open for a create, whether it is open or, after a restart, closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfOpenReason {
    /// An operator has changed an annotation to retry the create immediately.
    pub requested: bool,
    /// The machine was refused before, perhaps by the driver of an earlier process.
    pub recalled: bool,
}

/// A create was not made, because capacity is known to be exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("creates of this class are suspended, because another machine of the class exhausted the capacity")]
pub struct CircuitOpen;

/// Whether an error, or one of its sources, is [`CircuitOpen`].
pub fn is_circuit_open(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(<dyn Error>::is::<CircuitOpen>)
}

/// A create that was let through. An attempt that is dropped without an answer is inconclusive.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    breakers: &'a Breakers,
    key: ClassKey,
    /// Whether the breaker was not closed, so that it counts the create.
    counted: bool,
}

impl Breakers {
    /// Admits `uid` to a create of this class if the breaker allows one; otherwise queues it, and `waker`
    /// runs when there may be capacity. The caller asks before any other step of the create, and is expected
    /// to create soon. Returns whether `uid` may go on.
    pub(super) fn admit_or_wait(
        &self,
        key: &ClassKey,
        uid: &str,
        reason: HalfOpenReason,
        waker: Waker,
    ) -> bool {
        let now = Instant::now();
        let mut circuits = self.by_class.lock();
        let Some(circuit) = circuits.get_mut(key) else {
            if reason.recalled {
                circuits.insert(key.clone(), Circuit::half_open(Some(uid.into()), now));
            }
            return true;
        };
        let is_admitted = circuit.try_admit(uid, reason, now);
        if !is_admitted {
            circuit.wait(uid, waker);
        }
        is_admitted
    }

    /// Lets a create through.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED from [`CircuitOpen`].
    pub(super) fn attempt(&self, key: &ClassKey) -> Result<Attempt<'_>, Status> {
        let mut circuits = self.by_class.lock();
        let begun = circuits.get_mut(key).map(|circuit| circuit.begin(Instant::now()));
        if begun == Some(false) {
            return Err(Status::new(Code::ResourceExhausted, CircuitOpen.to_string())
                .with_source(CircuitOpen)
                .with_never_sent());
        }
        Ok(Attempt {
            breakers: self,
            key: key.clone(),
            counted: begun.is_some(),
        })
    }

    /// Queues `uid` until there may be capacity; `waker` runs then.
    pub(super) fn wait(&self, key: &ClassKey, uid: &str, waker: Waker) {
        let mut circuits = self.by_class.lock();
        let Some(circuit) = circuits.get_mut(key) else {
            drop(circuits);
            // There is capacity already.
            waker.wake();
            return;
        };
        circuit.wait(uid, waker);
    }

    pub(super) fn forget(&self, uid: &str) {
        for circuit in self.by_class.lock().values_mut() {
            circuit.forget(uid);
        }
    }

    /// Counts an initialization that failed because capacity is exhausted.
    pub(super) fn record_failure(&self, key: &ClassKey, status: &Status) {
        if status.code() == Code::ResourceExhausted {
            self.on_exhausted(key, status, false);
        }
    }

    /// Counts the breakers that hold back creates, and the machines that wait.
    pub(super) fn count(&self) -> BreakerCount {
        let (mut count, now) = (BreakerCount::default(), Instant::now());
        for circuit in self.by_class.lock().values() {
            if circuit.is_open(now) {
                count.open += 1;
            } else {
                count.half_open += 1;
            }
            count.waiting += circuit.waiting();
        }
        count
    }

    /// Records that a VM with these credentials is gone: each class with these credentials may have capacity.
    pub(super) fn on_freed(&self, credentials: &CredentialsKey) {
        let now = Instant::now();
        let mut circuits = self.by_class.lock();
        let theirs = circuits
            .iter_mut()
            .filter(|(key, _)| key.credentials == *credentials);
        theirs.for_each(|(_, circuit)| circuit.on_capacity_hint(now));
    }

    /// Wakes the machines whose time has come. Runs at an interval.
    pub(super) fn wake_due(&self) {
        let now = Instant::now();
        let mut wakers = Vec::new();
        self.by_class.lock().retain(|_, circuit| {
            wakers.extend(circuit.wake_due(now));
            !circuit.is_closed(now)
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    fn on_exhausted(&self, key: &ClassKey, status: &Status, counted: bool) {
        let now = Instant::now();
        let mut circuits = self.by_class.lock();
        circuits
            .entry(key.clone())
            .or_insert_with(|| Circuit::half_open(None, now))
            .on_exhausted(retry::requested_delay(status), counted, now);
    }
}

impl Attempt<'_> {
    /// Records the driver's answer. Errors other than exhausted capacity are inconclusive.
    pub(super) fn record<T>(mut self, answer: &Result<T, Status>) {
        match answer {
            Ok(_) => {
                let counted = std::mem::take(&mut self.counted);
                let mut circuits = self.breakers.by_class.lock();
                let circuit = circuits.get_mut(&self.key);
                let wakers = circuit.map(|circuit| circuit.on_success(counted, Instant::now()));
                drop(circuits);
                wakers.into_iter().flatten().for_each(Waker::wake);
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                let counted = std::mem::take(&mut self.counted);
                self.breakers.on_exhausted(&self.key, status, counted);
            }
            Err(_) => {}
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.counted
            && let Some(circuit) = self.breakers.by_class.lock().get_mut(&self.key)
        {
            circuit.on_inconclusive(Instant::now());
        }
    }
}
