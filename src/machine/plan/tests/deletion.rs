//! Plans for a machine that is being deleted.

use super::*;
use crate::machine::fixtures::{GIVEN_UP_AFTER, SETTLE};
use crate::machine::outcome::RemovalReason;

#[track_caller]
fn delete(plan: Plan) -> Delete {
    match plan {
        Plan::CallDriver(DriverPlan::Delete(plan)) => *plan,
        other => panic!("expected a deletion, got {other:?}"),
    }
}

fn deleted() -> MachineFixture {
    machine().identified().deleted_at(now())
}

fn known() -> MachineFixture {
    machine().known("sim://1").deleted_at(now())
}

#[test]
fn a_vm_is_deleted_with_the_spec_that_it_was_made_from() {
    let plan = delete(world().plan(known().spec(&json!({"size": "l"}))));
    assert_eq!(plan.spec, tagged(&json!({"size": "s"})));
    assert_eq!(plan.provider_id.unwrap().as_str(), "sim://1");
}

#[test]
fn a_deletion_needs_no_owner_cluster_bootstrap_data_or_valid_spec() {
    let world = world()
        .without_owner()
        .without_cluster()
        .without_bootstrap()
        .violating("no");
    delete(world.plan(deleted()));
}

#[test]
fn a_machine_without_our_finalizer_is_left() {
    assert_left(&world(), deleted().without_finalizer());
}

#[test]
fn a_paused_machine_is_not_deleted_not_even_by_force() {
    for fixture in [deleted(), deleted().annotated(annotations::FORCE_DELETE, "true")] {
        assert_eq!(
            reason_of(world().paused().plan(fixture)),
            (conditions::PAUSED, reason::PAUSED)
        );
    }
}

/// DRV-07: the VM belongs to the target now, and clusterctl removes the finalizer. It also removes the other
/// annotations, which must not be reported as a lost identity.
#[test]
fn what_clusterctl_moves_away_is_left_though_no_pause_is_seen() {
    let moved = || deleted().annotated(annotations::DELETE_FOR_MOVE, "");
    for world in [
        world(),
        world().paused(),
        world().without_cluster(),
        world().driver_not_configured(),
    ] {
        let lost = moved().provider_id("sim://1").without_record();
        for fixture in [moved(), lost] {
            let plan = world.plan(fixture);
            assert_eq!(plan, Outcome::Unchanged(Some(Duration::from_mins(1))));
        }
    }
    // An interrupted move leaves the Cluster paused.
    for world in [world(), world().paused()] {
        let forced = moved().annotated(annotations::FORCE_DELETE, "true");
        assert_eq!(
            world.plan(forced),
            Outcome::RemoveFinalizer(RemovalReason::Forced)
        );
    }
}

/// The mark stays when clusterctl was interrupted or another client set the mark.
#[test]
fn a_deletion_that_a_mark_of_clusterctl_keeps_says_so_after_a_minute() {
    let marked = || deleted().annotated(annotations::DELETE_FOR_MOVE, "");
    for world in [world(), world().paused(), world().without_cluster()] {
        let world = world.seconds_later(60);
        for fixture in [marked(), marked().without_record()] {
            let block = blocked(world.plan(fixture));
            let said = (block.condition, block.reason);
            assert_eq!(said, (conditions::DELETING, reason::DELETE_FOR_MOVE));
            assert!(
                block.message.contains(annotations::FORCE_DELETE),
                "{}",
                block.message
            );
        }
    }
}

/// Otherwise, the status would be outdated.
#[test]
fn a_deletion_that_only_other_finalizers_keep_names_them() {
    let kept = || {
        machine()
            .provisioned()
            .deleted_at(now())
            .without_finalizer()
            .kept_by("example.com/a")
            .kept_by("example.com/b")
    };
    let block = blocked(world().plan(kept()));
    let said = (block.condition, block.reason);
    assert_eq!(said, (conditions::DELETING, reason::WAITING_FOR_FINALIZERS));
    assert!(
        block.message.ends_with("example.com/a, example.com/b"),
        "{}",
        block.message
    );
    assert_left(&world().paused(), kept());
    assert_left(&world(), machine().deleted_at(now()).kept_by("example.com/a"));
}

#[test]
fn force_lets_a_machine_go_whatever_is_known_of_it() {
    for fixture in [
        deleted(),
        deleted().without_record(),
        deleted().with_copied_record(),
    ] {
        let forced = fixture.annotated(annotations::FORCE_DELETE, "true");
        assert_eq!(
            world().driver_not_configured().plan(forced),
            Outcome::RemoveFinalizer(RemovalReason::Forced)
        );
    }
    delete(world().plan(deleted().annotated(annotations::FORCE_DELETE, "yes")));
}

#[test]
fn a_vm_is_not_deleted_in_the_name_of_another_machine() {
    let foreign = (conditions::DELETING, reason::FOREIGN_IDENTITY);
    for fixture in [
        deleted().without_record(),
        deleted().with_copied_record(),
        deleted().annotated(annotations::VM_RECORD, "{"),
    ] {
        let block = blocked(world().plan(fixture));
        assert_eq!((block.condition, block.reason), foreign);
        assert!(
            block.message.contains(annotations::FORCE_DELETE),
            "{}",
            block.message
        );
    }
}

