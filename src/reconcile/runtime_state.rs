//! The state of machines that the controller keeps between reconciles. Losing this state may cost a call or
//! an event, or restart a wait. It never costs a VM.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::v1alpha1::{InfraMachine, OperationType};
use cmi_driver::{Code, Operation};

#[cfg(test)]
mod tests;

/// The state of every machine, by UID.
#[derive(Debug, Default)]
pub struct RuntimeStates {
    machines: Mutex<HashMap<String, RuntimeState>>,
    /// The number of hints for all machines since the start.
    hints: AtomicU64,
}

/// The state of one machine.
#[derive(Clone, Debug, Default)]
pub struct RuntimeState {
    /// The object from our last write, while the cache is stale.
    pub written: Option<Arc<InfraMachine>>,
    /// When the driver may be called again, and why not before.
    pub retry: Option<Retry>,
    /// The VM in the driver's last answer, while a wait depends on it.
    pub presence: Option<Presence>,
    /// Why the VM may have changed. The next reconcile queries the driver if possible.
    pub hint: Option<Hint>,
    /// When the latest answered create of this process was issued, until its VM is found. The back end will
    /// not carry out this create later.
    pub answered: Option<Timestamp>,
}

/// The VM in the driver's last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The driver has reported no VM since this time.
    AbsentSince(Instant),
    /// The VM is not settled, and is not polled until this time.
    UnsettledUntil(Instant),
}

/// A reason to look a VM up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Why the VM may have changed.
    pub why: LookUpHint,
    /// Whether the hint came after the last failure. Then it does not wait for the retry of that failure.
    pub is_new: bool,
    /// The number of the newest hint. Only a call that started after a hint answers it.
    pub number: u64,
}

/// Why a VM may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUpHint {
    /// A signal, such as a Node that went silent. The driver's look-up decides.
    Signal,
    /// The driver's lists lack the VM. A driver that can't look up gives no other evidence.
    Missing,
    /// The driver's list has the VM again after it was reported as gone.
    Back,
}

/// A wait after a failure.
#[derive(Clone, Debug)]
pub struct Retry {
    /// The operation that failed.
    pub during: OperationType,
    /// The number of consecutive failures. Zero if the cause of the failures has ended, or if the machine
    /// waits for capacity without a failure.
    pub attempts: u32,
    /// The event that may end the wait early.
    pub trigger: RetryTrigger,
    /// The condition for the next call.
    pub until: RetryCondition,
    /// The fingerprint of the inputs at the time of the failure. A different fingerprint ends the wait.
    pub inputs: u64,
}

/// The event that may retry a failed call early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryTrigger {
    /// A transient failure, such as a driver outage. It ends when the driver is back.
    Transient,
    /// Exhausted capacity. Creating or deleting another machine may show that there is capacity again.
    Capacity,
    /// Anything else.
    Other,
}

impl RetryTrigger {
    /// The event that may retry a call with this answer early. `None` if nothing was called.
    pub fn of(code: Option<Code>) -> Self {
        match code {
            Some(Code::ResourceExhausted) => Self::Capacity,
            Some(code) if code.is_transient() => Self::Transient,
            Some(_) | None => Self::Other,
        }
    }
}

/// The end of a wait after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCondition {
    /// A time.
    Time(Instant),
    /// A change of the inputs.
    Change,
    /// A change from this driver, which does not support a call (CMI-37).
    AnotherDriver(UnimplementedCall),
}

/// A driver's answer that it does not support a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnimplementedCall {
    /// The driver that answered, as its connection generation. See
    /// [`cmi_driver::Driver::connection_generation`].
    pub connection_generation: u64,
    /// The call.
    pub operation: Operation,
}

impl RuntimeState {
    /// Drops the hint, unless it is newer than the given number.
    fn clear_hint(&mut self, number: u64) {
        self.hint = self.hint.filter(|hint| hint.number != number);
    }

    /// Why the VM may have changed.
    pub fn hinted(&self) -> Option<LookUpHint> {
        self.hint.map(|hint| hint.why)
    }

    /// The number of the newest hint; 0 without one.
    pub fn hint_number(&self) -> u64 {
        self.hint.map_or(0, |hint| hint.number)
    }

