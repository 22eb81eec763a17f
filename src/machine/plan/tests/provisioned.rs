//! Plans for a provisioned VM.

use super::*;
use crate::machine::fixtures::reachability;
use crate::reconcile::runtime_state::LookUpHint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

#[track_caller]
fn refresh(plan: Plan) -> Refresh {
    match plan {
        Plan::CallDriver(DriverPlan::Refresh(plan)) => *plan,
        other => panic!("expected a recheck, got {other:?}"),
    }
}

#[track_caller]
fn update(plan: Plan) -> Update {
    match plan {
        Plan::CallDriver(DriverPlan::Update(plan)) => *plan,
        other => panic!("expected an update, got {other:?}"),
    }
}

fn kept(reachable: impl Into<Option<bool>>, requeue_after: Option<u64>) -> Outcome {
    Outcome::UpToDate {
        reachability: reachability(reachable.into()),
        not_updatable: Vec::new(),
        requeue_after: requeue_after.map(Duration::from_secs),
    }
}

fn larger() -> MachineFixture {
    machine().provisioned().spec(&json!({"size": "l"}))
}

fn half_updated(seconds: i64) -> MachineFixture {
    updating().failed(
        OperationType::Update,
        Operation::UpdateMachine,
        Code::Internal,
        seconds,
    )
}

/// Returns a machine with an update whose result is unknown.
fn updating() -> MachineFixture {
    machine()
        .provisioned()
        .recorded(VmState::Updating { unanswered: None })
}

#[test]
fn a_vm_that_is_as_it_should_be_costs_no_call() {
    assert_eq!(world().plan(machine().provisioned()), kept(true, None));
    assert_eq!(
        world().unreachable().plan(machine().provisioned()),
        kept(false, None)
    );
    assert_eq!(
        world().unsettled().plan(machine().provisioned()),
        kept(None, None)
    );
}

#[test]
fn a_vm_outlives_the_reasons_that_it_waited_for() {
    let world = world().cluster_not_ready().without_bootstrap();
    assert_eq!(world.plan(machine().provisioned()), kept(true, None));
}

/// The cached status may be newer than the cached spec.
#[test]
fn provisioned_without_an_id_is_left() {
    let mut fixture = machine().provisioned().build();
    fixture.spec.provider_id = None;
    let plan = world().plan(fixture.into());
    assert!(matches!(plan, Plan::Outcome(Outcome::Unchanged(_))), "{plan:?}");
}

/// UPD-01, UPD-03
#[test]
fn a_field_that_the_driver_can_change_is_updated() {
    let plan = update(world().plan(larger()));
    assert_eq!(plan.applied, tagged(&json!({"size": "s"})));
    assert_eq!(plan.wanted, tagged(&json!({"size": "l"})));
    assert_eq!(plan.provider_id.as_str(), "sim://1");
}

/// UPD-02
#[test]
fn a_field_that_the_driver_cannot_change_is_only_told_about() {
    let both = machine().provisioned().spec(&json!({"size": "l", "disk": 9}));
    for (world, fixture, expected) in [
        (world(), both, vec!["/disk"]),
        (
            world().not_offering(Operation::UpdateMachine),
            larger(),
            vec!["/size"],
        ),
    ] {
        let Plan::Outcome(Outcome::UpToDate { not_updatable, .. }) = world.plan(fixture) else {
            panic!("not kept");
        };
        let differing: Vec<_> = not_updatable.iter().map(ToString::to_string).collect();
        assert_eq!(differing, expected);
    }
}

/// Cluster API has written the new spec, and an extension updates the VM.
fn updated_in_place(fixture: MachineFixture) -> MachineFixture {
    fixture
        .generation(2)
        .annotated(annotations::UPDATE_IN_PROGRESS, "")
}

/// Records this progress of the update.
fn said(fixture: MachineFixture, progress: &str) -> MachineFixture {
    let progress = json!({"inPlaceUpdate": progress}).to_string();
    fixture.annotated(annotations::PROGRESS, &progress)
}

