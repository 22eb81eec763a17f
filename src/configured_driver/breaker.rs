//! A circuit breaker for creates: none where there is known to be no room, and one at a time to find out
//! whether there is some again.
//!
//! There is one for each class. It is closed while nothing is known against its creates. An answer that
//! capacity is exhausted opens it, and creates are refused without a call. It is half open when there may be
//! room again: its time is over, a VM that was made with the same credentials is gone (a quota is as a rule
//! one of an account, and a driver does not say of which classes), a create that was under way succeeded, an
//! operator asks for a try, or a process that has just started has a machine that was refused before. Then
//! one create is let through. When it succeeds the circuit recovers: those that wait are woken, two for each
//! create that succeeds, so that a fleet comes back at the pace of the back end, and in doubling numbers.
//! When it does not the circuit is open again, and hints that prove wrong count for less and less.

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
use crate::metrics::BreakerCount;
use crate::retry;
use cmi_driver::{Code, Status};

/// The breakers of one driver; those that are closed are not kept.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    by_class: Mutex<HashMap<ClassKey, Circuit>>,
}

/// Why a breaker lets a create through that it would else refuse: it is half open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeHint {
    /// An operator has changed something, to have it tried at once.
    pub requested: bool,
    /// The machine was refused before, perhaps by the driver of a process before this one.
    pub recalled: bool,
}

/// A create was not made, since there is known to be no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("creates of this class are suspended, since capacity was exhausted for another machine of it")]
pub struct CircuitOpen;

/// Whether an error, or one that led to it, is [`CircuitOpen`].
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

impl Breakers {
    /// Whether `uid` may go on to a create of this class. It is asked before anything is done for the create,
    /// and expected to make it soon.
    pub(super) fn allows(&self, key: &ClassKey, uid: &str, reason: ProbeHint) -> bool {
        let now = Instant::now();
        let mut circuits = self.by_class.lock();
        let Some(circuit) = circuits.get_mut(key) else {
            if reason.recalled {
                circuits.insert(key.clone(), Circuit::half_open(Some(uid.into()), now));
            }
            return true;
        };
        circuit.allows(uid, reason, now)
    }

    /// Lets a create through.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED from [`CircuitOpen`].
    pub(super) fn attempt(&self, key: &ClassKey) -> Result<Attempt<'_>, Status> {
        let mut circuits = self.by_class.lock();
        let counted = match circuits.get_mut(key) {
            None => false,
            Some(circuit) => circuit
                .begin(Instant::now())
                .then_some(true)
                .ok_or_else(refused)?,
        };
        Ok(Attempt {
            breakers: self,
            key: key.clone(),
            counted,
        })
    }

    /// Has `uid` wait until there is room; `waker` runs then.
    pub(super) fn wait(&self, key: &ClassKey, uid: &str, waker: Waker) {
        let mut circuits = self.by_class.lock();
        let Some(circuit) = circuits.get_mut(key) else {
            drop(circuits);
            // There is room already.
            waker.wake();
            return;
        };
        circuit.wait(uid, waker);
    }

    /// A machine that is gone waits for nothing.
    pub(super) fn forget(&self, uid: &str) {
        for circuit in self.by_class.lock().values_mut() {
            circuit.forget(uid);
        }
    }

    /// Counts an initialization that failed: exhausted is exhausted.
    pub(super) fn record_failure(&self, key: &ClassKey, status: &Status) {
        if status.code() == Code::ResourceExhausted {
            self.on_exhausted(key, status, false);
        }
    }

    /// How many of them hold creates back, and how many machines wait.
    pub(super) fn count(&self) -> BreakerCount {
        let mut count = BreakerCount::default();
        for circuit in self.by_class.lock().values() {
            if circuit.is_open() {
                count.open += 1;
            } else {
                count.half_open += 1;
            }
            count.waiting += circuit.waiting();
        }
        count
    }

    /// A VM that was made with these credentials is gone: there may be room for each of its classes.
    pub(super) fn on_freed(&self, credentials: &CredentialsKey) {
        let now = Instant::now();
        let mut circuits = self.by_class.lock();
        let theirs = circuits
            .iter_mut()
            .filter(|(key, _)| key.credentials == *credentials);
        theirs.for_each(|(_, circuit)| circuit.on_capacity_hint(now));
    }

    /// Wakes those whose time has come: at an interval.
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

fn refused() -> Status {
    Status::new(Code::ResourceExhausted, CircuitOpen.to_string())
        .with_source(CircuitOpen)
        .with_never_sent()
}

impl Attempt<'_> {
    /// Whether the create is still to be made: the circuit may have opened since, for the answer to another.
    pub(super) fn check(&self) -> Result<(), Status> {
        let is_open = match self.breakers.by_class.lock().get(&self.key) {
            Some(circuit) => !self.counted && circuit.is_open(),
            None => false,
        };
        if is_open { Err(refused()) } else { Ok(()) }
    }

    /// Records the driver's answer.
    pub(super) fn record<T>(mut self, answer: &Result<T, Status>) {
        let counted = std::mem::take(&mut self.counted);
        match answer {
            Ok(_) => {
                let wakers = self
                    .breakers
                    .by_class
                    .lock()
                    .get_mut(&self.key)
                    .map(|circuit| circuit.on_success(counted, Instant::now()));
                wakers.into_iter().flatten().for_each(Waker::wake);
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
            && let Some(circuit) = self.breakers.by_class.lock().get_mut(&self.key)
        {
            circuit.on_inconclusive(Instant::now());
        }
    }
}
