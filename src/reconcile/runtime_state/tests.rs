//! Tests the contents of the runtime state and when they are dropped.

use super::*;
use crate::api::v1alpha1::InfraMachineSpec;

fn at(version: &str) -> Arc<InfraMachine> {
    let mut machine = InfraMachine::new("m", InfraMachineSpec::default());
    machine.metadata.resource_version = Some(version.to_owned());
    Arc::new(machine)
}

#[test]
fn a_cache_that_is_behind_our_own_write_is_not_believed() {
    let states = RuntimeStates::default();
    states.record_write("u", at("100"));
    assert_eq!(
        states
            .newest("u", || at("99"))
            .metadata
            .resource_version
            .as_deref(),
        Some("100")
    );
    assert_eq!(
        states
            .newest("u", || at("101"))
            .metadata
            .resource_version
            .as_deref(),
        Some("101")
    );
    assert!(
        states.get("u").written.is_none(),
        "it goes when the cache has caught up"
    );
}

#[test]
fn our_own_write_is_known_also_when_the_cache_gets_it_while_it_is_read() {
    let states = RuntimeStates::default();
    states.record_write("u", at("100"));
    let read_before = at("99");
    let newest = states.newest("u", || {
        states.caught_up("u", &at("100"));
        Arc::clone(&read_before)
    });
    assert_eq!(newest.metadata.resource_version.as_deref(), Some("100"));
}

#[test]
fn a_suspicion_outlives_a_failure_and_ends_with_an_answer() {
    let states = RuntimeStates::default();
    states.hint("u", LookUpHint::Signal);
    let retry = Retry {
        during: OperationType::Create,
        attempts: 1,
        trigger: RetryTrigger::Other,
        until: RetryCondition::Time(Instant::now()),
        inputs: 0,
    };
    states.failed("u", states.get("u").hint_number(), retry);
    let known = states.get("u");
    assert!(known.hint.is_some_and(|hint| !hint.is_new));
    states.succeeded("u", states.get("u").hint_number());
    assert!(states.get("u").hint.is_none());
}

/// A Node goes silent during a call about its VM. The call started earlier, so its answer says nothing about
/// this.
#[test]
fn a_suspicion_that_comes_during_a_call_is_not_answered_by_it() {
    let states = RuntimeStates::default();
    let hint = |uid: &str| states.get(uid).hint_number();
    states.hint("u", LookUpHint::Signal);
    let before = hint("u");
    states.hint("u", LookUpHint::Signal);
    states.succeeded("u", before);
    assert_eq!(states.get("u").hinted(), Some(LookUpHint::Signal));
    states.drop_signal("u", before);
    assert_eq!(states.get("u").hinted(), Some(LookUpHint::Signal));
    let retry = Retry {
        during: OperationType::Create,
        attempts: 1,
        trigger: RetryTrigger::Other,
        until: RetryCondition::Time(Instant::now()),
        inputs: 0,
    };
    states.failed("u", before, retry);
    assert!(states.get("u").hint.unwrap().is_new, "it waits for nothing");
    states.succeeded("u", hint("u"));
    assert_eq!(states.get("u").hinted(), None);
    // The same applies without an earlier hint.
    let before = hint("v");
    states.hint("v", LookUpHint::Signal);
    states.succeeded("v", before);
    assert_eq!(states.get("v").hinted(), Some(LookUpHint::Signal));
}

#[test]
fn our_own_write_is_kept_only_until_the_cache_has_it() {
    let states = RuntimeStates::default();
    states.record_write("u", at("100"));
    states.caught_up("u", &at("99"));
    assert!(states.get("u").written.is_some(), "the cache is behind");
    states.caught_up("u", &at("100"));
    assert!(states.machines.lock().is_empty(), "what says nothing is not kept");
}

#[test]
fn absence_is_measured_from_the_first_sighting_and_ends_with_the_vm_seen() {
    let (states, start) = (RuntimeStates::default(), Instant::now());
    assert_eq!(states.absent_for("u", start), Duration::ZERO);
    assert_eq!(
        states.absent_for("u", start + Duration::from_secs(3)),
        Duration::from_secs(3)
    );
    states.clear_absence("u");
    assert_eq!(
        states.absent_for("u", start + Duration::from_secs(4)),
        Duration::ZERO
    );
}

/// NOT_FOUND, UNAVAILABLE, NOT_FOUND is not a continuous absence. Both NOT_FOUND answers may be stale.
#[test]
fn a_failure_in_between_breaks_an_absence_off() {
    let (states, start) = (RuntimeStates::default(), Instant::now());
    states.absent_for("u", start);
    let retry = Retry {
        during: OperationType::Create,
        attempts: 1,
        trigger: RetryTrigger::Other,
        until: RetryCondition::Time(start),
        inputs: 0,
    };
    states.failed("u", states.get("u").hint_number(), retry);
    assert_eq!(
        states.absent_for("u", start + Duration::from_secs(9)),
        Duration::ZERO
    );
}

/// A list shows the VM again, or the machine was paused. A single stale answer days later must not complete
/// the window.
#[test]
fn an_absence_that_is_not_confirmed_any_further_is_broken_off() {
    let (states, start) = (RuntimeStates::default(), Instant::now());
    states.absent_for("u", start);
    states.drop_list_hint("u");
    assert_eq!(
        states.absent_for("u", start + Duration::from_hours(48)),
        Duration::ZERO
    );
}

#[test]
fn what_only_forgets_remembers_nothing_of_an_object_that_is_gone() {
    let states = RuntimeStates::default();
    states.newest("u", || at("1"));
    states.succeeded("u", states.get("u").hint_number());
    states.clear_absence("u");
    assert!(states.machines.lock().is_empty());
}