    /// Since when the driver has reported no VM.
    pub fn absent_since(&self) -> Option<Instant> {
        match self.presence? {
            Presence::AbsentSince(since) => Some(since),
            Presence::UnsettledUntil(_) => None,
        }
    }

    /// Until when an unsettled VM is not polled.
    pub fn unsettled_until(&self) -> Option<Instant> {
        match self.presence? {
            Presence::UnsettledUntil(until) => Some(until),
            Presence::AbsentSince(_) => None,
        }
    }

    fn end_absence(&mut self) {
        if self.absent_since().is_some() {
            self.presence = None;
        }
    }

    fn has_list_hint(&self) -> bool {
        let is_of_list = matches!(self.hinted(), Some(LookUpHint::Missing | LookUpHint::Back));
        is_of_list || self.absent_since().is_some()
    }

    fn drop_list_hint(&mut self) {
        self.end_absence();
        match self.hinted() {
            Some(LookUpHint::Missing | LookUpHint::Back) => self.hint = None,
            Some(LookUpHint::Signal) | None => {}
        }
    }

    /// Ends a wait with this trigger. The call is retried now, and earlier failures no longer count. Returns
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
            RetryCondition::Time(_) | RetryCondition::Change | RetryCondition::AnotherDriver(_) => false,
        }
    }

    fn is_empty(&self) -> bool {
        let Self {
            written,
            retry,
            presence,
            hint,
            answered,
        } = self;
        let waits_for_nothing = retry.is_none() && presence.is_none() && hint.is_none();
        waits_for_nothing && written.is_none() && answered.is_none()
    }
}

impl RuntimeStates {
    fn with<T>(&self, uid: &str, change: impl FnOnce(&mut RuntimeState) -> T) -> T {
        let mut machines = self.machines.lock();
        change(machines.entry(uid.to_owned()).or_default())
    }

    /// Like [`RuntimeStates::with`], but only for a machine with an entry. A change that only removes data
    /// must not add an entry, especially for a deleted object.
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

    /// Like [`RuntimeStates::get`], but a state without a wait takes over the wait from `restore`.
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

    /// Drops the state of a deleted machine.
    pub fn forget(&self, uid: &str) {
        self.machines.lock().remove(uid);
    }

    /// Drops the state of all other machines. No event reports machines that were deleted while no watch was
    /// running. The state of an earlier leadership is dropped as a whole.
    pub fn forget_all_but(&self, is_there: impl Fn(&str) -> bool) {
        self.machines.lock().retain(|uid, _| is_there(uid));
    }

    /// Stores the object that a write returned, so that a stale cache is not used.
    pub fn record_write(&self, uid: &str, machine: Arc<InfraMachine>) {
        self.with(uid, |known| known.written = Some(machine));
    }

    /// Returns the newer of the cached version and our own written version. `cached` reads the cache, and may
    /// be slow.
    ///
    /// The written version is read first. It is dropped once the cache has the object, so a later read of the
    /// cache is at least as new. In the opposite order, a drop between both reads would leave only the older
    /// cached version.
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