#[test]
fn an_in_place_update_waits_for_a_request_for_the_current_spec() {
    let requested =
        |generation: u32| said(updated_in_place(larger()), &format!("u-1/{generation}/requested"));
    for fixture in [
        updated_in_place(larger()),
        requested(1),
        updated_in_place(half_updated(0)),
        updated_in_place(machine().provisioned().spec(&json!({"size": "l", "disk": 9}))),
    ] {
        let plan = world().plan(fixture);
        let Plan::Outcome(Outcome::Blocked(block)) = plan else {
            panic!("not left alone: {plan:?}");
        };
        assert_eq!(
            (block.condition, block.reason),
            (
                conditions::VIRTUAL_MACHINE_UP_TO_DATE,
                reason::WAITING_FOR_UPDATE_REQUEST
            )
        );
    }
    update(world().plan(requested(2)));
    assert_eq!(
        world().plan(updated_in_place(machine().provisioned())),
        kept(true, None),
        "nothing is to be done about the VM"
    );
}

#[test]
fn an_in_place_update_without_a_change_is_reported_done_once() {
    let plan = |word: &str| {
        let fixture = updated_in_place(machine().provisioned());
        world().plan(said(fixture, &format!("u-1/2/{word}")))
    };
    let reported = plan("requested");
    assert!(matches!(reported, Plan::ReportInPlaceUpdate), "{reported:?}");
    assert_eq!(plan("done"), kept(true, None));
    let requested = said(updated_in_place(half_updated(0)), "u-1/2/requested");
    update(world().remembering(0).plan(requested));
}

/// An update by another extension must not hide a missing VM.
#[test]
fn a_vm_that_another_extension_updates_is_still_asked_after() {
    let plan = world().refresh().plan(updated_in_place(larger()));
    refresh(plan);
}

/// UPD-03: after an update to S2 fails and the spec returns to S1, the VM may be half updated.
#[test]
fn an_update_that_was_cut_short_is_finished_though_the_spec_went_back() {
    let plan = update(world().remembering(0).plan(half_updated(40)));
    assert_eq!(plan.applied, plan.wanted);
    // A move loses the status.
    update(world().plan(updating()));
}

#[test]
fn an_update_that_failed_is_not_repeated_before_its_time() {
    assert_eq!(world().plan(half_updated(40)), waits(40));
    assert_eq!(world().remembering(30).plan(larger()), waits(30));
}

#[test]
fn a_vm_that_may_be_missing_is_asked_after_and_never_created() {
    let plan = refresh(world().refresh().plan(machine().provisioned()));
    assert_eq!(plan.provider_id.as_str(), "sim://1");
    assert_eq!(plan.look_up, tagged(&json!({"size": "s"})));
}

/// A missing VM answers no update, and the failed update must not hide this.
#[test]
fn a_vm_that_may_be_missing_is_asked_after_before_it_is_updated() {
    for fixture in [larger(), half_updated(0), half_updated(400)] {
        let plan = refresh(world().refresh().plan(fixture));
        assert_eq!(
            plan.look_up,
            tagged(&json!({"size": "s"})),
            "with what it was made from"
        );
    }
}

/// A spec or schema that has become invalid says nothing about the VM.
#[test]
fn a_vm_that_may_be_missing_is_asked_after_though_its_spec_is_refused() {
    refresh(world().violating("no").refresh().plan(machine().provisioned()));
    refused(world().violating("no").plan(machine().provisioned()));
}

#[test]
fn a_vm_on_its_way_up_is_asked_after_until_it_is_up() {
    let starting = || machine().provisioned().power("Starting");
    refresh(world().plan(starting()));
    assert_eq!(
        world().plan(machine().provisioned().power("Running").ip("10.0.0.1")),
        kept(true, None)
    );
    assert_eq!(
        world().not_offering(Operation::GetMachineStatus).plan(starting()),
        kept(true, None),
        "a driver that can't be asked is not asked"
    );
}

/// INI-19: a failed initialization of a running VM survives a restart.
#[test]
fn a_vm_that_is_not_initialized_any_more_is_asked_after() {
    let uninitialized = machine().provisioned().condition(
        conditions::VIRTUAL_MACHINE_INITIALIZED,
        ConditionStatus::False,
        "Uninitialized",
    );
    refresh(world().plan(uninitialized));
}

