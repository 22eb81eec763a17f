//! Tests every rule of the contract with one machine in one world.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::api::conditions::ConditionStatus;
use crate::api::retry::Call;
use crate::api::v1alpha1::OperationType;
use crate::driver::Priority;
use crate::machine::fixtures::{INPUTS, MachineFixture, SETTLE, World, at, machine, now, tagged, world};
use crate::machine::outcome::{Failure, Outcome};
use crate::machine::status::{self, RetryTiming};
use crate::reconcile::runtime_state::RetryCondition;
use cmi_driver::{Code, Operation, Status};

mod addresses;
mod adoption;
mod deletion;
mod provisioned;

/// Outcomes contain errors, which can only be compared by their debug output.
impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl PartialEq<Outcome> for Plan {
    fn eq(&self, other: &Outcome) -> bool {
        matches!(self, Self::Outcome(outcome) if format!("{outcome:?}") == format!("{other:?}"))
    }
}

/// Returns the block of a plan.
#[track_caller]
fn blocked(plan: Plan) -> Blocked {
    match plan {
        Plan::Outcome(Outcome::Blocked(block)) => block,
        other => panic!("expected a block, got {other:?}"),
    }
}

#[track_caller]
fn reason_of(plan: Plan) -> (&'static str, &'static str) {
    let block = blocked(plan);
    (block.condition, block.reason)
}

#[track_caller]
fn provision(plan: Plan) -> Provision {
    match plan {
        Plan::CallDriver(DriverPlan::Provision(plan)) => *plan,
        other => panic!("expected a provision, got {other:?}"),
    }
}

