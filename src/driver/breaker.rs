//! A circuit breaker for creates: no creates while capacity is known to be exhausted, and one at a time to
//! find out whether there is capacity again.
//!
//! There is one breaker for each class. It is closed while nothing is known against creates of the class. An
//! answer that capacity is exhausted opens it, and creates are held back without a call. It becomes half open
//! when there may be capacity again: the open time is over, a VM with the same credentials is gone, a create
//! in flight succeeded, or an operator requests an attempt. The credentials matter because a quota usually
//! belongs to an account, and drivers do not report its classes.
//!
//! A half-open breaker lets one create through. If it succeeds, the circuit recovers: each create that
//! succeeds wakes two waiters. So a fleet comes back at the pace of the back end, in doubling numbers. If it
//! fails, the circuit opens again, and hints that prove wrong count less and less.
//!
//! A new process has closed breakers. The machines that waited retry, as many at a time as there are permits,
//! until the first answer opens the breaker again.

mod circuit;
mod key;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

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
pub struct Breakers {
    by_class: Mutex<HashMap<ClassKey, Circuit>>,
}

/// Why a create of a machine waits.
pub const CREATES_SUSPENDED: &str =
    "creates of this class are suspended, because another machine of the class exhausted the capacity";

/// A create that was let through. An attempt that is dropped without an answer is inconclusive.
#[derive(Debug)]
pub struct Attempt<'a> {
    breakers: &'a Breakers,
    key: ClassKey,
    /// Whether the breaker was not closed, so that it counts the create.
    counted: bool,
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
        let mut circuits = self.by_class.lock();
        let circuit = circuits.get_mut(&key);
        let counted = circuit.is_some();
        if let Some(circuit) = circuit
            && !circuit.begin(uid, requested, Instant::now())
        {
            circuit.wait(uid, waker);
            return None;
        }
        drop(circuits);
        Some(Attempt {
            breakers: self,
            key,
            counted,
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
            .or_insert_with(|| Circuit::half_open(now))
            .on_exhausted(retry::requested_delay(status), counted, now);
    }
}

impl Attempt<'_> {
    /// Records the driver's answer. Errors other than exhausted capacity are inconclusive.
    pub fn record<T>(mut self, answer: &Result<T, Status>) {
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