/// Any trigger replaces the planned requeue, so the plan must repeat it.
#[test]
fn a_trigger_in_between_neither_hurries_nor_loses_the_next_look() {
    let starting = || machine().provisioned().power("Starting");
    assert_eq!(world().resting(4).plan(starting()), kept(true, Some(4)));
    assert_eq!(world().remembering(9).plan(starting()), kept(true, Some(9)));
    assert_eq!(
        world().resting(4).remembering(9).plan(starting()),
        kept(true, Some(9))
    );
    assert_eq!(
        world().resting(4).plan(machine().provisioned()),
        kept(true, None),
        "a VM that is settled needs no next look-up"
    );
}

#[test]
fn the_longer_a_vm_has_been_starting_the_rarer_it_is_asked_after() {
    let starting = machine().provisioned().power("Starting").ip("10.0.0.1").build();
    let paced: Vec<_> = [0, 5, 60, 100_000, -100]
        .map(|seconds| poll_interval(&starting, at(seconds)).unwrap().as_secs())
        .into();
    assert_eq!(paced, [5, 5, 60, 300, 5]);
}

/// The driver can list VMs but can't look up a VM, so two lists decide.
#[test]
fn without_a_look_up_lists_decide_which_vms_vanished_or_returned() {
    let world = world().not_offering(Operation::GetMachineStatus).refresh();
    let id: ProviderId = "sim://1".parse().unwrap();
    assert_eq!(world.plan(machine().provisioned()), Outcome::Vanished(id.clone()));
    let vanished = machine().provisioned().condition(
        conditions::READY,
        ConditionStatus::False,
        reason::VIRTUAL_MACHINE_VANISHED,
    );
    assert_eq!(
        world.plan(vanished.clone()),
        kept(true, None),
        "it is gone, as it was"
    );
    let back = world.hinting(LookUpHint::Back);
    assert_eq!(
        back.plan(vanished),
        Outcome::Provisioned(Box::new(cmi_driver::Machine::new(id, "")))
    );
    assert_eq!(back.plan(machine().provisioned()), kept(true, None));
}

#[test]
fn obstacles_to_a_call_do_not_affect_ready_of_a_provisioned_vm() {
    assert_eq!(
        reason_of(world().driver_not_configured().plan(machine().provisioned())),
        (conditions::DRIVER_REACHABLE, reason::DRIVER_NOT_CONFIGURED)
    );
    let finalizer_missing = machine().provisioned().without_record();
    assert_eq!(
        reason_of(world().plan(finalizer_missing)),
        (conditions::DRIVER_REACHABLE, reason::FOREIGN_PROVIDER_ID)
    );
}

/// CMI-37: a plugin may declare calls that it does not support.
#[test]
fn an_unimplemented_look_up_is_not_called_again() {
    let lacking = || world().unable_to(Operation::GetMachineStatus, 0);
    let starting = || machine().provisioned().power("Starting");
    assert_eq!(lacking().plan(starting()), kept(true, None));
    let signed = lacking().hinting(LookUpHint::Signal);
    assert_eq!(signed.plan(machine().provisioned()), kept(true, None));
    let missed = lacking().refresh().plan(machine().provisioned());
    assert!(
        matches!(missed, Plan::Outcome(Outcome::Vanished(_))),
        "its lists have the word: {missed:?}"
    );
    update(lacking().plan(larger()));
    refresh(world().unable_to(Operation::GetMachineStatus, 1).plan(starting()));
    refresh(lacking().inputs_changed().plan(starting()));
}

/// CMI-37
#[test]
fn an_unimplemented_initialization_causes_no_look_up() {
    let uninitialized = || {
        machine().provisioned().condition(
            conditions::VIRTUAL_MACHINE_INITIALIZED,
            ConditionStatus::False,
            "Unimplemented",
        )
    };
    let lacking = |before| world().unable_to(Operation::InitializeMachine, before);
    assert_eq!(lacking(0).plan(uninitialized()), kept(true, None));
    assert_eq!(
        refresh(lacking(1).plan(uninitialized())).initialize,
        Initialize::OnRequest
    );
    let missed = refresh(lacking(0).refresh().plan(uninitialized()));
    assert_eq!(
        missed.initialize,
        Initialize::Never,
        "whether it is there can be asked all the same"
    );
}

#[test]
fn an_unanswered_suspicion_is_kept_during_the_wait() {
    let waiting = world()
        .with_unanswered()
        .remembering(30)
        .plan(machine().provisioned());
    assert!(
        matches!(
            waiting,
            Plan::Outcome(Outcome::UpToDate { requeue_after: Some(wait), .. })
                if wait == Duration::from_secs(30)
        ),
        "{waiting:?}"
    );
    refresh(world().with_unanswered().plan(machine().provisioned()));
    refresh(world().refresh().remembering(30).plan(machine().provisioned()));
}