#[test]
fn a_suspicion_lasts_until_the_driver_was_asked() {
    let states = RuntimeStates::default();
    states.hint("u", LookUpHint::Signal);
    states.absent_for("u", Instant::now());
    assert!(
        states.get("u").hint.is_some(),
        "it outlives an absence that is not confirmed yet"
    );
    states.settle("u", Instant::now());
    states.succeeded("u", states.get("u").hint_number());
    let known = states.get("u");
    assert!(known.hint.is_none() && known.presence.is_none());
}

#[test]
fn machines_that_went_away_unseen_are_forgotten() {
    let states = RuntimeStates::default();
    states.hint("gone", LookUpHint::Signal);
    states.hint("there", LookUpHint::Signal);
    states.forget_all_but(|uid| uid == "there");
    assert_eq!(states.get("gone").hinted(), None);
    assert_eq!(states.get("there").hinted(), Some(LookUpHint::Signal));
}

#[test]
fn a_sign_does_not_take_back_what_lists_say() {
    let states = RuntimeStates::default();
    states.hint("u", LookUpHint::Missing);
    states.hint("u", LookUpHint::Signal);
    states.drop_signal("u", states.get("u").hint_number());
    assert_eq!(states.get("u").hinted(), Some(LookUpHint::Missing));
    states.hint("u", LookUpHint::Back);
    assert_eq!(
        states.get("u").hinted(),
        Some(LookUpHint::Back),
        "the newest list counts"
    );
}

#[test]
fn a_list_that_has_the_vm_takes_back_what_lists_said_and_no_sign() {
    let states = RuntimeStates::default();
    for (hint, left) in [
        (LookUpHint::Missing, None),
        (LookUpHint::Back, None),
        (LookUpHint::Signal, Some(LookUpHint::Signal)),
    ] {
        states.hint("u", hint);
        states.drop_list_hint("u");
        assert_eq!(states.get("u").hinted(), left);
    }
}

/// The capacity signal arrives before the reconcile that starts the wait has ended.
#[test]
fn an_early_capacity_signal_ends_only_the_next_capacity_wait() {
    let later = || RetryCondition::Time(Instant::now() + Duration::from_mins(10));
    let retry = |trigger| Retry {
        during: OperationType::Create,
        attempts: 3,
        trigger,
        until: later(),
        inputs: 7,
    };
    let waits = |states: &RuntimeStates| {
        let retry = states.get("u").retry.unwrap();
        let RetryCondition::Time(until) = retry.until else {
            panic!("{retry:?}");
        };
        until > Instant::now()
    };
    let states = RuntimeStates::default();
    let is_delayed = || states.get("u").hint.is_none_or(|hint| !hint.is_new);
    states.signal_capacity("u");
    states.failed("u", 0, retry(RetryTrigger::Capacity));
    assert!(!is_delayed(), "it was woken already");
    states.failed("u", states.get("u").hint_number(), retry(RetryTrigger::Capacity));
    assert!(waits(&states) && is_delayed(), "one wake ends one wait");
    states.end_transient_wait("u");
    assert!(waits(&states) && states.waiting_for_transient(|_| 1).is_empty());
    states.signal_capacity("u");
    assert!(!waits(&states));
    assert_eq!(
        states.get("u").retry.unwrap().attempts,
        0,
        "what failed is history"
    );
    states.failed("u", 0, retry(RetryTrigger::Transient));
    states.signal_capacity("u");
    assert!(waits(&states));
    assert_eq!(states.waiting_for_transient(|_| 1), [1].into());
    states.end_transient_wait("u");
    assert!(!waits(&states));
}

/// Otherwise, a running fleet would have an entry for each machine that this process has created.
#[test]
fn of_a_machine_at_rest_nothing_is_kept_once_its_vm_is_found() {
    let states = RuntimeStates::default();
    let uids: Vec<_> = (0..1000).map(|n| format!("u-{n}")).collect();
    for uid in &uids {
        states.answered(uid, Timestamp::UNIX_EPOCH);
        states.caught_up(uid, &at("1"));
        assert!(states.get(uid).answered.is_some(), "its deletion need not wait");
        states.found(uid, 0);
    }
    for uid in &uids {
        states.caught_up(uid, &at("1"));
    }
    let machines = states.machines.lock();
    assert!(machines.is_empty() && machines.capacity() < 10);
}

#[test]
fn a_confirming_list_ends_absence_and_list_hints_and_keeps_signals() {
    let states = RuntimeStates::default();
    states.absent_for("absent", Instant::now());
    states.hint("missing", LookUpHint::Missing);
    states.hint("silent", LookUpHint::Signal);
    states.hint("other", LookUpHint::Missing);
    states.drop_list_hints(|uid| uid != "other");
    assert!(states.get("absent").absent_since().is_none());
    assert_eq!(states.get("missing").hinted(), None);
    assert_eq!(states.get("silent").hinted(), Some(LookUpHint::Signal));
    assert_eq!(states.get("other").hinted(), Some(LookUpHint::Missing));
}

/// UpdateMachine answers NOT_FOUND, and the look-up that this causes finds the VM.
#[test]
fn a_look_up_does_not_end_the_wait_of_a_failed_update() {
    let states = RuntimeStates::default();
    for (during, is_kept) in [(OperationType::Update, true), (OperationType::Create, false)] {
        let retry = Retry {
            during,
            attempts: 3,
            trigger: RetryTrigger::Other,
            until: RetryCondition::Time(Instant::now()),
            inputs: 0,
        };
        states.failed("u", 0, retry);
        states.found("u", 0);
        assert_eq!(states.get("u").retry.is_some(), is_kept, "{during:?}");
    }
    states.succeeded("u", 0);
    assert!(states.get("u").retry.is_none());
}
