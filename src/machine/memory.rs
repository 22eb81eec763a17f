//! What the controller remembers of a machine between reconciles, and may forget: everything here can be rebuilt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::outcome::Outcome;
use crate::api::v1alpha1::InfraMachine;

/// Notes on every machine, by UID.
#[derive(Debug, Default)]
pub struct Memory {
    notes: Mutex<HashMap<String, Note>>,
}

/// Notes on one machine.
#[derive(Clone, Debug, Default)]
pub struct Note {
    /// The object as our last write returned it, while the cache is still behind.
    pub written: Option<Arc<InfraMachine>>,
    /// When the driver may be called again, and why not before.
    pub retry: Option<Retry>,
    /// Since when the driver has been saying that there is no VM.
    pub absent_since: Option<Instant>,
    /// Reconciles in a row that could not be finished.
    pub errors: u32,
    /// A VM that is not settled is left alone until then.
    pub rest_until: Option<Instant>,
    /// Somebody has reason to believe that the VM changed: the next reconcile asks the driver.
    pub suspicion: Option<Suspicion>,
    /// That reason has come since the last failure: it does not wait for what failed before it.
    pub suspicion_is_new: bool,
}

/// Why somebody believes that a VM changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// A sign, such as a Node that went silent. It is for the driver's look-up to say.
    Sign,
    /// The driver's lists lack the VM: of one that can't look up, this is all that can be had.
    Missing,
    /// The driver's list has the VM, which was found to be gone.
    Back,
}

/// A wait after a failure.
#[derive(Clone, Debug)]
pub struct Retry {
    /// Failures in a row, from 1.
    pub attempts: u32,
    /// What has to come first.
    pub until: Until,
    /// What was looked at when it failed; when it differs there is no wait.
    pub inputs: u64,
    /// What failed, until it is published: the call is not made again before its time, so nothing else would tell of it.
    pub untold: Option<Arc<Outcome>>,
}

/// The end of a wait after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// A time.
    Moment(Instant),
    /// Another driver than the one of this incarnation, which does not offer the call (CMI-37).
    AnotherDriver(u64),
}

impl Note {
    fn says_nothing(&self) -> bool {
        let Self {
            written,
            retry,
            absent_since,
            errors,
            rest_until,
            suspicion,
            suspicion_is_new: _,
        } = self;
        written.is_none()
            && retry.is_none()
            && absent_since.is_none()
            && *errors == 0
            && rest_until.is_none()
            && suspicion.is_none()
    }
}

impl Memory {
    fn with<T>(&self, uid: &str, change: impl FnOnce(&mut Note) -> T) -> T {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        change(notes.entry(uid.to_owned()).or_default())
    }