/// A silent Node says nothing about a VM that can't be looked up. Treating the VM as gone would delete its
/// machine.
#[test]
fn a_sign_is_for_the_look_up_to_follow_and_no_word_on_what_is_gone() {
    let hinted = world().hinting(LookUpHint::Signal);
    let asked = hinted.plan(machine().provisioned());
    assert_eq!(
        asked.required_policy_check(),
        RequiredPolicyCheck::Fresh,
        "it may initialize the VM"
    );
    refresh(asked);
    let kept = world()
        .not_offering(Operation::GetMachineStatus)
        .hinting(LookUpHint::Signal)
        .plan(machine().provisioned());
    assert!(
        matches!(kept, Plan::Outcome(Outcome::UpToDate { .. })),
        "{kept:?}"
    );
}

#[test]
fn a_vm_that_is_off_is_started_only_on_request_between_other_operations() {
    let off = || machine().provisioned().off();
    let wanted = || off().always_on();
    assert!(refresh(world().plan(wanted())).start);
    for (what, world, machine) in [
        ("nobody asked for it", world(), off()),
        (
            "it runs",
            world(),
            machine()
                .provisioned()
                .power("Running")
                .ip("10.0.0.1")
                .always_on(),
        ),
        (
            "its Machine is being deleted",
            world().owner(|owner| owner.metadata.deletion_timestamp = Some(Time(now()))),
            wanted(),
        ),
        (
            "the driver cannot",
            world().not_offering(Operation::RestartMachine),
            wanted(),
        ),
    ] {
        assert_eq!(world.plan(machine), kept(true, None), "{what}");
    }
    let hinted = || world().hinting(LookUpHint::Signal);
    assert!(refresh(hinted().plan(wanted())).start);
    assert!(!refresh(hinted().plan(off())).start);
    let updating = VmState::Updating { unanswered: None };
    assert!(!refresh(hinted().plan(wanted().recorded(updating))).start);
    // The status first shows that it is off.
    let running = machine().provisioned().power("Running").always_on();
    assert!(!refresh(hinted().plan(running)).start);
}

#[test]
fn two_starts_of_a_vm_are_five_minutes_apart() {
    let off = || machine().provisioned().off().always_on().started();
    let later = |seconds| world().seconds_later(seconds);
    assert_eq!(later(120).plan(off()), kept(true, Some(180)));
    assert!(!refresh(later(120).hinting(LookUpHint::Signal).plan(off())).start);
    assert!(refresh(later(300).plan(off())).start);
    // A look-up that failed is not repeated early.
    assert_eq!(later(300).remembering(9).plan(off()), kept(true, Some(9)));
}

/// An operator may have started the VM, and a start resets a VM that runs.
#[test]
fn a_vm_is_started_only_when_its_state_is_not_stale() {
    let window = Duration::from_secs(30);
    let slow = || world().capabilities(|capabilities| capabilities.consistency_window = window);
    let off = || machine().provisioned().off().always_on();
    assert_eq!(slow().plan(off()), kept(true, Some(30)));
    assert!(refresh(slow().seconds_later(30).plan(off())).start);
}

#[test]
fn a_new_vm_without_an_ip_address_is_polled() {
    let new = || machine().provisioned().power("Running");
    refresh(world().plan(new()));
    assert_eq!(world().resting(4).plan(new()), kept(true, Some(4)));
    for (what, world, machine) in [
        ("the driver reports no state", world(), machine().provisioned()),
        ("it has an address", world(), new().ip("10.0.0.1")),
        ("it is off", world(), machine().provisioned().power("Stopped")),
        ("it is 15 minutes old", world().seconds_later(900), new()),
    ] {
        assert_eq!(world.plan(machine), kept(true, None), "{what}");
    }
    let machine = new().build();
    let interval = |seconds| poll_interval(&machine, at(seconds));
    let seconds = [0, 5, 29, 31, 899, 900].map(|at| interval(at).map(|interval| interval.as_secs()));
    assert_eq!(seconds, [Some(2), Some(5), Some(29), Some(30), Some(30), None]);
}