#[track_caller]
fn refused(plan: Plan) -> InvalidSpec {
    match plan {
        Plan::Outcome(Outcome::Refused { invalid, .. }) => invalid,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[track_caller]
fn assert_left(world: &World, machine: MachineFixture) {
    let plan = world.plan(machine);
    let is_left = matches!(
        plan,
        Plan::Outcome(Outcome::Unchanged(None) | Outcome::Waiting(None))
    );
    assert!(is_left, "{plan:?}");
}

fn waits(seconds: u64) -> Outcome {
    Outcome::Waiting(Some(Duration::from_secs(seconds)))
}

/// Like [`failing`], for a first failure.
fn failing_once(seconds: i64) -> MachineFixture {
    failing(seconds).status(|status| {
        if let Some(last) = &mut status.last_operation {
            last.attempts = 1;
        }
    })
}

fn failing(seconds: i64) -> MachineFixture {
    machine().identified().failed(
        OperationType::Create,
        Operation::CreateMachine,
        Code::Unavailable,
        seconds,
    )
}

#[test]
fn without_a_machine_as_controller_owner_nothing_is_written() {
    for world in [world().without_owner(), world().owner_not_cached()] {
        let plan = world.plan(machine());
        assert!(
            matches!(plan, Plan::Outcome(Outcome::Unchanged(Some(_)))),
            "{plan:?}"
        );
    }
}

/// Cluster API creates the object shortly before its owner Machine.
#[test]
fn a_machine_without_an_owner_for_a_minute_says_so_and_is_not_written_to() {
    let later = |seconds| Outcome::Unchanged(Some(Duration::from_secs(seconds)));
    for world in [world().without_owner(), world().owner_not_cached()] {
        assert_eq!(world.plan(machine()), later(60));
    }
    assert_eq!(
        world().without_owner().seconds_later(59).plan(machine()),
        later(1)
    );
    assert_eq!(
        world().without_owner().seconds_later(-9).plan(machine()),
        later(60)
    );
    for world in [world().without_owner(), world().owner_not_cached()] {
        let block = blocked(world.seconds_later(60).plan(machine()));
        let said = (block.condition, block.reason);
        assert_eq!(said, (conditions::READY, reason::WAITING_FOR_OWNER));
        assert_eq!(block.record, None);
        assert!(block.message.contains("ownerReferences"), "{}", block.message);
    }
}

#[test]
fn of_a_vm_that_is_up_and_has_no_owner_any_more_ready_is_kept() {
    let orphaned = world().without_owner().seconds_later(60);
    assert_eq!(
        reason_of(orphaned.plan(machine().provisioned())),
        (conditions::VIRTUAL_MACHINE_UP_TO_DATE, reason::WAITING_FOR_OWNER)
    );
    let missing = blocked(
        world()
            .owner_not_cached()
            .seconds_later(60)
            .plan(machine().provisioned()),
    );
    assert_eq!(
        (missing.condition, missing.reason),
        (conditions::VIRTUAL_MACHINE_UP_TO_DATE, reason::WAITING_FOR_OWNER)
    );
    assert!(missing.message.contains("does not exist"), "{}", missing.message);
}

/// A move or a restore creates the objects in sequence, each shortly before its owner.
#[test]
fn restored_objects_have_a_minute_to_get_an_owner() {
    let soon = || world().without_owner().seconds_later(59);
    let labelled = || machine().labelled(labels::CLUSTER_NAME, "c");
    for (world, machine) in [
        (soon().paused(), labelled()),
        (soon(), labelled().annotated(annotations::PAUSED, "")),
        (soon().without_cluster(), labelled()),
        (world().without_cluster().seconds_later(59), machine()),
    ] {
        assert_eq!(
            world.plan(machine),
            Outcome::Unchanged(Some(Duration::from_secs(1)))
        );
    }
}

/// A paused machine gets no other write.
#[test]
fn the_paused_condition_also_reports_a_missing_owner() {
    let late = || world().without_owner().seconds_later(60);
    let labelled = || machine().labelled(labels::CLUSTER_NAME, "c");
    for block in [
        blocked(late().paused().plan(labelled())),
        blocked(late().plan(labelled().annotated(annotations::PAUSED, ""))),
        blocked(late().plan(labelled().provisioned().annotated(annotations::PAUSED, ""))),
    ] {
        assert_eq!(
            (block.condition, block.reason),
            (conditions::PAUSED, reason::PAUSED)
        );
        assert!(
            block.message.contains("remove the pause") && block.message.contains("ownerReferences"),
            "{}",
            block.message
        );
        assert!(block.record.is_none());
    }
}

#[test]
fn a_machine_names_its_missing_cluster_and_stays_ready_if_it_is_up() {
    let late = || world().without_cluster().seconds_later(60);
    let new = blocked(late().plan(machine()));
    assert_eq!(
        (new.condition, new.reason, new.record),
        (conditions::READY, reason::CLUSTER_NOT_FOUND, None)
    );
    assert!(
        new.message.contains("Cluster `c` does not exist"),
        "{}",
        new.message
    );
    assert!(new.message.ends_with("no VM is created"), "{}", new.message);
    let begun = blocked(late().plan(machine().identified()));
    assert!(
        begun
            .message
            .ends_with("a VM that was created for it is not touched"),
        "{}",
        begun.message
    );
    assert_eq!(
        reason_of(late().plan(machine().provisioned())),
        (conditions::VIRTUAL_MACHINE_UP_TO_DATE, reason::CLUSTER_NOT_FOUND)
    );
}

#[test]
fn a_machine_that_its_owner_does_not_refer_to_gets_no_vm_and_says_so() {
    let referring = |change: &dyn Fn(&mut crate::api::cluster_api::ObjectReference)| {
        world().owner(|owner| change(&mut owner.spec.infrastructure_ref))
    };
    for world in [
        referring(&|to| to.name = "m2".to_owned()),
        referring(&|to| to.kind = "OtherMachine".to_owned()),
        referring(&|to| to.api_group = "infrastructure.cluster.x-k8s.io".to_owned()),
    ] {
        for fixture in [machine(), machine().identified()] {
            let block = blocked(world.plan(fixture));
            let said = (block.condition, block.reason);
            assert_eq!(said, (conditions::READY, reason::NOT_REFERENCED));
            assert_eq!(block.record, None, "its deletion waits for nothing");
            assert!(block.message.contains("infrastructureRef"), "{}", block.message);
        }
        assert_left(&world, machine().deleted_at(now()));
        for (has_vm, keeps) in [
            (machine().provisioned(), true),
            (machine().known("sim://1"), true),
            (machine().provisioned().without_finalizer(), true),
            (machine().identified().deleted_at(now()), true),
            (machine(), false),
        ] {
            let plan = world.plan(has_vm);
            let does = matches!(
                plan,
                Plan::Outcome(Outcome::UpToDate { .. })
                    | Plan::CallDriver(DriverPlan::Refresh(_) | DriverPlan::Delete(_))
                    | Plan::RestoreFinalizer
            );
            assert_eq!(does, keeps, "{plan:?}");
        }
    }
}

#[test]
fn a_permanently_failed_machine_shows_the_start_and_end_of_a_pause() {
    let failed = || {
        machine()
            .identified()
            .observed(1)
            .status(|status| status.failure_reason = Some("InvalidArgument".to_owned()))
    };
    let paused = (conditions::PAUSED, reason::PAUSED);
    assert_eq!(reason_of(world().paused().plan(failed())), paused);
    assert_eq!(
        reason_of(world().plan(failed().annotated(annotations::PAUSED, ""))),
        paused
    );
    let shown = failed().condition(conditions::PAUSED, ConditionStatus::True, reason::PAUSED);
    assert_eq!(world().plan(shown.clone()), Outcome::Waiting(None));
    let status = status::after(
        &shown.build(),
        &Outcome::Waiting(None),
        RetryTiming {
            now: now(),
            attempts: 1,
            wait: None,
            inputs: INPUTS,
        },
    );
    assert!(!conditions::is_true(&status.conditions, conditions::PAUSED));
    assert!(status.failure_reason.is_some(), "{status:?}");
}

#[test]
fn only_a_controller_of_kind_machine_and_cluster_apis_group_is_the_owner() {
    use crate::reconcile::caches::machine_owner;
    let owned = |api_version, kind, controller| {
        machine_owner(&machine().owned_by(api_version, kind, controller).build().metadata).is_some()
    };
    assert!(owned("cluster.x-k8s.io/v1beta2", "Machine", true));
    assert!(owned("cluster.x-k8s.io/v1beta3", "Machine", true), "any version");
    assert!(!owned("cluster.x-k8s.io/v1beta2", "Machine", false));
    assert!(!owned("cluster.x-k8s.io/v1beta2", "MachineSet", true));
    assert!(!owned("machine.sapcloud.io/v1alpha1", "Machine", true));
    assert!(!owned("v1", "Machine", true));
}

/// CTL-CR-03: a refused spec is never tried again.
#[test]
fn a_machine_that_failed_for_good_is_left_until_its_spec_changes() {
    let failed = machine()
        .identified()
        .observed(1)
        .status(|status| status.failure_reason = Some("InvalidArgument".to_owned()));
    assert_left(&world(), failed.clone());
    provision(world().plan(failed.generation(2)));
}

#[test]
fn a_failure_message_alone_is_a_failure_too() {
    let failed = machine()
        .observed(1)
        .status(|status| status.failure_message = Some("no".to_owned()));
    assert_left(&world(), failed);
}

#[test]
fn a_wait_for_the_infrastructure_names_the_object_and_its_reason() {
    let message = |world: World| blocked(world.plan(machine())).message;
    assert_eq!(
        message(world().infra_cluster_not_ready(Some("DriverNotConfigured"))),
        "waiting for InfraCluster `c` to be provisioned, which reports DriverNotConfigured: check its \
            conditions"
    );
    assert_eq!(
        message(world().infra_cluster_not_ready(None)),
        "waiting for InfraCluster `c` to be provisioned"
    );
    assert!(message(world().cluster_not_ready()).contains("spec.infrastructureRef"));
}

#[test]
fn a_machine_is_left_alone_while_it_or_its_cluster_is_paused() {
    let block = blocked(
        world()
            .paused()
            .plan(machine().annotated(annotations::PAUSED, "")),
    );
    assert_eq!(
        (block.condition, block.reason),
        (conditions::PAUSED, reason::PAUSED)
    );
    assert_eq!(
        block.message,
        "Cluster spec.paused is set to true; InfraMachine has the cluster.x-k8s.io/paused annotation; \
            remove the pause to resume"
    );
    assert_eq!(block.record, None, "a pause writes no record");
    let by_annotation = blocked(world().plan(machine().annotated(annotations::PAUSED, "")));
    assert_eq!(
        by_annotation.message,
        "InfraMachine has the cluster.x-k8s.io/paused annotation; remove the pause to resume"
    );
}

#[test]
fn finalizer_and_record_come_before_every_wait() {
    for (world, why) in [
        (
            world().cluster_not_ready(),
            reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE,
        ),
        (world().without_bootstrap(), reason::WAITING_FOR_BOOTSTRAP_DATA),
        (world().driver_not_configured(), reason::DRIVER_NOT_CONFIGURED),
    ] {
        let block = blocked(world.plan(machine()));
        assert_eq!((block.condition, block.reason), (conditions::READY, why));
        let record = block.record.expect(why);
        assert_eq!(String::from(record.machine), "ns1/m1/u-1");
        assert_eq!((record.state, record.made_from), (VmState::None, None));
        let again = blocked(world.plan(machine().identified()));
        assert_eq!(again.record, None, "what is there is not written again: {why}");
    }
}

/// A restore from a backup drops finalizers. Without the finalizer, deleting the InfraMachine would leave its
/// VM behind.
#[test]
fn a_removed_finalizer_is_restored_first() {
    let provisioned = || machine().provisioned().without_finalizer();
    let failed = machine()
        .identified()
        .observed(1)
        .status(|status| status.failure_reason = Some("InvalidArgument".to_owned()));
    let check = |world: World, finalizer_missing: MachineFixture| {
        let plan = world.plan(finalizer_missing);
        assert!(matches!(plan, Plan::RestoreFinalizer), "{plan:?}");
    };
    check(world(), machine().identified().without_finalizer());
    check(
        world().cluster_not_ready(),
        machine().identified().without_finalizer(),
    );
    check(world(), failed.without_finalizer());
    check(world(), provisioned());
    check(world().refresh(), provisioned());
    check(world().violating("no"), provisioned());
    check(world().driver_not_configured(), provisioned());
    check(world().capabilities_unknown(), provisioned());
}

#[test]
fn a_finalizer_is_not_restored_when_paused_or_without_a_possible_vm() {
    let provisioned = || machine().provisioned().without_finalizer();
    assert_eq!(blocked(world().paused().plan(provisioned())).record, None);
    assert_eq!(
        reason_of(world().plan(provisioned().without_record())),
        (conditions::DRIVER_REACHABLE, reason::FOREIGN_PROVIDER_ID)
    );
    assert_left(&world(), provisioned().deleted_at(now()));
    let refused = machine()
        .recorded(VmState::None)
        .observed(1)
        .status(|status| status.failure_reason = Some("InvalidArgument".to_owned()));
    assert_left(&world(), refused.without_finalizer());
}

#[test]
fn a_provider_id_of_another_writer_leads_to_no_call() {
    let plan = world().plan(machine().provider_id("aws://i-1"));
    assert_eq!(reason_of(plan), (conditions::READY, reason::FOREIGN_PROVIDER_ID));
}

/// A record of another machine leads to no call.
#[test]
fn a_copied_or_unreadable_record_is_reported_and_leads_to_no_call() {
    let copied = || machine().identified().with_copied_record();
    let unreadable = || machine().identified().annotated(annotations::VM_RECORD, "{}");
    for (machine, names) in [(copied(), "ns1/other"), (unreadable(), "missing field `version`")] {
        let block = blocked(world().plan(machine.clone()));
        let said = (block.condition, block.reason);
        assert_eq!(said, (conditions::READY, reason::FOREIGN_IDENTITY));
        let message = block.message;
        assert!(
            message.contains(names) && message.contains(annotations::VM_RECORD),
            "{message}"
        );
        assert!(block.record.is_none(), "another's record is written over");
        let deleted = blocked(world().plan(machine.deleted_at(now())));
        let said = (deleted.condition, deleted.reason);
        assert_eq!(said, (conditions::DELETING, reason::FOREIGN_IDENTITY));
        assert!(
            deleted.message.contains(annotations::FORCE_DELETE),
            "{}",
            deleted.message
        );
    }
}

/// The VM can only be found with the cluster id of its create.
#[test]
fn a_machine_keeps_the_cluster_id_that_it_was_made_under() {
    let moved = machine()
        .identified()
        .record(|record| record.cluster = "c-before".to_owned());
    assert_eq!(provision(world().plan(moved)).record.cluster, "c-before");
}

/// INI-08
#[test]
fn a_machine_is_looked_up_and_created_with_its_spec_and_tags() {
    let plan = provision(world().plan(machine()));
    let wanted = tagged(&json!({"size": "s"}));
    assert_eq!((&plan.made_from.provider_spec, &plan.look_up), (&wanted, &wanted));
    assert_eq!(plan.bootstrap, "boot");
    assert_eq!((plan.earlier_create, plan.record.state), (false, VmState::None));
    assert_eq!(plan.made_from.driver, "pool");
}

#[test]
fn the_tags_tell_a_control_plane_machine_from_a_node() {
    let world = world().owner(|owner| {
        let labels = owner.metadata.labels.get_or_insert_default();
        labels.insert(labels::CONTROL_PLANE.to_owned(), String::new());
    });
    let plan = provision(world.plan(machine()));
    assert_eq!(
        plan.made_from
            .provider_spec
            .get(&"/tags/kubernetes.io~1role".parse().unwrap()),
        Some(&json!("control-plane"))
    );
}

/// A create with the old spec may have made the VM, so the old spec is used for the look-up.
#[test]
fn a_look_up_after_a_changed_spec_uses_the_created_spec() {
    let respecified = machine().identified().spec(&json!({"size": "l"}));
    let plan = provision(world().plan(respecified));
    assert!(plan.vm_may_exist());
    assert_eq!(plan.look_up, tagged(&json!({"size": "s"})));
    assert_eq!(plan.made_from.provider_spec, tagged(&json!({"size": "l"})));
}

#[test]
fn what_was_refused_for_good_is_no_spec_to_look_up_with() {
    let refused = machine().recorded(VmState::Refused).spec(&json!({"size": "l"}));
    let plan = provision(world().plan(refused));
    assert!(!plan.vm_may_exist());
    assert_eq!(plan.look_up, tagged(&json!({"size": "l"})));
}

/// A move loses the status, and the VM is found again by id.
#[test]
fn a_machine_that_has_an_id_and_no_status_is_looked_up_by_its_id() {
    let states = [
        VmState::Exists { unanswered: None },
        VmState::Updating { unanswered: None },
    ];
    for state in states {
        let known = machine().recorded(state).provider_id("sim://1");
        for world in [world(), world().without_bootstrap()] {
            let Plan::CallDriver(DriverPlan::Refresh(plan)) = world.plan(known.clone()) else {
                panic!("nothing is created");
            };
            assert_eq!(plan.provider_id.as_str(), "sim://1");
            assert_eq!(plan.look_up, tagged(&json!({"size": "s"})));
            assert_eq!(plan.initialize, Initialize::OnTheWayUp);
        }
    }
    let by_hand = machine().identified().provider_id("sim://9");
    assert_eq!(
        reason_of(world().plan(by_hand)),
        (conditions::READY, reason::FOREIGN_PROVIDER_ID),
        "no driver has confirmed it"
    );
}

fn creating(issued: i64, several: bool) -> MachineFixture {
    machine().recorded(VmState::Creating {
        issued: at(issued),
        several,
    })
}

/// A refused or old create can no longer be carried out.
#[test]
fn a_create_records_whether_an_earlier_one_may_still_be_pending() {
    let earlier = |world: World, machine| provision(world.plan(machine)).earlier_create;
    let later = || world().seconds_later(40);
    assert!(!earlier(later(), machine()));
    assert!(earlier(later(), creating(20, false)));
    assert!(
        earlier(later(), creating(-30, false)),
        "it had ten minutes, and the time to settle begins then"
    );
    assert!(earlier(later(), creating(90, false)), "a clock was set back");
    assert!(!earlier(later(), creating(-620, true)));
    assert!(!earlier(later().answered(20), creating(20, false)));
    assert!(
        earlier(later().answered(20), creating(20, true)),
        "another was not answered"
    );
    assert!(earlier(later().answered(10), creating(20, false)));
    assert!(!earlier(later(), machine().recorded(VmState::Refused)));
}

/// The VM is found and deleted with the recorded spec, which is the spec of the newest create.
#[test]
fn a_changed_spec_waits_for_the_pending_create_of_the_old_one() {
    let noted = || creating(0, false);
    let changed = || noted().spec(&json!({"size": "l"}));
    let waits = |world: World, machine: MachineFixture| {
        let plan = provision(world.plan(machine));
        assert_eq!(plan.look_up, tagged(&json!({"size": "s"})));
        plan.pending_create.map(|pending_create| pending_create.left)
    };
    assert_eq!(waits(world().seconds_later(20), changed()), Some(SETTLE));
    assert_eq!(
        waits(world().seconds_later(20), noted()),
        None,
        "the same is repeated"
    );
    assert_eq!(waits(world().seconds_later(20).answered(0), changed()), None);
    assert_eq!(waits(world().seconds_later(20).absent_for(60), changed()), None);
    assert_eq!(waits(world().seconds_later(660), changed()), None);
}

#[test]
fn reserved_tags_and_a_failure_domain_without_zones_are_refused() {
    let reserved = machine().spec(&json!({"tags": {"capcmi.io/machine": "u-9"}}));
    assert!(matches!(
        refused(world().plan(reserved)),
        InvalidSpec::Reserved(_)
    ));
    let zone = |world: World| world.owner(|owner| owner.spec.failure_domain = Some("z1".to_owned()));
    assert_eq!(
        refused(zone(world()).plan(machine())),
        InvalidSpec::NoFailureDomains("z1".to_owned())
    );
    let zones = zone(world()).capabilities(|capabilities| capabilities.zones = true);
    let plan = provision(zones.plan(machine()));
    assert_eq!(
        plan.made_from
            .provider_spec
            .get(&"/failureDomain".parse().unwrap()),
        Some(&json!("z1"))
    );
}

/// CTL-CR-03
#[test]
fn a_spec_that_violates_the_drivers_schema_is_refused_without_a_call() {
    assert_eq!(
        refused(world().violating("providerSpec/size: no").plan(machine())),
        InvalidSpec::Violation("providerSpec/size: no".to_owned())
    );
}

/// Returns the machine after an outcome.
fn after(outcome: &Outcome) -> MachineFixture {
    let before = machine().identified();
    let moment = RetryTiming {
        now: now(),
        attempts: 1,
        wait: None,
        inputs: INPUTS,
    };
    let status = status::after(&before.clone().build(), outcome, moment);
    before.status(|shown| *shown = status)
}

/// After an upgrade, a plugin's schema may accept a spec that it refused before.
#[test]
fn a_refusal_without_a_call_is_decided_again_by_the_current_schema() {
    let refusing = || world().violating("providerSpec/size: no");
    let Plan::Outcome(Outcome::Refused {
        invalid,
        requeue_after,
    }) = refusing().plan(machine().identified())
    else {
        panic!("expected a refusal");
    };
    let refused_before = after(&Outcome::Refused {
        invalid,
        requeue_after,
    });
    assert!(is_refused_uncalled(&refused_before.clone().build()));
    refused(refusing().plan(refused_before.clone()));
    provision(world().plan(refused_before.clone()));
    let silent = Outcome::Waiting(Some(PERMIT_WAIT));
    assert_eq!(world().capabilities_unknown().plan(refused_before), silent);
}

#[test]
fn what_a_driver_answered_is_final_whatever_it_says_of_itself() {
    let status = Status::new(Code::InvalidArgument, "no such size");
    let failure = Failure::new(Call::Create, status);
    assert_left(&world(), after(&Outcome::Failed(Box::new(failure))));
}

#[test]
fn nothing_is_refused_because_of_what_a_driver_said_before_it_was_lost() {
    let silent = Outcome::Waiting(Some(PERMIT_WAIT));
    let former = || world().with_stale_capabilities();
    assert_eq!(former().violating("no").plan(machine().identified()), silent);
    let zone = former().owner(|owner| owner.spec.failure_domain = Some("z1".to_owned()));
    assert_eq!(zone.plan(machine().identified()), silent);
    provision(former().plan(machine().identified()));
}

#[test]
fn nothing_is_assumed_of_a_driver_that_never_answered() {
    for (fixture, during) in [
        (machine(), OperationType::Create),
        (machine().provisioned(), OperationType::Create),
        (machine().identified().deleted_at(now()), OperationType::Delete),
    ] {
        let status = Status::new(Code::Unavailable, "down");
        assert_eq!(
            world().capabilities_unknown().plan(fixture),
            Outcome::Failed(Box::new(Failure::capabilities_unknown(during, &status)))
        );
    }
}

/// CTL-CR-02, CTL-CR-08
#[test]
fn a_failed_call_is_not_repeated_before_its_time() {
    assert_eq!(world().remembering(40).plan(machine().identified()), waits(40));
    provision(world().remembering(0).plan(machine().identified()));
}

#[test]
fn a_change_of_spec_annotations_or_bootstrap_data_ends_a_wait() {
    provision(
        world()
            .remembering(40)
            .inputs_changed()
            .plan(machine().identified()),
    );
}

/// CMI-37
#[test]
fn an_unimplemented_call_is_retried_only_with_another_driver() {
    assert_eq!(
        world().unable(0).plan(machine().identified()),
        Outcome::Waiting(None)
    );
    provision(world().unable(1).plan(machine().identified()));
    provision(world().unable(0).inputs_changed().plan(machine().identified()));
}

#[test]
fn after_a_restart_the_status_says_how_long_to_wait() {
    assert_eq!(world().plan(failing(40)), waits(40));
    assert_eq!(world().seconds_later(30).plan(failing(40)), waits(10));
    provision(world().seconds_later(40).plan(failing_once(40)));
    provision(world().plan(failing(40).generation(2)));
}

#[test]
fn a_restored_wait_is_never_longer_than_a_driver_may_request() {
    let shown = failing(86_400 * 2).build();
    let left = restored(&shown, at(0), Instant::now(), 0).unwrap().until;
    let RetryCondition::Time(time) = left else {
        panic!("{left:?}")
    };
    assert!(time <= Instant::now() + Duration::from_hours(1));
}

/// An operator frees capacity and changes an annotation.
#[test]
fn a_changed_annotation_requests_a_create_despite_exhausted_capacity() {
    let refused = || machine().identified();
    assert!(!provision(world().remembering(0).plan(refused())).requested);
    let mut annotated = world().remembering(600).inputs_changed();
    if let Some(retry) = &mut annotated.state.retry {
        retry.trigger = RetryTrigger::Capacity;
    }
    assert!(provision(annotated.plan(refused())).requested);
}

/// A new process knows no earlier annotations, so it compares with the first version that it sees.
#[test]
fn after_a_restart_changed_annotations_end_the_restored_wait() {
    let mut world = world();
    world.state.retry = restored(&failing(40).build(), now(), Instant::now(), INPUTS);
    assert!(matches!(
        world.plan(failing(40)),
        Plan::Outcome(Outcome::Waiting(Some(_)))
    ));
    provision(world.inputs_changed().plan(failing(40)));
}

#[test]
fn memory_has_the_last_word_over_the_status() {
    provision(world().remembering(0).plan(failing(40)));
}

#[test]
fn a_clock_that_was_set_back_does_not_lengthen_a_wait() {
    assert_eq!(world().seconds_later(-86_400).plan(failing(40)), waits(40));
}

/// The driver is overloaded, and a machine that waits for a permit is not written.
#[test]
fn a_machine_whose_driver_is_busy_waits_in_silence() {
    let deleted = machine().identified().deleted_at(now());
    for machine in [machine(), machine().provisioned(), deleted] {
        assert_eq!(world().driver_busy().plan(machine), waits(60));
    }
}

#[test]
fn a_look_up_of_a_possible_vm_does_not_queue_behind_creates() {
    let priority = |machine: MachineFixture| match world().plan(machine) {
        Plan::CallDriver(plan) => Some(plan.priority()),
        Plan::Outcome(_)
        | Plan::RestoreFinalizer
        | Plan::ReadClaims
        | Plan::Claim(_)
        | Plan::ReportInPlaceUpdate => None,
    };
    assert_eq!(priority(machine()), Some(Priority::Create));
    assert_eq!(priority(machine().identified()), Some(Priority::Upkeep));
    assert_eq!(
        priority(machine().identified().deleted_at(now())),
        Some(Priority::Upkeep)
    );
    assert_eq!(
        priority(machine().provisioned()),
        None,
        "nothing is asked of the driver"
    );
}

/// A VM that may exist is looked up with the credentials of its create, even after a change of the spec.
#[test]
fn the_secret_of_a_create_is_recorded_and_kept() {
    let secret = |machine: MachineFixture| provision(world().plan(machine)).made_from.secret;
    assert_eq!(secret(machine()), None);
    assert_eq!(secret(machine().secret("a")).as_deref(), Some("a"));
    let made_with_a = |state| {
        let recorded = machine().recorded(state).secret("b");
        recorded.record(|record| record.made_from.as_mut().unwrap().secret = Some("a".to_owned()))
    };
    let issued = VmState::Creating {
        issued: now(),
        several: false,
    };
    assert_eq!(secret(made_with_a(issued)).as_deref(), Some("a"));
    let refused = made_with_a(VmState::Refused);
    assert_eq!(secret(refused).as_deref(), Some("b"), "no VM was made");
}

/// A forged identity names the VM of another machine.
#[test]
fn while_identities_may_be_forged_nothing_is_done_that_trusts_one() {
    type Fixture = fn() -> MachineFixture;
    let acting: [(Fixture, RequiredPolicyCheck, &str); 5] = [
        (machine, RequiredPolicyCheck::Cached, conditions::READY),
        (
            || machine().identified(),
            RequiredPolicyCheck::Fresh,
            conditions::READY,
        ),
        (
            // A record that shows no VM may be forged too.
            || machine().recorded(VmState::None),
            RequiredPolicyCheck::Fresh,
            conditions::READY,
        ),
        (
            || machine().identified().deleted_at(now()),
            RequiredPolicyCheck::Fresh,
            conditions::DELETING,
        ),
        (
            || {
                machine()
                    .identified()
                    .deleted_at(now())
                    .annotated(annotations::FORCE_DELETE, "true")
            },
            RequiredPolicyCheck::Fresh,
            conditions::DELETING,
        ),
    ];
    for (fixture, trust, condition) in acting {
        let plan = world().plan(fixture());
        assert_eq!(plan.required_policy_check(), trust, "{plan:?}");
        let block = blocked(not_in_force(&fixture().build(), &plan, "the policies are gone"));
        assert_eq!(
            (block.condition, block.reason),
            (condition, reason::IDENTITY_NOT_GUARDED)
        );
        assert!(block.record.is_none() && block.message.contains("the policies are gone"));
    }
}

/// Otherwise, the status of the whole fleet would be written.
#[test]
fn unguarded_identities_keep_the_status_of_a_vm_that_is_up() {
    let larger = || machine().provisioned().spec(&json!({"size": "l"}));
    for (plan, machine) in [
        (
            world().refresh().plan(machine().provisioned()),
            machine().provisioned(),
        ),
        (world().plan(larger()), larger()),
    ] {
        assert!(
            matches!(
                plan,
                Plan::CallDriver(DriverPlan::Refresh(_) | DriverPlan::Update(_))
            ),
            "{plan:?}"
        );
        assert_eq!(
            not_in_force(&machine.build(), &plan, "the policies are gone"),
            Outcome::Waiting(Some(admission::CHECK_INTERVAL))
        );
    }
}

#[test]
fn unguarded_identities_give_none_to_a_waiting_machine() {
    let plan = world().without_bootstrap().plan(machine());
    assert_eq!(plan.required_policy_check(), RequiredPolicyCheck::Cached);
    let block = blocked(not_in_force(&machine().build(), &plan, "the policies are gone"));
    assert_eq!(
        (block.condition, block.reason),
        (conditions::READY, reason::IDENTITY_NOT_GUARDED)
    );
    assert!(block.record.is_none());
}
