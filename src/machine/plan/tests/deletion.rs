//! Plans for a machine that is being deleted.

use super::*;
use crate::machine::plan::deletion::time_to_shut_down;

#[track_caller]
fn delete(plan: Plan) -> Delete {
    match plan {
        Plan::Delete(plan) => *plan,
        other => panic!("expected a deletion, got {other:?}"),
    }
}

fn deleted() -> MachineFixture {
    machine().claimed().deleted_at(now())
}

#[test]
fn a_vm_is_deleted_with_the_spec_that_it_was_made_from() {
    let plan = delete(world().plan(deleted().spec(&json!({"size": "l"})).provider_id("sim://1")));
    assert_eq!(plan.spec, tagged(&json!({"size": "s"})));
    assert_eq!(plan.provider_id.unwrap().as_str(), "sim://1");
}

#[test]
fn a_deletion_needs_neither_owner_nor_cluster_nor_bootstrap_data_nor_a_valid_spec() {
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
    for fixture in [deleted(), deleted().annotated(labels::FORCE_DELETE, "true")] {
        assert_eq!(
            reason_of(world().paused().plan(fixture)),
            (conditions::PAUSED, reason::PAUSED)
        );
    }
}

/// DRV-07: the VM is the target's by now, and clusterctl removes the finalizer itself. It takes the other annotations away
/// as well, which must not be called a lost identity.
#[test]
fn what_clusterctl_moves_away_is_left_though_no_pause_is_seen() {
    let moved = || deleted().annotated(labels::DELETE_FOR_MOVE, "");
    for world in [
        world(),
        world().paused(),
        world().without_cluster(),
        world().driver_not_configured(),
    ] {
        let lost = moved().provider_id("sim://1").without(labels::MACHINE_ID);
        for fixture in [moved(), lost] {
            let plan = world.plan(fixture);
            assert_eq!(plan, Plan::Later(Duration::from_mins(1)));
        }
    }
    let forced = moved().annotated(labels::FORCE_DELETE, "true");
    assert_eq!(world().plan(forced), Plan::Release(Release::Forced));
}

/// A mark that stays is not clusterctl's, or clusterctl was cut short.
#[test]
fn a_deletion_that_a_mark_of_clusterctl_keeps_says_so_after_a_minute() {
    let marked = || deleted().annotated(labels::DELETE_FOR_MOVE, "");
    for world in [world(), world().paused(), world().without_cluster()] {
        let world = world.seconds_later(60);
        for fixture in [marked(), marked().without(labels::MACHINE_ID)] {
            let hold = held(world.plan(fixture));
            let said = (hold.condition, hold.reason);
            assert_eq!(said, (conditions::DELETING, reason::DELETE_FOR_MOVE));
            assert!(hold.message.contains(labels::FORCE_DELETE), "{}", hold.message);
        }
    }
}

/// Or it would show what it was before.
#[test]
fn a_deletion_that_only_others_keep_says_who() {
    let kept = || {
        machine()
            .provisioned()
            .deleted_at(now())
            .without_finalizer()
            .kept_by("example.com/a")
            .kept_by("example.com/b")
    };
    let hold = held(world().plan(kept()));
    let said = (hold.condition, hold.reason);
    assert_eq!(said, (conditions::DELETING, reason::WAITING_FOR_FINALIZERS));
    assert!(
        hold.message.ends_with("example.com/a, example.com/b"),
        "{}",
        hold.message
    );
    assert_left(&world().paused(), kept());
    assert_left(&world(), machine().deleted_at(now()).kept_by("example.com/a"));
}

#[test]
fn force_lets_a_machine_go_whatever_is_known_of_it() {
    for fixture in [
        deleted(),
        deleted().without(labels::MACHINE_ID),
        deleted().without(labels::APPLIED_PROVIDER_SPEC),
    ] {
        let forced = fixture.annotated(labels::FORCE_DELETE, "true");
        assert_eq!(
            world().driver_not_configured().plan(forced),
            Plan::Release(Release::Forced)
        );
    }
    delete(world().plan(deleted().annotated(labels::FORCE_DELETE, "yes")));
}

#[test]
fn a_vm_is_not_deleted_in_the_name_of_another_machine() {
    let foreign = (conditions::DELETING, reason::FOREIGN_IDENTITY);
    for fixture in [
        deleted().without(labels::MACHINE_ID),
        deleted().annotated(labels::MACHINE_ID, "ns1/other/u-9"),
        deleted().without(labels::APPLIED_PROVIDER_SPEC),
    ] {
        let hold = held(world().plan(fixture));
        assert_eq!((hold.condition, hold.reason), foreign);
        assert!(hold.message.contains(labels::FORCE_DELETE), "{}", hold.message);
    }
}

#[test]
fn what_was_never_created_goes_without_a_call() {
    let never = deleted().annotated(labels::INSTANCE, "none");
    assert_eq!(
        world().out_of_contact().plan(never),
        Plan::Release(Release::NeverCreated)
    );
}

#[test]
fn a_lost_note_or_one_that_an_id_contradicts_is_no_proof_that_there_is_no_vm() {
    delete(world().plan(deleted().without(labels::INSTANCE)));
    let contradicted = deleted()
        .annotated(labels::INSTANCE, "none")
        .provider_id("sim://1");
    delete(world().plan(contradicted));
}

#[test]
fn a_deletion_waits_for_its_driver_to_be_configured() {
    let hold = held(world().driver_not_configured().plan(deleted()));
    assert_eq!(
        (hold.condition, hold.reason),
        (conditions::DELETING, reason::DRIVER_NOT_CONFIGURED)
    );
    assert!(hold.again.is_some());
}

#[test]
fn the_guest_is_shut_down_while_its_time_lasts() {
    let shuts_down =
        |seconds, fixture: MachineFixture| delete(world().seconds_later(seconds).plan(fixture)).shut_down;
    assert!(shuts_down(0, deleted()));
    assert!(shuts_down(59, deleted()));
    assert!(!shuts_down(60, deleted()));
    let mut at_once = deleted().build();
    at_once.spec.shutdown_timeout_seconds = Some(0);
    assert_eq!(time_to_shut_down(&at_once, now()), None);
    let cannot = world().not_offering(Operation::ShutDownMachine);
    assert!(!delete(cannot.plan(deleted())).shut_down);
}

/// A call every few seconds for every VM that takes its time would be a load on the driver for as long as a cluster goes.
#[test]
fn the_longer_a_vm_takes_to_go_the_rarer_it_is_asked_after() {
    let again = |world: World, seconds| {
        delete(world.seconds_later(seconds).plan(deleted()))
            .again
            .as_secs()
    };
    let without = || world().not_offering(Operation::ShutDownMachine);
    let paced = [-100, 0, 40, 100, 100_000].map(|seconds| again(without(), seconds));
    assert_eq!(paced, [5, 5, 10, 25, 60]);
    assert_eq!(again(world(), 40), 10);
    assert_eq!(again(world(), 57), 3, "not beyond the time to shut down");
    assert_eq!(again(world(), 100), 25, "which is over");
}

/// CTL-DE-02, CTL-DE-13
#[test]
fn a_deletion_that_failed_is_not_repeated_before_its_time() {
    assert_eq!(world().remembering(40).plan(deleted()), waits(40));
    let failed = |during| deleted().failed(during, Operation::DeleteMachine, Code::Internal, 40);
    assert_eq!(world().plan(failed(OperationType::Delete)), waits(40));
    delete(world().plan(failed(OperationType::Create)));
}
