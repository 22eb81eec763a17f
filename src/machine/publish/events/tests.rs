//! Tests that each new state has one event, and repeats have none.

use std::time::Duration;

use super::*;
use crate::api::identity::InvalidSpec;
use crate::api::retry::Call;
use crate::api::v1alpha1::InfraMachineStatus;
use crate::apiserver::InvalidSecret;
use crate::machine::fixtures::{MachineFixture, at, machine, now, reachability, world};
use crate::machine::outcome::RETRY_NOW_HINT;
use crate::machine::plan::Plan;
use crate::machine::status::{self, RetryTiming};
use cmi_driver::{Operation, Status};

fn failed(call: Call, code: Code) -> Outcome {
    Outcome::Failed(Box::new(Failure::new(call, Status::new(code, "no room"))))
}

fn vm() -> Outcome {
    let vm = cmi_driver::Machine::new("sim://1".parse().unwrap(), "node-1");
    Outcome::Provisioned(Box::new(vm))
}

fn blocked(plan: Plan) -> Outcome {
    match plan {
        Plan::Outcome(Outcome::Blocked(block)) => Outcome::Blocked(block),
        other => panic!("expected a block, got {other:?}"),
    }
}

/// Returns the events of an outcome and of its repeat.
fn events(before: MachineFixture, outcome: &Outcome) -> (Option<NewEvent>, Option<NewEvent>) {
    let mut machine = before.build();
    let first = of(&machine, outcome, 1);
    let timing = RetryTiming {
        now: at(10),
        attempts: 1,
        wait: None,
        inputs: 0,
    };
    machine.status = Some(status::after(&machine, outcome, timing));
    (first, of(&machine, outcome, 2))
}

#[test]
fn a_vm_that_crashed_is_said_once() {
    let Outcome::Provisioned(mut vm) = vm() else {
        panic!("it is provisioned");
    };
    vm.power_state = Some(PowerState::Failed);
    let (first, again) = events(machine().provisioned(), &Outcome::Provisioned(vm));
    let first = first.unwrap();
    assert!(
        first.warning && first.reason == "VirtualMachineFailed",
        "{first:?}"
    );
    assert!(again.is_none(), "{again:?}");
}

#[test]
fn what_others_end_as_a_rule_is_said_once_where_they_have_not() {
    let late = || world().without_owner().seconds_later(60);
    for (plan, why) in [
        (late().plan(machine()), "WaitingForOwner"),
        (
            world().without_cluster().seconds_later(60).plan(machine()),
            "ClusterNotFound",
        ),
    ] {
        let (first, again) = events(machine(), &blocked(plan));
        assert_eq!(first.map(|event| event.reason).as_deref(), Some(why));
        assert!(again.is_none(), "{again:?}");
    }
    assert!(
        events(machine(), &blocked(world().paused().plan(machine())))
            .0
            .is_none()
    );
}

#[test]
fn whatever_goes_wrong_is_said_once() {
    let cause = || InvalidSecret::NoBootstrapData("boot".to_owned());
    let no_secrets = |during| Outcome::Failed(Box::new(Failure::no_secrets(during, &cause())));
    let refused = || Outcome::Refused {
        invalid: InvalidSpec::Violation("no".to_owned()),
        requeue_after: None,
    };
    let mut cases = vec![
        (machine(), refused()),
        (machine().provisioned(), refused()),
        (machine(), no_secrets(OperationType::Create)),
        (timed_out(), no_secrets(OperationType::Create)),
        (machine().provisioned(), no_secrets(OperationType::Create)),
        (machine().provisioned(), no_secrets(OperationType::Update)),
        (
            machine().provisioned().deleted_at(now()),
            no_secrets(OperationType::Delete),
        ),
        (
            machine(),
            blocked(world().driver_not_configured().plan(machine())),
        ),
        (
            machine().provisioned(),
            blocked(world().driver_not_configured().plan(machine().provisioned())),
        ),
        (machine(), blocked(world().plan(machine().provider_id("aws://1")))),
        (
            machine().provisioned(),
            Outcome::Vanished("sim://1".parse().unwrap()),
        ),
    ];
    for code in Code::ALL {
        let create = failed(Call::Create, code);
        let initialize = failed(Call::Initialize, code);
        let refresh = failed(Call::Refresh, code);
        let update = failed(Call::Update, code);
        let delete = failed(Call::Delete, code);
        cases.extend([
            (machine().identified(), create),
            (machine().identified(), initialize),
            (machine().provisioned(), update),
            (machine().provisioned().deleted_at(now()), delete),
        ]);
        // An outage is reported on the InfraCluster.
        if !code.is_outage() {
            cases.push((machine().provisioned(), refresh));
        }
    }
    for (before, outcome) in cases {
        let (first, repeat) = events(before, &outcome);
        assert!(
            first.is_some_and(|event| event.warning),
            "said nothing: {outcome:?}"
        );
        assert_eq!(repeat, None, "said twice: {outcome:?}");
    }
}

/// Its `Ready` condition reports the timeout, even if the machine is delayed for another reason.
fn timed_out() -> MachineFixture {
    let mut late = machine().build();
    late.spec.creation_timeout_seconds = Some(1);
    MachineFixture::from(late)
}

