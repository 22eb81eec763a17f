//! What is remembered, for how long, and what ends it.

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
        "it goes when the cache has caught up"
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
        cause: Cause::Other,
        until: Until::Moment(Instant::now()),
        inputs: 0,
        untold: None,
    };
    memory.failed("u", memory.recall("u").suspicion_number, retry);
    let known = memory.recall("u");
    assert!(known.suspicion.is_some() && !known.suspicion_is_new);
    memory.succeeded("u", memory.recall("u").suspicion_number);
    assert!(memory.recall("u").suspicion.is_none());
}

/// A Node goes silent while its VM is asked after, updated, or can't be: what was begun
/// before says nothing about that.
#[test]
fn a_suspicion_that_comes_during_a_call_is_not_answered_by_it() {
    let memory = Memory::default();
    let suspicion = |uid: &str| memory.recall(uid).suspicion_number;
    memory.suspect("u", Suspicion::Sign);
    let before = suspicion("u");
    memory.suspect("u", Suspicion::Sign);
    memory.succeeded("u", before);
    assert_eq!(memory.recall("u").suspicion, Some(Suspicion::Sign));
    memory.dismiss_sign("u", before);
    assert_eq!(memory.recall("u").suspicion, Some(Suspicion::Sign));
    let retry = Retry {
        attempts: 1,
        cause: Cause::Other,
        until: Until::Moment(Instant::now()),
        inputs: 0,
        untold: None,
    };
    memory.failed("u", before, retry);
    assert!(memory.recall("u").suspicion_is_new, "it waits for nothing");
    memory.succeeded("u", suspicion("u"));
    assert_eq!(memory.recall("u").suspicion, None);
    // Also where nothing was suspected before, and nothing known.
    let before = suspicion("v");
    memory.suspect("v", Suspicion::Sign);
    memory.succeeded("v", before);
    assert_eq!(memory.recall("v").suspicion, Some(Suspicion::Sign));
}

#[test]
fn a_failure_is_kept_until_it_is_published_and_waited_for_after_that() {
    let memory = Memory::default();
    let retry = Retry {
        attempts: 1,
        cause: Cause::Other,
        until: Until::Moment(Instant::now()),
        inputs: 0,
        untold: Some(Arc::new(Outcome::Left)),
    };
    memory.failed("u", memory.recall("u").suspicion_number, retry);
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
        memory.machines.lock().unwrap().is_empty(),
        "what says nothing is not kept"
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

/// NOT_FOUND, UNAVAILABLE, NOT_FOUND is no absence over the whole time: the driver
/// may have been behind twice.
#[test]
fn a_failure_in_between_breaks_an_absence_off() {
    let (memory, start) = (Memory::default(), Instant::now());
    memory.absent_for("u", start);
    let retry = Retry {
        attempts: 1,
        cause: Cause::Other,
        until: Until::Moment(start),
        inputs: 0,
        untold: None,
    };
    memory.failed("u", memory.recall("u").suspicion_number, retry);
    assert_eq!(
        memory.absent_for("u", start + Duration::from_secs(9)),
        Duration::ZERO
    );
}

/// A list has the VM again, or the machine was paused: days later, one answer that lags must not count
/// as the end of the window.
#[test]
fn an_absence_that_is_not_confirmed_any_further_is_broken_off() {
    let (memory, start) = (Memory::default(), Instant::now());
    memory.absent_for("u", start);
    memory.dismiss_lists("u");
    assert_eq!(
        memory.absent_for("u", start + Duration::from_hours(48)),
        Duration::ZERO
    );
}

#[test]
fn what_only_forgets_remembers_nothing_of_an_object_that_is_gone() {
    let memory = Memory::default();
    memory.freshest("u", || at("1"));
    memory.finished("u");
    memory.succeeded("u", memory.recall("u").suspicion_number);
    memory.seen("u");
    assert!(memory.machines.lock().unwrap().is_empty());
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
    memory.succeeded("u", memory.recall("u").suspicion_number);
    let known = memory.recall("u");
    assert!(known.suspicion.is_none() && known.rest_until.is_none() && known.absent_since.is_none());
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
    memory.dismiss_sign("u", memory.recall("u").suspicion_number);
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

/// Something calls a machine while its reconcile has not ended that is to wait.
#[test]
fn a_call_that_comes_before_the_wait_for_capacity_ends_it_and_no_other_wait() {
    let later = || Until::Moment(Instant::now() + Duration::from_mins(10));
    let retry = |cause| Retry {
        attempts: 3,
        cause,
        until: later(),
        inputs: 7,
        untold: None,
    };
    let waits = |memory: &Memory| {
        let retry = memory.recall("u").retry.unwrap();
        let Until::Moment(until) = retry.until else {
            panic!("{retry:?}");
        };
        until > Instant::now()
    };
    let memory = Memory::default();
    memory.has_capacity("u");
    memory.failed("u", 0, retry(Cause::Capacity));
    assert!(!waits(&memory), "it was called already");
    memory.failed("u", 0, retry(Cause::Capacity));
    assert!(waits(&memory), "one call ends one wait");
    memory.is_over("u");
    assert!(waits(&memory) && !memory.waits_to_pass("u"));
    memory.has_capacity("u");
    assert!(!waits(&memory));
    assert_eq!(
        memory.recall("u").retry.unwrap().attempts,
        0,
        "what failed is history"
    );
    memory.failed("u", 0, retry(Cause::Transient));
    memory.has_capacity("u");
    assert!(waits(&memory) && memory.waits_to_pass("u"));
    memory.is_over("u");
    assert!(!waits(&memory));
}
