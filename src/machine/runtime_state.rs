//! The state of a machine that the controller keeps between reconciles. It may be lost: that costs a call or
//! an event, or restarts a wait, and never costs a VM.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::outcome::{Outcome, RetryTrigger};
use crate::api::v1alpha1::InfraMachine;
use crate::reconcile::FailureCounts;
use cmi_driver::Operation;

#[cfg(test)]
mod tests;

/// The state of every machine, by UID.
#[derive(Debug, Default)]
pub struct RuntimeStates {
    machines: Mutex<HashMap<String, RuntimeState>>,
    /// The number of hints so far, of all machines.
    hints: AtomicU64,
}

/// The state of one machine.
#[derive(Clone, Debug, Default)]
pub struct RuntimeState {
    /// The object as our last write returned it, while the cache is still behind.
    pub written: Option<Arc<InfraMachine>>,
    /// When the driver may be called again, and why not before.
    pub retry: Option<Retry>,
    /// Since when the driver has been saying that there is no VM.
    pub absent_since: Option<Instant>,
    /// How many reconciles in a row could not be finished.
    pub errors: u32,
    /// Until when a VM that is not settled is left alone.
    pub settle_until: Option<Instant>,
    /// The reason to believe that the VM changed: the next reconcile asks the driver, if the driver can be
    /// asked.
    pub hint: Option<LookUpHint>,
    /// Whether the hint has come since the last failure: it does not wait for what failed before it.
    pub hint_is_new: bool,
    /// The number of the newest hint: only a call that began after the hint answers it.
    pub hint_number: u64,
    /// When the last create of this process was issued whose answer is known: the back end will not carry it
    /// out later.
    pub answered: Option<Timestamp>,
    /// How often in a row this process failed to have the guest shut down, counting the calls that may have
    /// reached the driver.
    pub failed_shut_downs: u32,
    /// Whether there may be capacity, where the signal came before the wait for it: the reconcile that is
    /// about to wait has not ended yet.
    pub woken: bool,
}

/// The reason to believe that a VM changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUpHint {
    /// A signal, such as a Node that went silent. The driver's look-up decides.
    Signal,
    /// The driver's lists lack the VM: a driver that can't look up says no more than this.
    Missing,
    /// The driver's list has the VM again, after it was found to be gone.
    Back,
}

/// A wait after a failure.
#[derive(Clone, Debug)]
pub struct Retry {
    /// Failures in a row; zero when the cause of the failures is over, or when there was no failure and the
    /// machine waits for capacity.
    pub attempts: u32,
    /// What may end the wait before its time.
    pub trigger: RetryTrigger,
    /// What has to come before the next call.
    pub until: RetryCondition,
    /// The fingerprint of the inputs at the time of the failure; when the inputs differ, there is no wait.
    pub inputs: u64,
    /// The failure, until it is published: the call is not repeated before its time, so nothing else would
    /// report it.
    pub unpublished: Option<Arc<Outcome>>,
}

/// The end of a wait after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCondition {
    /// A time.
    Time(Instant),
    /// Another driver than this one, which does not offer a call (CMI-37).
    AnotherDriver(UnimplementedCall),
}

/// A driver's answer that it does not offer a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnimplementedCall {
    /// Which driver answered, as its connection generation; see
    /// [`cmi_driver::Driver::connection_generation`].
    pub connection_generation: u64,
    /// The call.
    pub operation: Operation,
}

impl RuntimeState {
    /// Forgets the hint, unless it is newer than the one of this number.
    fn clear_hint(&mut self, number: u64) {
        if self.hint_number == number {
            self.hint = None;
        }
    }

    fn has_list_hint(&self) -> bool {
        let is_of_list = matches!(self.hint, Some(LookUpHint::Missing | LookUpHint::Back));
        is_of_list || self.absent_since.is_some()
    }

    fn drop_list_hint(&mut self) {
        self.absent_since = None;
        match self.hint {
            Some(LookUpHint::Missing | LookUpHint::Back) => self.hint = None,
            Some(LookUpHint::Signal) | None => {}
        }
    }

    /// Ends a wait with this trigger: the call is retried now, and earlier failures no longer count. Returns
    /// whether there was such a wait.
    fn end_wait(&mut self, trigger: RetryTrigger) -> bool {
        let now = Instant::now();
        let Some(retry) = self.retry.as_mut().filter(|retry| retry.trigger == trigger) else {
            return false;
        };
        match &mut retry.until {
            RetryCondition::Time(until) if *until > now => {
                *until = now;
                retry.attempts = 0;
                true
            }
            RetryCondition::Time(_) | RetryCondition::AnotherDriver(_) => false,
        }
    }

    fn is_empty(&self) -> bool {
        let Self {
            written,
            retry,
            absent_since,
            errors,
            settle_until,
            hint,
            hint_is_new: _,
            hint_number: _,
            answered,
            failed_shut_downs,
            woken,
        } = self;
        written.is_none()
            && retry.is_none()
            && absent_since.is_none()
            && *errors == 0
            && settle_until.is_none()
            && hint.is_none()
            && answered.is_none()
            && *failed_shut_downs == 0
            && !woken
    }
}