#[test]
fn another_code_of_the_same_call_is_news() {
    let before = machine().identified().failed(
        OperationType::Create,
        Operation::CreateMachine,
        Code::Unavailable,
        5,
    );
    let exhausted = failed(Call::Create, Code::ResourceExhausted);
    let event = of(&before.build(), &exhausted, 4).unwrap();
    let text = format!("CreateMachine: no room; {RETRY_NOW_HINT}");
    assert_eq!(
        (event.reason.as_str(), event.action, event.note),
        ("ResourceExhausted", "CreateMachine", text)
    );
}

#[test]
fn an_outage_that_the_status_shows_leads_to_no_event_of_any_machine() {
    let known = machine().provisioned().condition(
        conditions::DRIVER_REACHABLE,
        ConditionStatus::False,
        "Unavailable",
    );
    let refresh = failed(Call::Refresh, Code::Unavailable);
    assert_eq!(of(&known.build(), &refresh, 1), None);
    let up = machine().provisioned().build();
    assert_eq!(of(&up, &refresh, 1), None, "it is reported on the InfraCluster");
}

#[test]
fn an_update_that_fails_during_a_known_outage_is_still_said_once() {
    let known = machine().provisioned().condition(
        conditions::DRIVER_REACHABLE,
        ConditionStatus::False,
        "Unavailable",
    );
    let update = failed(Call::Update, Code::Internal);
    assert!(of(&known.build(), &update, 1).is_some());
}

#[test]
fn a_vm_that_is_up_is_said_once_and_again_when_it_is_back() {
    let (first, repeat) = events(machine().identified(), &vm());
    let first = first.unwrap();
    assert_eq!(
        (first.warning, first.reason.as_str()),
        (false, reason::PROVISIONED)
    );
    assert_eq!(repeat, None);
    for gone in [reason::VIRTUAL_MACHINE_VANISHED, reason::VIRTUAL_MACHINE_FAILED] {
        let gone = machine()
            .provisioned()
            .condition(conditions::READY, ConditionStatus::False, gone);
        let (back, repeat) = events(gone, &vm());
        assert_eq!(back.unwrap().note, "VM sim://1 is running again");
        assert_eq!(repeat, None);
    }
}

#[test]
fn events_tell_adopted_from_provisioned_vms() {
    let asked = machine()
        .provider_id("sim://1")
        .annotated(annotations::ADOPT, "{}");
    for (before, note) in [
        (machine(), "provisioned VM sim://1"),
        (asked, "adopted VM sim://1"),
    ] {
        let (first, _) = events(before, &vm());
        assert_eq!(first.map(|event| event.note).as_deref(), Some(note));
    }
}

#[test]
fn what_only_takes_its_time_is_not_said() {
    let deleting = Outcome::Deleting {
        reason: reason::SHUTTING_DOWN,
        message: String::new(),
        requeue_after: Duration::ZERO,
    };
    let kept = Outcome::UpToDate {
        reachability: reachability(Some(false)),
        not_updatable: vec!["/disk".parse().unwrap()],
        requeue_after: None,
    };
    let waiting = blocked(world().without_bootstrap().plan(machine()));
    let paused = blocked(world().paused().plan(machine()));
    let silent = Outcome::Waiting(Some(Duration::ZERO));
    let never = Outcome::RemoveFinalizer(RemovalReason::NeverCreated);
    for outcome in [
        Outcome::Unchanged(None),
        deleting,
        kept,
        waiting,
        paused,
        silent,
        never,
    ] {
        assert_eq!(of(&machine().build(), &outcome, 1), None, "{outcome:?}");
    }
}

#[test]
fn an_end_is_said_and_one_by_force_says_what_may_be_left() {
    let gone = of(&machine().build(), &Outcome::Gone, 1).unwrap();
    assert_eq!((gone.warning, gone.reason.as_str()), (false, "Deleted"));
    let forced = Outcome::RemoveFinalizer(RemovalReason::Forced);
    let event = of(&machine().provider_id("sim://1").build(), &forced, 1).unwrap();
    assert!(
        event.warning && event.note.contains("sim://1 may still exist"),
        "{event:?}"
    );
    let nameless = of(&machine().build(), &forced, 1).unwrap();
    assert!(
        nameless.note.contains("with the name of this machine"),
        "{nameless:?}"
    );
}

#[test]
fn an_event_compares_with_the_status_before() {
    let mut before = machine().build();
    before.status = Some(InfraMachineStatus::default());
    let outcome = failed(Call::Create, Code::Unknown);
    assert!(of(&before, &outcome, 9).is_some());
}

#[test]
fn a_vm_that_is_off_is_said_once_and_again_when_it_runs() {
    let Outcome::Provisioned(mut off) = vm() else {
        panic!("it is provisioned");
    };
    off.power_state = Some(PowerState::Stopped);
    let (first, again) = events(machine().provisioned(), &Outcome::Provisioned(off));
    let first = first.unwrap();
    assert_eq!(
        (first.warning, first.reason.as_str()),
        (true, reason::POWERED_OFF)
    );
    assert_eq!(again, None);
    let was_off = machine().provisioned().condition(
        conditions::VIRTUAL_MACHINE_RUNNING,
        ConditionStatus::False,
        reason::POWERED_OFF,
    );
    let Outcome::Provisioned(mut on) = vm() else {
        panic!("it is provisioned");
    };
    on.power_state = Some(PowerState::Running);
    let (back, repeat) = events(was_off, &Outcome::Provisioned(on));
    assert_eq!(back.unwrap().note, "VM sim://1 is running again");
    assert_eq!(repeat, None);
}