#[test]
fn what_was_never_created_goes_without_a_call() {
    let never = machine().recorded(VmState::None).deleted_at(now());
    for never in [never.clone(), never.provider_id("sim://1")] {
        assert_eq!(
            world().capabilities_unknown().plan(never),
            Outcome::RemoveFinalizer(RemovalReason::NeverCreated)
        );
    }
}

#[test]
fn a_deletion_waits_for_its_driver_to_be_configured() {
    let block = blocked(world().driver_not_configured().plan(deleted()));
    assert_eq!(
        (block.condition, block.reason),
        (conditions::DELETING, reason::DRIVER_NOT_CONFIGURED)
    );
    assert!(block.requeue_after.is_some());
    assert!(
        block.message.contains(annotations::FORCE_DELETE),
        "it does not say how to end it: {}",
        block.message
    );
}

fn shutting_down(seconds: i64) -> MachineFixture {
    machine()
        .recorded(VmState::ShuttingDown {
            accepted: at(seconds),
            unanswered: None,
        })
        .provider_id("sim://1")
        .deleted_at(now())
}

/// A long outage, pause or queue must not consume the grace period.
#[test]
fn the_guests_time_runs_from_when_the_driver_accepted_to_shut_it_down() {
    let shut_down = |seconds, fixture| delete(world().seconds_later(seconds).plan(fixture)).shut_down;
    let accepted = |seconds| shutting_down(seconds);
    let asked = shut_down(86_400, deleted()).unwrap();
    assert_eq!((asked.accepted, asked.left(at(86_400)).as_secs()), (None, 60));
    let left = |seconds, fixture| shut_down(seconds, fixture).map(|given| given.left(at(seconds)).as_secs());
    assert_eq!(left(86_430, accepted(86_400)), Some(30));
    assert_eq!(left(86_460, accepted(86_400)), None);
    assert_eq!(
        shut_down(0, accepted(30)).unwrap().accepted,
        None,
        "after a clock was set back, the driver is asked anew"
    );
    let mut at_once = deleted().build();
    at_once.spec.shutdown_timeout_seconds = Some(0);
    assert_eq!(shut_down(0, at_once.into()), None);
    let cannot = world().not_offering(Operation::ShutDownMachine);
    assert_eq!(delete(cannot.plan(deleted())).shut_down, None);
}

/// Otherwise, a driver whose shut-down never works would keep every VM forever.
#[test]
fn a_shut_down_has_its_last_try_after_its_time_and_four_failures() {
    let last_try = |seconds, failures, fixture| {
        let world = world().seconds_later(seconds).failed(failures);
        delete(world.plan(fixture)).shut_down.unwrap().last_try
    };
    assert!(last_try(60, 4, deleted()));
    assert!(!last_try(59, 4, deleted()), "the guest's time is not over");
    assert!(!last_try(86_400, 3, deleted()), "it was asked less often");
    let accepted = deleted().recorded(VmState::ShuttingDown {
        accepted: at(60),
        unanswered: None,
    });
    assert!(!last_try(90, 4, accepted), "the guest has its time");
}

/// Returns a machine with unanswered creates at these times.
fn issued(seconds: &[i64]) -> MachineFixture {
    machine()
        .recorded(VmState::Creating {
            issued: at(seconds.iter().copied().max().unwrap()),
            several: seconds.len() > 1,
        })
        .deleted_at(now())
}

/// Returns a machine with a known VM and another create at this time.
fn known_beside(seconds: i64) -> MachineFixture {
    let unanswered = Some(at(seconds));
    machine()
        .recorded(VmState::Exists { unanswered })
        .provider_id("sim://1")
        .deleted_at(now())
}

/// A cancelled call may continue in the back end.
#[test]
fn a_deletion_waits_until_an_unanswered_create_can_make_no_vm() {
    let pending_create = |world: World, fixture| delete(world.plan(fixture)).pending_create;
    let left = |world: World, fixture| {
        pending_create(world, fixture).map(|pending_create| pending_create.left.as_secs())
    };
    let after = |seconds: i64| world().seconds_later(600 + seconds);
    let noted = pending_create(after(20), issued(&[0])).unwrap();
    let latest = at(0) + GIVEN_UP_AFTER + SETTLE;
    assert_eq!((noted.issued, noted.latest, noted.time), (at(0), latest, SETTLE));
    assert_eq!(left(after(20), issued(&[0])), Some(40));
    assert_eq!(left(after(60), issued(&[0])), None);
    assert_eq!(left(after(60), issued(&[0, 30])), Some(30), "the latest counts");
    assert_eq!(
        left(after(0), issued(&[0])),
        Some(60),
        "it may have been under way until now"
    );
    assert_eq!(left(after(20), known_beside(0)), Some(40), "it may make another");
    assert_eq!(left(world(), known()), None, "it was answered");
}