    /// Records that the cache holds this version. Drops our own write, and an entry that becomes empty.
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
            let (kept, room) = (machines.len(), machines.capacity());
            if kept < room / 4 {
                machines.shrink_to(2 * kept);
            }
        }
    }

    /// Records a failure. It ends an absence, because an absence must be seen over the whole window. A hint
    /// stays and waits for the retry, unless it came after the start of the call. `hint` is the number of the
    /// newest hint at that start.
    pub fn failed(&self, uid: &str, hint: u64, retry: Retry) {
        self.with(uid, |known| {
            known.retry = Some(retry);
            known.end_absence();
            if let Some(known) = &mut known.hint {
                known.is_new &= known.number != hint;
            }
        });
    }

    /// Signals possible capacity to a machine that waits for it. If the reconcile that starts the wait is
    /// still running, the signal is a hint, which the wait does not delay.
    pub fn signal_capacity(&self, uid: &str) {
        if !self.with(uid, |known| known.end_wait(RetryTrigger::Capacity)) {
            self.hint(uid, LookUpHint::Signal);
        }
    }

    /// Ends a machine's wait after a transient failure.
    pub fn end_transient_wait(&self, uid: &str) {
        self.with_known(uid, |known| {
            known.end_wait(RetryTrigger::Transient);
        });
    }

    /// Returns the machines that wait after a transient failure, as numbers derived from their UIDs.
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

    /// Records that the VM was found and its id is written, so that its creates need not be known any more.
    /// Unlike [`Self::succeeded`], keeps the wait after a failed update, which a look-up says nothing about.
    pub fn found(&self, uid: &str, hint: u64) {
        self.with_known(uid, |known| {
            known.retry = known
                .retry
                .take()
                .filter(|retry| retry.during == OperationType::Update);
            known.presence = None;
            known.answered = None;
            known.clear_hint(hint);
        });
    }

    /// Records that nothing is pending for the VM. Drops failures, absence and settling. Drops the hint too,
    /// unless another hint came after the start of the call. `hint` is the number of the newest hint at that
    /// start.
    pub fn succeeded(&self, uid: &str, hint: u64) {
        self.with_known(uid, |known| {
            known.retry = None;
            known.presence = None;
            known.clear_hint(hint);
        });
    }

    /// Records that the create with this time has ended.
    pub fn answered(&self, uid: &str, issued: Timestamp) {
        self.with(uid, |known| known.answered = Some(issued));
    }

    /// Returns how long the driver has reported no VM. The first report starts this time.
    pub fn absent_for(&self, uid: &str, now: Instant) -> Duration {
        self.with(uid, |known| {
            let since = known.absent_since().unwrap_or(now);
            known.presence = Some(Presence::AbsentSince(since));
            now.saturating_duration_since(since)
        })
    }

    /// Records that the VM was seen or may exist again. This ends an absence.
    pub fn clear_absence(&self, uid: &str) {
        self.with_known(uid, RuntimeState::end_absence);
    }

    /// Stops polling an unsettled VM until the given time.
    pub fn settle(&self, uid: &str, until: Instant) {
        self.with(uid, |known| {
            known.presence = Some(Presence::UnsettledUntil(until));
        });
    }

    /// Makes the next reconcile query the driver despite earlier failures. A signal does not replace the
    /// evidence from lists.
    pub fn hint(&self, uid: &str, hint: LookUpHint) {
        let number = self.hints.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(uid, |known| {
            let why = match (known.hinted(), hint) {
                (Some(lists @ (LookUpHint::Missing | LookUpHint::Back)), LookUpHint::Signal) => lists,
                (_, new) => new,
            };
            known.hint = Some(Hint {
                why,
                is_new: true,
                number,
            });
        });
    }

    /// Drops the evidence from lists when lists have changed or the evidence is too old. This also ends an
    /// absence, which lists no longer confirm. The next absence must start from zero.
    pub fn drop_list_hint(&self, uid: &str) {
        self.with_known(uid, RuntimeState::drop_list_hint);
    }

    /// Drops the wait after a failure, unless only another driver ends it.
    pub fn drop_wait(&self, uid: &str) {
        let needs_more_than_time = |retry: &Retry| !matches!(retry.until, RetryCondition::Time(_));
        self.with_known(uid, |known| {
            known.retry = known.retry.take().filter(needs_more_than_time);
        });
    }

    /// Like [`Self::drop_list_hint`], for all machines that a list has confirmed, by UID. A fleet has a list
    /// for each class, and very few machines have such a hint, so the hint is checked first.
    pub fn drop_list_hints(&self, is_confirmed: impl Fn(&str) -> bool) {
        let mut machines = self.machines.lock();
        let confirmed = machines
            .iter_mut()
            .filter(|(uid, known)| known.has_list_hint() && is_confirmed(uid));
        confirmed.for_each(|(_, known)| known.drop_list_hint());
    }

    /// Drops a signal that the driver can't answer, unless it is newer than the hint number `hint`.
    pub fn drop_signal(&self, uid: &str, hint: u64) {
        self.with_known(uid, |known| {
            if known.hinted() == Some(LookUpHint::Signal) {
                known.clear_hint(hint);
            }
        });
    }
}

/// Returns whether `a` is a later version of the object than `b`. Resource versions of one kind are
/// comparable numbers. A version that is not a number never counts as newer.
fn is_newer(a: &InfraMachine, b: &InfraMachine) -> bool {
    let version = |machine: &InfraMachine| machine.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    matches!((version(a), version(b)), (Some(a), Some(b)) if a > b)
}