    /// As [`Memory::with`], but not for a machine that nothing is known of: what only forgets must not begin a note, least
    /// of all on an object that is gone.
    fn with_known(&self, uid: &str, change: impl FnOnce(&mut Note)) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(note) = notes.get_mut(uid) {
            change(note);
        }
    }

    /// The notes on a machine.
    pub fn recall(&self, uid: &str) -> Note {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .cloned()
            .unwrap_or_default()
    }

    /// Forgets a machine that is no more.
    pub fn forget(&self, uid: &str) {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
    }

    /// Forgets all machines that are no more: what went away while nobody watched is told by no event.
    pub fn forget_all_but(&self, is_there: impl Fn(&str) -> bool) {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|uid, _| is_there(uid));
    }

    /// Remembers what a write returned, so that a cache that lags behind our own writes is not believed.
    pub fn wrote(&self, uid: &str, machine: Arc<InfraMachine>) {
        self.with(uid, |note| note.written = Some(machine));
    }

    /// The newer of what the cache holds and what we wrote. `cached` reads the cache, and may take its time.
    ///
    /// The note is read first: it goes when the cache has the object, so that what is read of the cache afterwards is at
    /// least as new. The other way round, a note that went in between would leave what the cache held before.
    pub fn freshest(&self, uid: &str, cached: impl FnOnce() -> Arc<InfraMachine>) -> Arc<InfraMachine> {
        let written = self.recall(uid).written;
        let cached = cached();
        match written {
            Some(written) if is_newer(&written, &cached) => written,
            _ => {
                self.caught_up(uid, &cached);
                cached
            }
        }
    }

    /// The cache holds this version: our own write need not be kept beside it any longer, nor a note that says nothing.
    pub fn caught_up(&self, uid: &str, cached: &InfraMachine) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(note) = notes.get_mut(uid) else { return };
        if note
            .written
            .as_ref()
            .is_some_and(|written| !is_newer(written, cached))
        {
            note.written = None;
        }
        if note.says_nothing() {
            notes.remove(uid);
        }
    }

    /// Counts a reconcile that could not be finished; how many there were in a row.
    pub fn erred(&self, uid: &str) -> u32 {
        self.with(uid, |note| {
            note.errors = note.errors.saturating_add(1);
            note.errors
        })
    }

    /// A reconcile was finished.
    pub fn finished(&self, uid: &str) {
        self.with_known(uid, |note| note.errors = 0);
    }

    /// Remembers a failure. It breaks off an absence: one that nobody saw held over the whole window is not confirmed.
    pub fn failed(&self, uid: &str, retry: Retry) {
        self.with(uid, |note| {
            note.retry = Some(retry);
            note.absent_since = None;
            note.suspicion_is_new = false;
        });
    }

    /// The last failure is published.
    pub fn told(&self, uid: &str) {
        self.with_known(uid, |note| {
            if let Some(retry) = &mut note.retry {
                retry.untold = None;
            }
        });
    }

    /// Forgets the failures.
    pub fn succeeded(&self, uid: &str) {
        self.with_known(uid, |note| {
            note.retry = None;
            note.absent_since = None;
            note.rest_until = None;
            note.suspicion = None;
        });
    }

    /// For how long the driver has been saying that there is no VM, from now on if this is the first time.
    pub fn absent_for(&self, uid: &str, now: Instant) -> Duration {
        self.with(uid, |note| {
            now.saturating_duration_since(*note.absent_since.get_or_insert(now))
        })
    }

    /// The VM was seen.
    pub fn seen(&self, uid: &str) {
        self.with_known(uid, |note| note.absent_since = None);
    }

    /// Leaves a VM that is not settled alone for a while.
    pub fn rest(&self, uid: &str, until: Instant) {
        self.with(uid, |note| note.rest_until = Some(until));
    }

    /// Asks the next reconcile to ask the driver. A sign does not take back what lists say.
    pub fn suspect(&self, uid: &str, suspicion: Suspicion) {
        self.with(uid, |note| {
            note.suspicion = match (note.suspicion, suspicion) {
                (Some(lists @ (Suspicion::Missing | Suspicion::Back)), Suspicion::Sign) => Some(lists),
                (_, new) => Some(new),
            };
            note.suspicion_is_new = true;
        });
    }

    /// Drops what lists said: they do not say it any more, or it is too old to be believed. It breaks off an absence, which
    /// nobody would go on to confirm; the next one must not be taken for the rest of this one.
    pub fn dismiss_lists(&self, uid: &str) {
        self.with_known(uid, |note| {
            note.absent_since = None;
            match note.suspicion {
                Some(Suspicion::Missing | Suspicion::Back) => note.suspicion = None,
                Some(Suspicion::Sign) | None => {}
            }
        });
    }

    /// Drops a sign that nobody can follow up.
    pub fn dismiss_sign(&self, uid: &str) {
        self.with_known(uid, |note| {
            if note.suspicion == Some(Suspicion::Sign) {
                note.suspicion = None;
            }
        });
    }
}