#[test]
fn a_create_that_the_driver_has_answered_is_not_waited_for() {
    let pending_create = |world: World, fixture| delete(world.seconds_later(20).plan(fixture)).pending_create;
    assert_eq!(pending_create(world().answered(10), issued(&[10])), None);
    assert!(
        pending_create(world().answered(10), issued(&[5, 10])).is_some(),
        "one before was not"
    );
    assert!(pending_create(world().answered(5), issued(&[10])).is_some());
}

/// The clock was set back, or the clock of the create's process was ahead.
#[test]
fn no_clock_makes_the_wait_for_a_create_longer_than_its_time() {
    let left = |world: World, fixture| {
        delete(world.plan(fixture))
            .pending_create
            .map(|pending_create| pending_create.left.as_secs())
    };
    assert_eq!(left(world().seconds_later(-86_400), issued(&[0])), Some(60));
    assert_eq!(
        left(world().seconds_later(-86_400).absent_for(45), issued(&[0])),
        Some(15)
    );
    assert_eq!(
        left(world().seconds_later(-86_400).absent_for(60), issued(&[0])),
        None
    );
    assert_eq!(
        left(world().seconds_later(650).absent_for(20), issued(&[0])),
        Some(10)
    );
    assert_eq!(
        left(world().seconds_later(2).absent_for(20), issued(&[0])),
        Some(40),
        "it was given up long before its timeout"
    );
}

proptest::proptest! {
    /// With any clocks, a deletion waits at most for the settle time. It does not wait after any clock has
    /// seen the settle time pass. It waits at least as long as a correct clock requires.
    #[test]
    fn the_wait_for_a_pending_create_is_exact_with_any_clocks(
        issued_at in -100i64..100, seen_at in -200i64..900, absent in proptest::option::of(0u64..100),
    ) {
        let world = world().seconds_later(seen_at);
        let world = absent.map_or(world.clone(), |seconds| world.clone().absent_for(seconds));
        let pending_create = delete(world.plan(issued(&[issued_at]))).pending_create;
        let left = pending_create.map_or(0, |pending_create| pending_create.left.as_secs());
        let settle = SETTLE.as_secs();
        let whole = settle + GIVEN_UP_AFTER.as_secs();
        let passed = u64::try_from(seen_at - issued_at);
        let by_wall_clock = passed.map_or(settle, |passed| whole.saturating_sub(passed));
        let by_own_clock = absent.map_or(settle, |passed| settle.saturating_sub(passed));
        proptest::prop_assert_eq!(left, by_wall_clock.min(by_own_clock));
        proptest::prop_assert!(left <= settle);
    }
}

#[test]
fn another_vm_is_looked_for_only_where_a_create_may_have_made_one() {
    assert!(delete(world().seconds_later(86_400).plan(known_beside(0))).may_have_second_vm);
    assert!(!delete(world().plan(known())).may_have_second_vm);
    assert!(
        !delete(world().plan(issued(&[0]))).may_have_second_vm,
        "any VM of the machine is looked for anyway"
    );
}

/// A disk may have been made before the refusal.
#[test]
fn leftovers_of_a_refused_create_are_deleted_if_the_driver_exists() {
    let refused = || machine().recorded(VmState::Refused).deleted_at(now());
    let plan = delete(world().plan(refused()));
    assert!(plan.refused);
    assert_eq!(
        (plan.shut_down, plan.pending_create),
        (None, None),
        "there is no VM"
    );
    assert_eq!(
        world().driver_not_configured().plan(refused()),
        Outcome::RemoveFinalizer(RemovalReason::NeverCreated)
    );
    assert!(!delete(world().plan(deleted())).refused);
}

/// Polling every few seconds during a slow deletion would overload the driver.
#[test]
fn the_longer_a_vm_takes_to_go_the_rarer_it_is_asked_after() {
    let requeue_after = |world: World, seconds| {
        delete(world.seconds_later(seconds).plan(deleted()))
            .requeue_after
            .as_secs()
    };
    let paced = [-100, 0, 40, 100, 100_000].map(|seconds| requeue_after(world(), seconds));
    assert_eq!(paced, [5, 5, 10, 25, 60]);
    let accepted = shutting_down(0);
    let while_it_stops = |seconds| {
        delete(world().seconds_later(seconds).plan(accepted.clone()))
            .requeue_after
            .as_secs()
    };
    assert_eq!(while_it_stops(40), 10);
    assert_eq!(while_it_stops(57), 3, "not beyond the time to shut down");
    assert_eq!(while_it_stops(100), 25, "which is over");
}

/// CTL-DE-02, CTL-DE-13
#[test]
fn a_deletion_that_failed_is_not_repeated_before_its_time() {
    assert_eq!(world().remembering(40).plan(deleted()), waits(40));
    let failed = |during| deleted().failed(during, Operation::DeleteMachine, Code::Internal, 40);
    assert_eq!(world().plan(failed(OperationType::Delete)), waits(40));
    delete(world().plan(failed(OperationType::Create)));
}