impl RuntimeStates {
    fn with<T>(&self, uid: &str, change: impl FnOnce(&mut RuntimeState) -> T) -> T {
        let mut machines = self.machines.lock();
        change(machines.entry(uid.to_owned()).or_default())
    }

    /// As [`RuntimeStates::with`], but only for a machine with an entry: a change that only forgets must not
    /// add an entry, least of all for an object that is gone.
    fn with_known(&self, uid: &str, change: impl FnOnce(&mut RuntimeState)) {
        let mut machines = self.machines.lock();
        if let Some(known) = machines.get_mut(uid) {
            change(known);
        }
    }

    /// Returns the state of a machine.
    pub fn get(&self, uid: &str) -> RuntimeState {
        self.machines.lock().get(uid).cloned().unwrap_or_default()
    }

    /// As [`RuntimeStates::get`]. If the state holds no wait, it keeps the one that `restore` returns from
    /// now on.
    pub fn get_or_restore(&self, uid: &str, restore: impl FnOnce() -> Option<Retry>) -> RuntimeState {
        let known = self.get(uid);
        if known.retry.is_some() {
            return known;
        }
        match restore() {
            None => known,
            Some(retry) => self.with(uid, |known| {
                known.retry.get_or_insert(retry);
                known.clone()
            }),
        }
    }

    /// Forgets a machine that is gone.
    pub fn forget(&self, uid: &str) {
        self.machines.lock().remove(uid);
    }

    /// Drops the state of all machines but these: no event reports those that were deleted while no watch
    /// ran. What an earlier leadership knew is dropped as a whole.
    pub fn forget_all_but(&self, is_there: impl Fn(&str) -> bool) {
        self.machines.lock().retain(|uid, _| is_there(uid));
    }

    /// Remembers the object that a write returned, so that a cache that lags behind our own writes is not
    /// believed.
    pub fn record_write(&self, uid: &str, machine: Arc<InfraMachine>) {
        self.with(uid, |known| known.written = Some(machine));
    }

    /// Returns the newer of the version in the cache and the version that we wrote. `cached` reads the cache,
    /// and may take its time.
    ///
    /// The written version is read first: it is dropped once the cache has the object, so the cache that is
    /// read afterwards is at least as new. The other way round, a version that is dropped in between would
    /// leave the older one from the cache.
    pub fn newest(&self, uid: &str, cached: impl FnOnce() -> Arc<InfraMachine>) -> Arc<InfraMachine> {
        let written = self.get(uid).written;
        let cached = cached();
        match written {
            Some(written) if is_newer(&written, &cached) => written,
            _ => {
                self.caught_up(uid, &cached);
                cached
            }
        }
    }

    /// Records that the cache holds this version: our own write need not be kept beside it any longer, nor an
    /// entry that says nothing.
    pub fn caught_up(&self, uid: &str, cached: &InfraMachine) {
        let mut machines = self.machines.lock();
        let Some(known) = machines.get_mut(uid) else {
            return;
        };
        if known
            .written
            .as_ref()
            .is_some_and(|written| !is_newer(written, cached))
        {
            known.written = None;
        }
        if known.is_empty() {
            machines.remove(uid);
        }
    }

    /// Records that a reconcile was finished.
    pub fn clear_errors(&self, uid: &str) {
        self.with_known(uid, |known| known.errors = 0);
    }

    /// Remembers a failure. The failure breaks off an absence: an absence that was not seen over the whole
    /// window is not confirmed. A hint stays, and waits with everything else for the next try, unless it came
    /// after the call began; `hint` is the number of the newest hint at that time.
    pub fn failed(&self, uid: &str, hint: u64, mut retry: Retry) {
        self.with(uid, |known| {
            if std::mem::take(&mut known.woken) && retry.trigger == RetryTrigger::Capacity {
                retry.until = RetryCondition::Time(Instant::now());
            }
            known.retry = Some(retry);
            known.absent_since = None;
            known.hint_is_new &= known.hint_number != hint;
        });
    }

    /// Signals that there may be capacity for a machine that waits for it, or is about to.
    pub fn signal_capacity(&self, uid: &str) {
        self.with(uid, |known| {
            known.woken = !known.end_wait(RetryTrigger::Capacity);
        });
    }

    /// Ends the wait of a machine for a transient failure to pass.
    pub fn end_transient_wait(&self, uid: &str) {
        self.with_known(uid, |known| {
            known.end_wait(RetryTrigger::Transient);
        });
    }

    /// Returns the machines that wait for a transient failure to pass, each by the number of its UID.
    pub fn waiting_for_transient(&self, number: impl Fn(&str) -> u64) -> HashSet<u64> {
        let now = Instant::now();
        let machines = self.machines.lock();
        let waiting = machines.iter().filter(|(_, known)| {
            known.retry.as_ref().is_some_and(|retry| {
                retry.trigger == RetryTrigger::Transient
                    && matches!(retry.until, RetryCondition::Time(until) if until > now)
            })
        });
        waiting.map(|(uid, _)| number(uid)).collect()
    }