/// Whether `a` is a later version of the object than `b`. Resource versions of one kind are comparable numbers; one
/// that is not is never taken for newer.
fn is_newer(a: &InfraMachine, b: &InfraMachine) -> bool {
    let version = |machine: &InfraMachine| machine.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    matches!((version(a), version(b)), (Some(a), Some(b)) if a > b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::InfraMachineSpec;

    fn at(version: &str) -> Arc<InfraMachine> {
        let mut machine = InfraMachine::new("m", InfraMachineSpec::default());
        machine.metadata.resource_version = Some(version.to_owned());
        Arc::new(machine)
    }

    #[test]
    fn a_cache_that_is_behind_our_own_write_is_not_believed() {
        let memory = Memory::default();
        memory.wrote("u", at("100"));
        assert_eq!(
            memory
                .freshest("u", || at("99"))
                .metadata
                .resource_version
                .as_deref(),
            Some("100")
        );
        assert_eq!(
            memory
                .freshest("u", || at("101"))
                .metadata
                .resource_version
                .as_deref(),
            Some("101")
        );
        assert!(
            memory.recall("u").written.is_none(),
            "the note goes when the cache has caught up"
        );
    }

    #[test]
    fn our_own_write_is_known_also_when_the_cache_gets_it_while_it_is_read() {
        let memory = Memory::default();
        memory.wrote("u", at("100"));
        let read_before = at("99");
        let freshest = memory.freshest("u", || {
            memory.caught_up("u", &at("100"));
            Arc::clone(&read_before)
        });
        assert_eq!(freshest.metadata.resource_version.as_deref(), Some("100"));
    }

    #[test]
    fn a_suspicion_outlives_a_failure_and_ends_with_an_answer() {
        let memory = Memory::default();
        memory.suspect("u", Suspicion::Sign);
        let retry = Retry {
            attempts: 1,
            until: Until::Moment(Instant::now()),
            inputs: 0,
            untold: None,
        };
        memory.failed("u", retry);
        let note = memory.recall("u");
        assert!(note.suspicion.is_some() && !note.suspicion_is_new);
        memory.succeeded("u");
        assert!(memory.recall("u").suspicion.is_none());
    }

    #[test]
    fn a_failure_is_kept_until_it_is_published_and_waited_for_after_that() {
        let memory = Memory::default();
        let retry = Retry {
            attempts: 1,
            until: Until::Moment(Instant::now()),
            inputs: 0,
            untold: Some(Arc::new(Outcome::Left)),
        };
        memory.failed("u", retry);
        assert!(memory.recall("u").retry.unwrap().untold.is_some());
        memory.told("u");
        assert!(memory.recall("u").retry.unwrap().untold.is_none());
    }

    #[test]
    fn our_own_write_is_kept_only_until_the_cache_has_it() {
        let memory = Memory::default();
        memory.wrote("u", at("100"));
        memory.caught_up("u", &at("99"));
        assert!(memory.recall("u").written.is_some(), "the cache is behind");
        memory.caught_up("u", &at("100"));
        assert!(
            memory.notes.lock().unwrap().is_empty(),
            "a note that says nothing is none"
        );
    }

    #[test]
    fn absence_is_measured_from_the_first_sighting_and_ends_with_the_vm_seen() {
        let (memory, start) = (Memory::default(), Instant::now());
        assert_eq!(memory.absent_for("u", start), Duration::ZERO);
        assert_eq!(
            memory.absent_for("u", start + Duration::from_secs(3)),
            Duration::from_secs(3)
        );
        memory.seen("u");
        assert_eq!(
            memory.absent_for("u", start + Duration::from_secs(4)),
            Duration::ZERO
        );
    }

    /// NOT_FOUND, UNAVAILABLE, NOT_FOUND is no absence over the whole time: somebody may have been behind twice.
    #[test]
    fn a_failure_in_between_breaks_an_absence_off() {
        let (memory, start) = (Memory::default(), Instant::now());
        memory.absent_for("u", start);
        let retry = Retry {
            attempts: 1,
            until: Until::Moment(start),
            inputs: 0,
            untold: None,
        };
        memory.failed("u", retry);
        assert_eq!(
            memory.absent_for("u", start + Duration::from_secs(9)),
            Duration::ZERO
        );
    }

    /// A list has the VM again, or hands went off: days later, one answer that lags must not count as the end of the window.
    #[test]
    fn an_absence_that_nobody_went_on_to_confirm_is_broken_off() {
        let (memory, start) = (Memory::default(), Instant::now());
        memory.absent_for("u", start);
        memory.dismiss_lists("u");
        assert_eq!(
            memory.absent_for("u", start + Duration::from_hours(48)),
            Duration::ZERO
        );
    }

    #[test]
    fn what_only_forgets_begins_no_note_on_an_object_that_is_gone() {
        let memory = Memory::default();
        memory.freshest("u", || at("1"));
        memory.finished("u");
        memory.succeeded("u");
        memory.seen("u");
        assert!(memory.notes.lock().unwrap().is_empty());
    }

    #[test]
    fn a_suspicion_lasts_until_the_driver_was_asked() {
        let memory = Memory::default();
        memory.suspect("u", Suspicion::Sign);
        memory.absent_for("u", Instant::now());
        assert!(
            memory.recall("u").suspicion.is_some(),
            "it outlives an absence that is not confirmed yet"
        );
        memory.rest("u", Instant::now());
        memory.succeeded("u");
        let note = memory.recall("u");
        assert!(note.suspicion.is_none() && note.rest_until.is_none() && note.absent_since.is_none());
    }

    #[test]
    fn machines_that_went_away_unseen_are_forgotten() {
        let memory = Memory::default();
        memory.erred("gone");
        memory.erred("there");
        memory.forget_all_but(|uid| uid == "there");
        assert_eq!(memory.recall("gone").errors, 0);
        assert_eq!(memory.recall("there").errors, 1);
    }

    #[test]
    fn a_sign_does_not_take_back_what_lists_say() {
        let memory = Memory::default();
        memory.suspect("u", Suspicion::Missing);
        memory.suspect("u", Suspicion::Sign);
        memory.dismiss_sign("u");
        assert_eq!(memory.recall("u").suspicion, Some(Suspicion::Missing));
        memory.suspect("u", Suspicion::Back);
        assert_eq!(
            memory.recall("u").suspicion,
            Some(Suspicion::Back),
            "the newest list counts"
        );
    }

    #[test]
    fn a_list_that_has_the_vm_takes_back_what_lists_said_and_no_sign() {
        let memory = Memory::default();
        for (suspicion, left) in [
            (Suspicion::Missing, None),
            (Suspicion::Back, None),
            (Suspicion::Sign, Some(Suspicion::Sign)),
        ] {
            memory.suspect("u", suspicion);
            memory.dismiss_lists("u");
            assert_eq!(memory.recall("u").suspicion, left);
        }
    }
}