    /// Records that the last failure is published.
    pub fn published(&self, uid: &str) {
        self.with_known(uid, |known| {
            if let Some(retry) = &mut known.retry {
                retry.unpublished = None;
            }
        });
    }

    /// Records that nothing is open about the VM: forgets failures, absence and settling, and the hint,
    /// unless another hint has come since the call began; `hint` is the number of the newest hint at that
    /// time.
    pub fn succeeded(&self, uid: &str, hint: u64) {
        self.with_known(uid, |known| {
            known.retry = None;
            known.woken = false;
            known.absent_since = None;
            known.settle_until = None;
            known.clear_hint(hint);
        });
    }

    /// Records that the create that was issued at this time is over.
    pub fn answered(&self, uid: &str, issued: Timestamp) {
        self.with(uid, |known| known.answered = Some(issued));
    }

    /// Counts a failure to ask the guest to stop.
    pub fn shut_down_failed(&self, uid: &str) {
        self.with(uid, |known| {
            known.failed_shut_downs = known.failed_shut_downs.saturating_add(1);
        });
    }

    /// Records that the guest has accepted to stop.
    pub fn shut_down_accepted(&self, uid: &str) {
        self.with_known(uid, |known| known.failed_shut_downs = 0);
    }

    /// Returns for how long the driver has been saying that there is no VM, starting now if this is the first
    /// time.
    pub fn absent_for(&self, uid: &str, now: Instant) -> Duration {
        self.with(uid, |known| {
            now.saturating_duration_since(*known.absent_since.get_or_insert(now))
        })
    }

    /// Records that the VM was seen, or may exist again: an earlier absence no longer counts.
    pub fn clear_absence(&self, uid: &str) {
        self.with_known(uid, |known| known.absent_since = None);
    }

    /// Leaves a VM that is not settled alone for a while.
    pub fn settle(&self, uid: &str, until: Instant) {
        self.with(uid, |known| known.settle_until = Some(until));
    }

    /// Makes the next reconcile ask the driver, whatever failed before. A signal does not replace what lists
    /// say.
    pub fn hint(&self, uid: &str, hint: LookUpHint) {
        let number = self.hints.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(uid, |known| {
            known.hint = match (known.hint, hint) {
                (Some(lists @ (LookUpHint::Missing | LookUpHint::Back)), LookUpHint::Signal) => Some(lists),
                (_, new) => Some(new),
            };
            known.hint_is_new = true;
            known.hint_number = number;
        });
    }

    /// Drops what lists said, because they no longer say it, or because it is too old to be believed. This
    /// breaks off an absence, which would not be confirmed any further; the next absence must not be taken
    /// for a continuation of this one.
    pub fn drop_list_hint(&self, uid: &str) {
        self.with_known(uid, RuntimeState::drop_list_hint);
    }

    /// Does the same for all machines, by UID, that a list has confirmed. A fleet has a list for each class,
    /// and next to none of its machines has such a hint, so the hint is checked first.
    pub fn drop_list_hints(&self, is_confirmed: impl Fn(&str) -> bool) {
        let mut machines = self.machines.lock();
        let confirmed = machines
            .iter_mut()
            .filter(|(uid, known)| known.has_list_hint() && is_confirmed(uid));
        confirmed.for_each(|(_, known)| known.drop_list_hint());
    }

    /// Forgets answers to creates that were issued so long ago that nothing depends on them any more, and the
    /// entries of machines that are up and at rest, which are empty then. A process that starts has none of
    /// them either.
    pub fn forget_answered_before(&self, time: Timestamp) {
        let mut machines = self.machines.lock();
        machines.retain(|_, known| {
            known.answered = known.answered.filter(|issued| *issued >= time);
            !known.is_empty()
        });
        let kept = machines.len();
        machines.shrink_to(2 * kept);
    }

    /// Drops a signal that the driver can't be asked about, unless it is newer than the hint of the number
    /// `hint`.
    pub fn drop_signal(&self, uid: &str, hint: u64) {
        self.with_known(uid, |known| {
            if known.hint == Some(LookUpHint::Signal) {
                known.clear_hint(hint);
            }
        });
    }
}

impl FailureCounts for RuntimeStates {
    fn count_failure(&self, uid: &str) -> u32 {
        self.with(uid, |known| {
            known.errors = known.errors.saturating_add(1);
            known.errors
        })
    }

    fn forget(&self, uid: &str) {
        Self::forget(self, uid);
    }
}

/// Whether `a` is a later version of the object than `b`. Resource versions of one kind are comparable
/// numbers; a version that is no number is never taken for newer.
fn is_newer(a: &InfraMachine, b: &InfraMachine) -> bool {
    let version = |machine: &InfraMachine| machine.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    matches!((version(a), version(b)), (Some(a), Some(b)) if a > b)
}
