//! Tests the status after every outcome.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::api::annotations;
use crate::api::identity::InvalidSpec;
use crate::api::retry::Call;
use crate::api::v1alpha1::SecretReference;
use crate::apiserver::InvalidSecret;
use crate::machine::fixtures::{MachineFixture, at, machine, now, reachability, world};
use crate::machine::outcome::Failure;
use crate::machine::plan::{Plan, restored};
use crate::reconcile::runtime_state::RetryCondition;
use cmi_driver::Status;

const LONG: usize = 20_000;

fn timing() -> RetryTiming {
    RetryTiming {
        now: at(10),
        attempts: 2,
        wait: Some(Duration::from_secs(30)),
        inputs: 0,
    }
}

fn status_of(fixture: MachineFixture, outcome: &Outcome) -> InfraMachineStatus {
    after(&fixture.build(), outcome, timing())
}

#[track_caller]
fn condition<'a>(status: &'a InfraMachineStatus, type_: &str) -> &'a Condition {
    conditions::get(&status.conditions, type_).unwrap_or_else(|| panic!("no condition {type_}"))
}

/// Returns the status and the reason of a condition.
#[track_caller]
fn state_of<'a>(status: &'a InfraMachineStatus, type_: &str) -> (&'a str, &'a str) {
    let condition = condition(status, type_);
    (condition.status.as_str(), condition.reason.as_str())
}

#[track_caller]
fn message_of<'a>(status: &'a InfraMachineStatus, type_: &str) -> &'a str {
    condition(status, type_).message.as_str()
}

fn failed(call: Call, code: Code) -> Outcome {
    Outcome::Failed(Box::new(Failure::new(call, Status::new(code, "no room"))))
}

fn no_secrets(during: OperationType) -> Outcome {
    let cause = InvalidSecret::NoBootstrapData("boot".to_owned());
    Outcome::Failed(Box::new(Failure::no_secrets(during, &cause)))
}

fn vm() -> cmi_driver::Machine {
    let mut vm = cmi_driver::Machine::new("sim://1".parse().unwrap(), "node-1");
    vm.addresses = vec![cmi_driver::Address {
        kind: cmi_driver::AddressType::InternalIP,
        address: "10.0.0.1".to_owned(),
    }];
    vm.power_state = Some(PowerState::Running);
    vm.failure_domain = Some("z1".to_owned());
    vm
}

fn provisioned(vm: cmi_driver::Machine) -> Outcome {
    Outcome::Provisioned(Box::new(vm))
}

fn refused() -> Outcome {
    Outcome::Refused {
        invalid: InvalidSpec::Violation("no".to_owned()),
        requeue_after: None,
    }
}

fn kept(not_updatable: &[&str]) -> Outcome {
    Outcome::UpToDate {
        reachability: reachability(Some(true)),
        not_updatable: not_updatable.iter().map(|path| path.parse().unwrap()).collect(),
        requeue_after: None,
    }
}

fn blocked(plan: Plan) -> Outcome {
    match plan {
        Plan::Outcome(Outcome::Blocked(block)) => Outcome::Blocked(block),
        other => panic!("expected a block, got {other:?}"),
    }
}

/// Returns every outcome except a missing, failed or deleted VM.
fn harmless() -> Vec<Outcome> {
    let finalizer_missing = || machine().provisioned().without_record();
    let mut all = vec![
        Outcome::Unchanged(None),
        Outcome::Waiting(Some(Duration::from_secs(1))),
        blocked(world().paused().plan(machine().provisioned())),
        blocked(world().driver_not_configured().plan(machine().provisioned())),
        blocked(world().plan(finalizer_missing())),
        refused(),
        provisioned(vm()),
        kept(&[]),
        kept(&["/disk"]),
        Outcome::Updated,
        no_secrets(OperationType::Create),
        no_secrets(OperationType::Update),
    ];
    let deletes = |call: &Call| {
        matches!(
            call,
            Call::ShutDown | Call::Delete | Call::ConfirmGone | Call::ListAfterDelete
        )
    };
    for call in Call::ALL.into_iter().filter(|call| !deletes(call)) {
        all.extend(Code::ALL.map(|code| failed(call, code)));
    }
    all
}

/// A MachineHealthCheck deletes machines that are not ready. An outage, a lost credential or an invalid spec
/// must not delete a fleet.
#[test]
fn a_vm_that_was_ready_stays_ready_whatever_fails() {
    for outcome in harmless() {
        let status = status_of(machine().provisioned(), &outcome);
        assert_eq!(
            condition(&status, conditions::READY).status,
            "True",
            "{outcome:?}"
        );
        assert!(
            status.ready && status.failure_reason.is_none() && status.failure_message.is_none(),
            "{outcome:?}"
        );
        let provisioned = status.initialization.and_then(|it| it.provisioned);
        assert_eq!(provisioned, Some(true), "{outcome:?}");
    }
}

#[test]
fn ready_ends_only_when_the_vm_is_gone_failed_or_being_deleted() {
    let mut broken = vm();
    broken.power_state = Some(PowerState::Failed);
    let deleting = Outcome::Deleting {
        reason: reason::SHUTTING_DOWN,
        message: String::new(),
        requeue_after: Duration::ZERO,
    };
    let id = "sim://1".parse().unwrap();
    for (outcome, why) in [
        (Outcome::Vanished(id), reason::VIRTUAL_MACHINE_VANISHED),
        (provisioned(broken), reason::VIRTUAL_MACHINE_FAILED),
        (deleting, reason::DELETING),
        (failed(Call::Delete, Code::Unavailable), reason::DELETING),
    ] {
        let status = status_of(machine().provisioned(), &outcome);
        assert_eq!(state_of(&status, conditions::READY), ("False", why));
        assert!(status.ready, "what Cluster API was told is never taken back");
    }
}

#[test]
fn a_vm_that_is_back_is_ready_again() {
    let vanished = machine().provisioned().condition(
        conditions::READY,
        ConditionStatus::False,
        reason::VIRTUAL_MACHINE_VANISHED,
    );
    let status = status_of(vanished, &provisioned(vm()));
    assert_eq!(state_of(&status, conditions::READY), ("True", reason::READY));
}

/// Cluster API treats an explicit null in a contract field as an error.
#[test]
fn no_status_ever_holds_a_null() {
    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.iter().any(has_null),
            Value::Object(fields) => fields.values().any(has_null),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    for outcome in harmless() {
        for fixture in [machine(), machine().provisioned()] {
            let status = serde_json::to_value(status_of(fixture, &outcome)).unwrap();
            assert!(!has_null(&status), "{outcome:?}: {status}");
        }
    }
}

#[test]
fn what_has_nothing_to_say_writes_nothing() {
    for outcome in [
        Outcome::Unchanged(None),
        Outcome::Unchanged(Some(Duration::from_secs(1))),
        Outcome::NotSupported(Operation::GetMachineStatus),
        Outcome::Gone,
        Outcome::Waiting(Some(Duration::from_secs(1))),
    ] {
        for fixture in [machine(), machine().provisioned().generation(2)] {
            let before = fixture.clone().build().status.unwrap_or_default();
            assert_eq!(status_of(fixture, &outcome), before);
        }
    }
}

#[test]
fn the_same_outcome_again_writes_nothing() {
    for outcome in [
        provisioned(vm()),
        kept(&[]),
        kept(&["/disk"]),
        refused(),
        blocked(world().paused().plan(machine())),
    ] {
        let mut once = machine().provisioned().build();
        once.status = Some(after(&once, &outcome, timing()));
        let later = RetryTiming {
            now: at(99),
            ..timing()
        };
        assert_eq!(after(&once, &outcome, later), once.status.unwrap(), "{outcome:?}");
    }
}

/// Returns an unavailable driver's failure, with a requested delay.
fn unavailable(message: &str) -> Outcome {
    let status = Status::new(Code::Unavailable, message).with_retry_after(Duration::from_secs(1));
    Outcome::Failed(Box::new(Failure::new(Call::Create, status)))
}

/// Simulates a create that fails for an hour. Returns the number of attempts, and the attempts that were
/// written.
fn published_in_an_hour(says: impl Fn(u32) -> String) -> (u32, Vec<i32>) {
    let mut machine = machine().identified().build();
    machine.spec.creation_timeout_seconds = Some(86_400);
    let (mut second, mut attempts, mut published) = (0, 0, Vec::new());
    while second < 3600 {
        attempts += 1;
        let outcome = unavailable(&says(attempts));
        let Outcome::Failed(failure) = &outcome else {
            panic!("{outcome:?}");
        };
        let wait = failure.disposition.wait(&failure.status, attempts, 0.0);
        let timing = RetryTiming {
            now: at(second),
            attempts,
            wait,
            inputs: 0,
        };
        let status = after(&machine, &outcome, timing);
        if machine.status.as_ref() != Some(&status) {
            published.push(status.last_operation.as_ref().unwrap().attempts);
        }
        machine.status = Some(status);
        second += i64::try_from(wait.unwrap().as_secs()).unwrap();
    }
    (attempts, published)
}

/// The driver always requests a retry after one second.
#[test]
fn a_failure_that_repeats_for_ever_costs_ever_fewer_calls_and_writes() {
    for says in [
        |_| "the back end is down".to_owned(),
        |attempt| format!("request 7f{attempt}a failed, {attempt} are waiting"),
    ] {
        let (calls, published) = published_in_an_hour(says);
        assert_eq!(calls, 17);
        // The last write comes half an hour after the write before it.
        assert_eq!(published, [1, 2, 4, 8, 14]);
    }
}

#[test]
fn what_is_new_of_a_failure_is_told_at_once() {
    let (calls, published) = published_in_an_hour(|attempt| {
        let why = if attempt < 6 { "down" } else { "full" };
        format!("the back end is {why}")
    });
    assert_eq!(published, [1, 2, 4, 6, 12]);
    assert_eq!(calls, 17);
    let shown = |code| {
        let mut machine = machine().identified().build();
        machine.status = Some(after(&machine, &unavailable("no"), timing()));
        let again = RetryTiming {
            now: at(20),
            attempts: 3,
            ..timing()
        };
        let outcome = Outcome::Failed(Box::new(Failure::new(Call::Create, Status::new(code, "no"))));
        let status = after(&machine, &outcome, again);
        (machine.status.unwrap() == status, status)
    };
    assert!(shown(Code::Unavailable).0, "it says nothing new");
    let (same, status) = shown(Code::Aborted);
    assert!(!same);
    assert_eq!(status.last_operation.unwrap().attempts, 3);
    assert_eq!(state_of_ready(&status.conditions), ("False", "Aborted"));
}

fn state_of_ready(all: &[Condition]) -> (&str, &str) {
    let ready = conditions::get(all, conditions::READY).unwrap();
    (&ready.status, &ready.reason)
}

#[test]
fn a_provisioned_machine_tells_cluster_api_all_that_it_reads() {
    let status = serde_json::to_value(status_of(machine().identified(), &provisioned(vm()))).unwrap();
    for (field, expected) in [
        ("ready", json!(true)),
        ("initialization", json!({"provisioned": true})),
        (
            "addresses",
            json!([{"type": "InternalIP", "address": "10.0.0.1"}]),
        ),
        ("failureDomain", json!("z1")),
        ("nodeName", json!("node-1")),
        ("powerState", json!("Running")),
        ("observedGeneration", json!(1)),
    ] {
        assert_eq!(status[field], expected, "{field}");
    }
    assert_eq!(status["lastOperation"]["type"], "Create");
    assert_eq!(status["lastOperation"]["state"], "Successful");
    assert_eq!(status["lastOperation"]["attempts"], 0);
}

#[test]
fn a_recheck_that_knows_less_does_not_unsay_what_was_known() {
    let mut once = machine().provisioned().build();
    once.status = Some(after(&once, &provisioned(vm()), timing()));
    let mut bare = cmi_driver::Machine::new("sim://1".parse().unwrap(), "");
    bare.addresses = vm().addresses;
    assert_eq!(after(&once, &provisioned(bare), timing()), once.status.unwrap());
}

/// Otherwise, a VM that is to be on would be looked up for ever.
#[test]
fn a_vm_without_a_power_state_no_longer_counts_as_off() {
    for (power, left) in [
        ("Starting", None),
        ("Stopped", None),
        ("Running", Some("Running")),
        ("Failed", Some("Failed")),
    ] {
        let machine = machine().provisioned().power(power).build();
        let unknown = cmi_driver::Machine::new("sim://1".parse().unwrap(), "");
        let status = after(&machine, &provisioned(unknown), timing());
        assert_eq!(status.power_state.as_deref(), left, "{power}");
    }
}

/// An invalid value from a driver must not block the rest of the status.
#[test]
fn what_the_schema_would_refuse_is_left_out_or_cut() {
    let mut odd = vm();
    odd.node_name = "n".repeat(254);
    odd.failure_domain = Some(String::new());
    let status = status_of(machine().identified(), &provisioned(odd));
    assert_eq!((status.node_name, status.failure_domain), (None, None));
    let long = Status::new(Code::InvalidArgument, "é".repeat(LONG));
    let outcome = Outcome::Failed(Box::new(Failure::new(Call::Create, long)));
    let status = status_of(machine().identified(), &outcome);
    let lengths = [
        status.failure_message.as_deref(),
        status
            .last_operation
            .as_ref()
            .and_then(|last| last.message.as_deref()),
        Some(condition(&status, conditions::READY).message.as_str()),
    ]
    .map(|text| text.map(|text| text.chars().count()));
    assert_eq!(lengths, [Some(4096); 3]);
}

/// INI-14, INI-15, INI-16, INI-17
#[test]
fn a_failed_initialization_is_a_failed_create_with_its_stage() {
    let outcome = failed(Call::Initialize, Code::Uninitialized);
    let status = status_of(machine().identified().provider_id("sim://1"), &outcome);
    let last = status.last_operation.as_ref().unwrap();
    assert_eq!(
        (last.type_, last.state),
        (OperationType::Create, OperationState::Failed)
    );
    assert_eq!(last.code.as_deref(), Some("Uninitialized"));
    assert_eq!(last.message.as_deref(), Some("InstanceInitialization: no room"));
    assert_eq!(
        (last.attempts, last.next_retry_time.as_ref().unwrap().0),
        (2, at(40))
    );
    assert_eq!(
        state_of(&status, conditions::VIRTUAL_MACHINE_CREATED),
        ("True", reason::CREATED)
    );
    assert_eq!(
        state_of(&status, conditions::VIRTUAL_MACHINE_INITIALIZED),
        ("False", "Uninitialized")
    );
    assert_eq!(state_of(&status, conditions::READY), ("False", "Uninitialized"));
}

/// After a restart, the wait is read from the status, whose times are in whole seconds.
#[test]
fn a_wait_restored_from_the_status_is_never_shorter() {
    for millis in [0, 1, 300, 999] {
        let late = timing().now + Duration::from_millis(millis);
        let timing = RetryTiming {
            now: late,
            ..timing()
        };
        let outcome = failed(Call::Update, Code::NotFound);
        let mut machine = machine().provisioned().build();
        let status = serde_json::to_string(&after(&machine, &outcome, timing)).unwrap();
        machine.status = Some(serde_json::from_str(&status).unwrap());
        let instant = Instant::now();
        let retry = restored(&machine, late, instant, 0).unwrap();
        let RetryCondition::Time(until) = retry.until else {
            panic!("{:?}", retry.until)
        };
        assert!(
            until >= instant + timing.wait.unwrap(),
            "{millis} ms: {:?}",
            until - instant
        );
    }
}

/// CTL-CR-02..CTL-CR-16
#[test]
fn a_failed_create_shows_its_code_and_fails_for_good_only_if_senseless() {
    for code in Code::ALL {
        let status = status_of(machine().identified(), &failed(Call::Create, code));
        let last = status.last_operation.as_ref().unwrap();
        assert_eq!(last.operation.as_deref(), Some("CreateMachine"));
        assert_eq!(last.code.as_deref(), Some(code.name()));
        assert_eq!(state_of(&status, conditions::READY), ("False", code.name()));
        let for_good = matches!(
            code,
            Code::InvalidArgument | Code::AlreadyExists | Code::OutOfRange
        );
        let message = status.failure_message.as_deref().unwrap_or_default();
        assert_eq!(
            status.failure_reason.as_deref(),
            for_good.then(|| code.name()),
            "{code}"
        );
        assert_eq!(
            message.starts_with("CreateMachine: no room; ") && message.ends_with("to retry once"),
            for_good,
            "{code}: {message}"
        );
    }
}

/// CTL-GS-14, CTL-GS-16: a running machine reports only a lasting outage, even if its own calls fail.
#[test]
fn unanswered_calls_do_not_change_driver_reachable_of_a_running_vm() {
    let up = || {
        machine().provisioned().condition(
            conditions::DRIVER_REACHABLE,
            ConditionStatus::True,
            reason::REACHABLE,
        )
    };
    for code in Code::ALL {
        let status = status_of(up(), &failed(Call::Refresh, code));
        assert_eq!(
            state_of(&status, conditions::DRIVER_REACHABLE),
            ("True", reason::REACHABLE),
            "{code}"
        );
    }
    let kept = |reachable| Outcome::UpToDate {
        reachability: reachability(reachable),
        not_updatable: Vec::new(),
        requeue_after: None,
    };
    let mut lost = up().build();
    lost.status = Some(after(&lost, &kept(Some(false)), timing()));
    let shown = |status: &InfraMachineStatus| state_of(status, conditions::DRIVER_REACHABLE).0.to_owned();
    assert_eq!(shown(lost.status.as_ref().unwrap()), "False");
    let message = |status: &InfraMachineStatus| message_of(status, conditions::DRIVER_REACHABLE).to_owned();
    let expected = "the last probe failed: refused; the VM is not affected";
    assert_eq!(message(lost.status.as_ref().unwrap()), expected);
    let later = Outcome::UpToDate {
        reachability: StableReachability::Unreachable("timed out".into()),
        not_updatable: Vec::new(),
        requeue_after: None,
    };
    assert_eq!(
        Some(after(&lost, &later, timing())),
        lost.status,
        "a fleet is not written for another word on the same outage"
    );
    assert_eq!(shown(&after(&lost, &kept(None), timing())), "False");
    assert_eq!(shown(&after(&lost, &kept(Some(true)), timing())), "True");
    assert_eq!(shown(&after(&up().build(), &kept(None), timing())), "True");
}

/// CTL-GS-14, CTL-GS-16
#[test]
fn only_a_driver_that_does_not_answer_is_called_unreachable() {
    for code in Code::ALL {
        let status = status_of(machine().identified(), &failed(Call::LookUpAgain, code));
        let outage = matches!(code, Code::Unavailable | Code::DeadlineExceeded);
        let expected = if outage {
            ("False", code.name())
        } else {
            ("True", reason::REACHABLE)
        };
        assert_eq!(
            state_of(&status, conditions::DRIVER_REACHABLE),
            expected,
            "{code}"
        );
    }
}

/// The VM could not be checked. The status reports this until a check succeeds, and reports nothing about the
/// VM itself.
#[test]
fn missing_secrets_of_a_running_vm_are_reported_until_a_check_succeeds() {
    let mut up = machine().provisioned().build();
    let shown = |status: &InfraMachineStatus| {
        let (state, reason) = state_of(status, conditions::DRIVER_REACHABLE);
        assert_eq!(state_of(status, conditions::READY), ("True", reason::READY));
        (state.to_owned(), reason.to_owned())
    };
    let without = ("False".to_owned(), reason::INVALID_SECRET.to_owned());
    let reachable = ("True".to_owned(), reason::REACHABLE.to_owned());
    up.status = Some(after(&up, &no_secrets(OperationType::Create), timing()));
    assert_eq!(shown(up.status.as_ref().unwrap()), without);
    let waiting = Outcome::UpToDate {
        reachability: reachability(Some(true)),
        not_updatable: Vec::new(),
        requeue_after: Some(Duration::from_secs(5)),
    };
    assert_eq!(shown(&after(&up, &waiting, timing())), without);
    for answered in [provisioned(vm()), kept(&[])] {
        assert_eq!(shown(&after(&up, &answered, timing())), reachable);
    }
}

/// INI-13
#[test]
fn a_create_that_takes_too_long_is_called_timed_out_and_keeps_its_cause() {
    let slow = machine().identified().build();
    let outcome = failed(Call::Create, Code::ResourceExhausted);
    let late = RetryTiming {
        now: at(1201),
        ..timing()
    };
    let status = after(&slow, &outcome, late);
    assert_eq!(
        state_of(&status, conditions::READY),
        ("False", reason::CREATION_TIMED_OUT)
    );
    assert_eq!(
        condition(&status, conditions::READY).message,
        format!("not provisioned after 1200 s: ResourceExhausted: CreateMachine: no room; {RETRY_NOW_HINT}")
    );
}

#[test]
fn a_refused_spec_fails_a_new_machine_and_outdates_an_old_one() {
    let new = status_of(machine(), &refused());
    assert_eq!(new.failure_reason.as_deref(), Some("InvalidArgument"));
    assert_eq!(state_of(&new, conditions::READY), ("False", "InvalidArgument"));
    let old = status_of(machine().provisioned(), &refused());
    assert_eq!(old.failure_reason, None);
    assert_eq!(
        state_of(&old, conditions::VIRTUAL_MACHINE_UP_TO_DATE),
        ("False", "InvalidArgument")
    );
}

#[test]
fn an_earlier_failure_is_history_once_the_new_spec_is_tried() {
    let tried_before = machine().identified().generation(2).observed(1).status(|status| {
        status.failure_reason = Some("InvalidArgument".to_owned());
        status.failure_message = Some("no".to_owned());
    });
    let status = status_of(tried_before, &failed(Call::Create, Code::Unavailable));
    assert_eq!((status.failure_reason, status.failure_message), (None, None));
    assert_eq!(status.observed_generation, Some(2));
}

/// GitOps tools would take a change for applied that nobody has compared with the VM.
#[test]
fn a_spec_that_was_not_compared_is_not_observed() {
    let changed = || machine().provisioned().generation(2).observed(1);
    let not_configured = blocked(world().driver_not_configured().plan(changed()));
    for outcome in [
        not_configured,
        provisioned(vm()),
        failed(Call::Refresh, Code::Unavailable),
    ] {
        let status = status_of(changed(), &outcome);
        assert_eq!(status.observed_generation, Some(1), "{outcome:?}");
    }
    let compared = Outcome::UpToDate {
        reachability: reachability(None),
        not_updatable: Vec::new(),
        requeue_after: None,
    };
    assert_eq!(status_of(changed(), &compared).observed_generation, Some(2));
    let created = machine().identified().generation(2).observed(1);
    assert_eq!(
        status_of(created, &provisioned(vm())).observed_generation,
        Some(2)
    );
}

/// The spec changed during a pause, so it has not been tried when the pause ends.
#[test]
fn a_pause_does_not_make_an_old_failure_one_of_the_new_spec() {
    let failed = machine()
        .identified()
        .generation(2)
        .observed(1)
        .status(|status| status.failure_reason = Some("InvalidArgument".to_owned()));
    let mut paused = failed.build();
    let outcome = blocked(world().paused().plan(machine()));
    paused.status = Some(after(&paused, &outcome, timing()));
    let status = paused.status.clone().unwrap();
    assert_eq!(state_of(&status, conditions::PAUSED), ("True", reason::PAUSED));
    let plan = world().plan(machine().identified().generation(2).status(|s| *s = status));
    assert!(
        matches!(
            plan,
            Plan::CallDriver(crate::machine::plan::DriverPlan::Provision(_))
        ),
        "{plan:?}"
    );
}

/// A time in the past, or a time without a call, would mislead readers.
#[test]
fn no_retry_time_is_shown_while_no_call_is_planned() {
    let mut held = machine().identified().build();
    held.status = Some(after(&held, &failed(Call::Create, Code::Unavailable), timing()));
    let next = |status: &InfraMachineStatus| {
        let last = status.last_operation.as_ref().unwrap();
        assert_eq!(last.state, OperationState::Failed, "what was tried is kept");
        last.next_retry_time.as_ref().map(|next| next.0)
    };
    assert_eq!(next(held.status.as_ref().unwrap()), Some(at(40)));
    let not_configured = blocked(world().driver_not_configured().plan(machine().identified()));
    assert_eq!(next(&after(&held, &not_configured, timing())), None);
    held.status = Some(after(&held, &blocked(world().paused().plan(machine())), timing()));
    assert_eq!(next(held.status.as_ref().unwrap()), None);
}

/// A process that restarts with a driver after running without it does not wait for earlier failures.
#[test]
fn a_machine_whose_driver_is_configured_again_is_tried_at_once() {
    let mut held = machine().identified().build();
    let not_configured = blocked(world().driver_not_configured().plan(machine().identified()));
    held.status = Some(after(&held, &failed(Call::Create, Code::Unavailable), timing()));
    held.status = Some(after(&held, &not_configured, timing()));
    let status = held.status.clone().unwrap();
    let plan = world().plan(machine().identified().status(|shown| *shown = status));
    assert!(
        matches!(
            plan,
            Plan::CallDriver(crate::machine::plan::DriverPlan::Provision(_))
        ),
        "{plan:?}"
    );
    let mut up = machine().provisioned().build();
    let not_configured = blocked(world().driver_not_configured().plan(machine().provisioned()));
    up.status = Some(after(&up, &not_configured, timing()));
    let back = Outcome::UpToDate {
        reachability: reachability(None),
        not_updatable: Vec::new(),
        requeue_after: None,
    };
    let back = after(&up, &back, timing());
    assert_eq!(
        state_of(&back, conditions::DRIVER_REACHABLE),
        ("True", reason::REACHABLE)
    );
}

#[test]
fn the_end_of_a_pause_is_said_at_once_though_a_wait_is_not_over() {
    let paused = machine()
        .identified()
        .condition(conditions::PAUSED, ConditionStatus::True, reason::PAUSED);
    let status = status_of(paused, &Outcome::Waiting(Some(Duration::from_mins(10))));
    assert_eq!(
        state_of(&status, conditions::PAUSED),
        ("False", reason::NOT_PAUSED)
    );
}

#[test]
fn a_machine_that_waits_says_what_for() {
    let status = status_of(machine(), &blocked(world().without_bootstrap().plan(machine())));
    assert_eq!(
        state_of(&status, conditions::READY),
        ("False", reason::WAITING_FOR_BOOTSTRAP_DATA)
    );
    let status = status_of(machine(), &no_secrets(OperationType::Create));
    assert_eq!(
        state_of(&status, conditions::READY),
        ("False", reason::INVALID_SECRET)
    );
    assert_eq!(condition(&status, conditions::READY).observed_generation, Some(1));
}

/// UPD-02
/// Other machines use all calls of the driver. The result of the last attempt stays.
#[test]
fn a_wait_for_a_permit_is_reported_and_does_not_end_ready() {
    let queued = || Outcome::Queued {
        requeue_after: Duration::from_secs(30),
    };
    let waits = ("False", reason::WAITING_FOR_DRIVER);
    let new = status_of(machine(), &queued());
    assert_eq!(state_of(&new, conditions::READY), waits);
    let failing =
        machine()
            .identified()
            .failed(OperationType::Create, Operation::CreateMachine, Code::Aborted, 9);
    let before = failing.clone().build().status.unwrap();
    let retried = status_of(failing, &queued());
    assert_eq!(state_of(&retried, conditions::READY), waits);
    assert_eq!(retried.last_operation, before.last_operation);
    let up = machine().provisioned();
    assert_eq!(
        status_of(up.clone(), &queued()),
        up.build().status.unwrap(),
        "`Ready` is a promise to MachineHealthChecks"
    );
    let deleted = status_of(machine().identified().deleted_at(now()), &queued());
    assert_eq!(
        state_of(&deleted, conditions::DELETING),
        ("True", reason::WAITING_FOR_DRIVER)
    );
    for fixture in [machine(), machine().identified().deleted_at(now())] {
        let mut once = fixture.build();
        once.status = Some(after(&once, &queued(), timing()));
        let later = RetryTiming {
            now: at(99),
            ..timing()
        };
        assert_eq!(after(&once, &queued(), later), once.status.unwrap(), "one write");
    }
}

/// A failing machine, or a machine in a slow deletion, waits for permits between its calls. Reporting this
/// would cost two writes for each call.
#[test]
fn a_wait_for_a_permit_hides_nothing_that_came_of_a_call() {
    let queued = || Outcome::Queued {
        requeue_after: Duration::from_secs(30),
    };
    let deletion = |reason| Outcome::Deleting {
        reason,
        message: "in words".to_owned(),
        requeue_after: Duration::from_secs(5),
    };
    let deleted = || machine().identified().deleted_at(now());
    let outcomes = [
        (machine().identified(), failed(Call::Create, Code::Unavailable)),
        (
            machine().identified(),
            failed(Call::LookUp, Code::PermissionDenied),
        ),
        (machine().identified(), no_secrets(OperationType::Create)),
        (deleted(), failed(Call::Delete, Code::Internal)),
        (deleted(), no_secrets(OperationType::Delete)),
        (deleted(), deletion(reason::SHUTTING_DOWN)),
        (deleted(), deletion(reason::DELETING)),
        (deleted(), deletion(reason::CONFIRMING_DELETION)),
        (deleted(), deletion(reason::CREATE_UNANSWERED)),
    ];
    for (fixture, outcome) in outcomes {
        let mut machine = fixture.build();
        machine.status = Some(after(&machine, &outcome, timing()));
        let later = RetryTiming {
            now: at(99),
            ..timing()
        };
        let shown = after(&machine, &queued(), later);
        assert_eq!(Some(shown), machine.status, "{outcome:?}");
    }
    let bootstrap = failing_and_held();
    assert_eq!(
        state_of(&status_of(bootstrap, &queued()), conditions::READY),
        ("False", reason::WAITING_FOR_DRIVER),
        "the failure is not what is shown any more"
    );
}

/// Returns a machine that failed and now waits for bootstrap data.
fn failing_and_held() -> MachineFixture {
    let failing = machine().identified();
    let code = Code::Unavailable;
    let failing = failing.failed(OperationType::Create, Operation::CreateMachine, code, 9);
    failing.condition(
        conditions::READY,
        ConditionStatus::False,
        reason::WAITING_FOR_BOOTSTRAP_DATA,
    )
}

/// No driver was called for the machine, so it is reported once, as a wait.
#[test]
fn a_wait_for_capacity_is_reported_once_and_never_over_a_refusal() {
    let circuit_open = || Outcome::AwaitingCapacity {
        failure_domain: None,
        requeue_after: Duration::from_mins(10),
    };
    let mut new = machine().build();
    let status = after(&new, &circuit_open(), timing());
    assert_eq!(
        state_of(&status, conditions::READY),
        ("False", reason::WAITING_FOR_CAPACITY)
    );
    assert_eq!(status.last_operation, None);
    new.status = Some(status.clone());
    let later = RetryTiming {
        now: at(99),
        attempts: 7,
        ..timing()
    };
    assert_eq!(after(&new, &circuit_open(), later), status);
    new.status = Some(after(
        &new,
        &failed(Call::Create, Code::ResourceExhausted),
        timing(),
    ));
    assert_eq!(Some(after(&new, &circuit_open(), later)), new.status);
    let up = machine().provisioned().build();
    assert_eq!(Some(after(&up, &circuit_open(), timing())), up.status);
}

/// The published time of the next attempt belongs to the published failure.
#[test]
fn a_wait_for_capacity_shows_only_its_own_retry_time() {
    let circuit_open = Outcome::AwaitingCapacity {
        failure_domain: None,
        requeue_after: Duration::from_mins(10),
    };
    let next_try = |status: &InfraMachineStatus| {
        let last = status.last_operation.as_ref().unwrap();
        last.next_retry_time.as_ref().map(|time| time.0)
    };
    let mut other = machine().build();
    let unavailable = failed(Call::Create, Code::Unavailable);
    other.status = Some(after(&other, &unavailable, timing()));
    assert!(next_try(other.status.as_ref().unwrap()).is_some());
    assert_eq!(next_try(&after(&other, &circuit_open, timing())), None);
}

/// An outdated state of the VM or the driver is removed from the status.
#[test]
fn what_is_so_no_more_is_not_shown_any_more() {
    let on_its_way = machine().condition(
        conditions::DRIVER_REACHABLE,
        ConditionStatus::True,
        reason::REACHABLE,
    );
    let on_its_way = on_its_way.build();
    let no_driver = Blocked::new(conditions::READY, reason::DRIVER_NOT_CONFIGURED, "none");
    let blocked = after(&on_its_way, &Outcome::Blocked(no_driver), timing());
    assert_eq!(
        conditions::get(&blocked.conditions, conditions::DRIVER_REACHABLE),
        None
    );

    let mut up = machine().identified().build();
    let mut running = vm();
    running.power_state = Some(PowerState::Running);
    up.status = Some(after(&up, &provisioned(running), timing()));
    let status = up.status.as_ref().unwrap();
    assert!(status.power_state.is_some() && !status.addresses.is_empty());
    let of_others = Blocked::new(conditions::DELETING, reason::WAITING_FOR_FINALIZERS, "others");
    let status = after(&up, &Outcome::Blocked(of_others), timing());
    assert_eq!((status.power_state, status.addresses), (None, Vec::new()));
}

#[test]
fn an_update_that_failed_is_told_where_updates_are_told() {
    for code in Code::ALL {
        let outcome = failed(Call::Update, code);
        let status = status_of(machine().provisioned(), &outcome);
        assert_eq!(
            state_of(&status, conditions::VIRTUAL_MACHINE_UP_TO_DATE),
            ("False", code.name())
        );
        assert_eq!(status.last_operation.unwrap().type_, OperationType::Update);
    }
}

/// UPD-01
#[test]
fn an_update_that_is_done_is_the_last_operation() {
    let status = status_of(machine().provisioned(), &Outcome::Updated);
    let last = status.last_operation.as_ref().unwrap();
    assert_eq!(
        (last.type_, last.state),
        (OperationType::Update, OperationState::Successful)
    );
    assert_eq!(
        state_of(&status, conditions::VIRTUAL_MACHINE_UP_TO_DATE),
        ("True", reason::UP_TO_DATE)
    );
}

#[test]
fn a_start_of_the_vm_stays_the_last_operation() {
    let mut machine = machine().provisioned().power("Stopped").build();
    for (refused, state) in [
        (None, OperationState::Successful),
        (Some(Code::Unavailable), OperationState::Failed),
    ] {
        machine.status = Some(started(&machine, refused, at(5)));
        for outcome in [provisioned(vm()), kept(&[])] {
            let last = after(&machine, &outcome, timing()).last_operation.unwrap();
            assert_eq!(last.operation.as_deref(), Some("RestartMachine"), "{outcome:?}");
            assert_eq!(last.last_update_time.0, at(5), "{outcome:?}");
            let code = refused.map(Code::name);
            assert_eq!((last.state, last.code.as_deref()), (state, code));
        }
    }
}

/// CTL-DE-02..CTL-DE-16
#[test]
fn a_deletion_that_failed_says_why_it_is_still_there() {
    for code in Code::ALL {
        let outcome = failed(Call::Delete, code);
        let status = status_of(machine().provisioned().deleted_at(now()), &outcome);
        assert_eq!(state_of(&status, conditions::DELETING), ("True", code.name()));
        let deleting = condition(&status, conditions::DELETING);
        assert_eq!(deleting.message, "DeleteMachine: no room");
        assert_eq!(status.last_operation.unwrap().type_, OperationType::Delete);
    }
}

#[test]
fn a_deletion_that_goes_on_takes_back_that_the_driver_does_not_answer() {
    let outage = machine().provisioned().deleted_at(now()).condition(
        conditions::DRIVER_REACHABLE,
        ConditionStatus::False,
        "Unavailable",
    );
    for reason in [
        reason::SHUTTING_DOWN,
        reason::DELETING,
        reason::CONFIRMING_DELETION,
    ] {
        let deleting = Outcome::Deleting {
            reason,
            message: "going".to_owned(),
            requeue_after: Duration::from_secs(1),
        };
        let status = status_of(outage.clone(), &deleting);
        assert_eq!(
            state_of(&status, conditions::DRIVER_REACHABLE),
            ("True", reason::REACHABLE)
        );
        assert_eq!(state_of(&status, conditions::DELETING), ("True", reason));
    }
}

/// A change of `spec.secretRef` has no effect, because every later call uses the account of the VM. The
/// status must report this.
#[test]
fn a_changed_secret_reference_is_reported_while_it_differs() {
    let changed = || {
        machine()
            .provisioned()
            .record(|record| record.made_from.as_mut().unwrap().secret = Some("old".to_owned()))
            .secret("new")
    };
    for outcome in [
        kept(&[]),
        Outcome::Updated,
        failed(Call::Refresh, Code::Unauthenticated),
    ] {
        let mut fixture = changed().build();
        let status = after(&fixture, &outcome, timing());
        let up_to_date = condition(&status, conditions::VIRTUAL_MACHINE_UP_TO_DATE);
        assert_eq!(
            (up_to_date.status.as_str(), up_to_date.reason.as_str()),
            ("False", reason::SECRET_CHANGED)
        );
        assert!(
            up_to_date.message.contains("spec.secretRef names `new`") && up_to_date.message.contains("`old`"),
            "{}",
            up_to_date.message
        );
        fixture.status = Some(status.clone());
        assert_eq!(
            after(&fixture, &kept(&[]), later()).conditions,
            after(&fixture, &kept(&[]), timing()).conditions,
            "an idle fleet makes no writes"
        );
        fixture.spec.secret_ref = Some(SecretReference {
            name: "old".to_owned(),
        });
        let healed = after(&fixture, &failed(Call::Refresh, Code::Internal), timing());
        assert_eq!(
            state_of(&healed, conditions::VIRTUAL_MACHINE_UP_TO_DATE),
            ("True", reason::UP_TO_DATE)
        );
    }
    let both = status_of(changed(), &kept(&["/disk"]));
    let shown = condition(&both, conditions::VIRTUAL_MACHINE_UP_TO_DATE);
    assert_eq!(shown.reason, reason::NOT_HOT_UPDATABLE);
    assert!(
        shown.message.contains("/disk") && shown.message.contains("`old`"),
        "{}",
        shown.message
    );
    let deleted = status_of(changed().deleted_at(now()), &failed(Call::Delete, Code::Internal));
    assert!(conditions::get(&deleted.conditions, conditions::VIRTUAL_MACHINE_UP_TO_DATE).is_none());
}

/// A deletion must be visible in the status.
#[test]
fn each_obstacle_to_a_deletion_is_reported_and_ends_ready() {
    let deleted = || machine().provisioned().deleted_at(at(0));
    let late = || world().seconds_later(100);
    let blocked = |fixture: MachineFixture, world: crate::machine::fixtures::World| {
        let plan = world.plan(fixture.clone());
        (fixture, blocked(plan))
    };
    let deleting = Outcome::Deleting {
        reason: reason::SHUTTING_DOWN,
        message: "it stops".to_owned(),
        requeue_after: Duration::from_secs(1),
    };
    let mut all = vec![
        blocked(deleted(), world().paused()),
        blocked(deleted(), late().driver_not_configured()),
        blocked(deleted().annotated(annotations::DELETE_FOR_MOVE, ""), late()),
        blocked(deleted().without_record(), world()),
        blocked(deleted().without_finalizer().kept_by("example.com/a"), world()),
        (deleted(), no_secrets(OperationType::Delete)),
        (deleted(), deleting),
    ];
    for call in [
        Call::ShutDown,
        Call::Delete,
        Call::ConfirmGone,
        Call::ListAfterDelete,
    ] {
        all.extend(Code::ALL.map(|code| (deleted(), failed(call, code))));
    }
    for (fixture, outcome) in all {
        let why = match &outcome {
            Outcome::Blocked(wait) => wait.reason,
            _ => "",
        };
        let status = status_of(fixture, &outcome);
        let (ready, deletion) = (
            condition(&status, conditions::READY),
            condition(&status, conditions::DELETING),
        );
        assert_eq!(
            (ready.status.as_str(), deletion.status.as_str()),
            ("False", "True"),
            "{outcome:?}"
        );
        assert!(!deletion.message.is_empty(), "{outcome:?}");
        let (shown, meant) = (deletion.reason == reason::PAUSED, why == reason::PAUSED);
        assert_eq!(shown, meant, "{outcome:?}");
    }
}

/// When a fleet is deleted, waits for a moving queue are not written.
#[test]
fn a_deletion_that_waits_for_its_turn_writes_nothing() {
    let waiting = Outcome::Waiting(Some(Duration::from_mins(1)));
    for fixture in [
        machine().provisioned().deleted_at(at(0)),
        machine().provisioned().deleted_at(at(0)).condition(
            conditions::DELETING,
            ConditionStatus::True,
            "Unavailable",
        ),
    ] {
        let before = fixture.clone().build().status.unwrap();
        assert_eq!(status_of(fixture, &waiting), before);
    }
}

#[test]
fn a_long_call_is_reported_unless_the_status_shows_its_last_result() {
    let said = |fixture: MachineFixture, operation| in_progress(&fixture.build(), operation, at(7));
    let creating = said(machine().identified(), Operation::CreateMachine);
    assert_eq!(
        state_of(&creating, conditions::READY),
        ("False", reason::CREATING)
    );
    let last = creating.last_operation.clone().unwrap();
    assert_eq!(
        (last.type_, last.last_update_time.0),
        (OperationType::Create, at(7))
    );
    let created = machine().identified().status(|status| *status = creating.clone());
    assert_eq!(
        said(created.clone(), Operation::CreateMachine),
        creating,
        "said once"
    );
    let initializing = said(created, Operation::InitializeMachine);
    assert_eq!(
        state_of(&initializing, conditions::READY),
        ("False", reason::INITIALIZING)
    );
    assert_eq!(
        condition(&initializing, conditions::VIRTUAL_MACHINE_CREATED).status,
        "True"
    );

    let deleting = said(
        machine().provisioned().deleted_at(at(0)),
        Operation::DeleteMachine,
    );
    assert_eq!(
        state_of(&deleting, conditions::READY),
        ("False", reason::DELETING)
    );
    assert_eq!(deleting.last_operation.unwrap().type_, OperationType::Delete);
    for unchanged in [
        machine().failed(
            OperationType::Create,
            Operation::CreateMachine,
            Code::Unavailable,
            9,
        ),
        machine().provisioned(),
    ] {
        let before = unchanged.clone().build().status.unwrap();
        assert_eq!(said(unchanged.clone(), Operation::CreateMachine), before);
        assert_eq!(said(unchanged, Operation::InitializeMachine), before);
    }
}

fn later() -> RetryTiming {
    RetryTiming {
        now: at(500),
        ..timing()
    }
}

/// An idle fleet makes no writes, even if a refusal is decided again.
#[test]
fn a_refusal_without_a_call_is_written_once_without_an_operation() {
    let before = machine().identified();
    let first = after(&before.clone().build(), &refused(), timing());
    let last = first.last_operation.clone().unwrap();
    assert_eq!(
        (last.operation, last.code.as_deref(), last.message.as_deref()),
        (None, Some("InvalidArgument"), Some("no"))
    );
    let shown = before.status(|status| *status = first.clone()).build();
    let later = RetryTiming {
        now: at(60),
        ..timing()
    };
    assert_eq!(after(&shown, &refused(), later), first);
}

/// The last operation shows whether an update is incomplete.
#[test]
fn a_refused_change_of_a_vm_that_is_up_leaves_its_last_operation() {
    let up = machine().provisioned().build();
    let before = up.status.clone().unwrap().last_operation;
    assert_eq!(after(&up, &refused(), timing()).last_operation, before);
}

/// `Ready` stays, because an operator may have switched the VM off.
#[test]
fn a_vm_that_is_off_is_ready_and_says_that_it_is_off() {
    let in_state = |power| {
        provisioned(cmi_driver::Machine {
            power_state: Some(power),
            ..vm()
        })
    };
    let mut machine = machine().provisioned().build();
    let mut shown = |outcome: &Outcome| {
        let status = after(&machine, outcome, timing());
        machine.status = Some(status.clone());
        status
    };
    let has_running = |status: &InfraMachineStatus| {
        conditions::get(&status.conditions, conditions::VIRTUAL_MACHINE_RUNNING).is_some()
    };
    assert!(
        !has_running(&shown(&in_state(PowerState::Running))),
        "it was never off"
    );
    for (power, expected) in [
        (PowerState::Stopped, ("False", reason::POWERED_OFF)),
        (PowerState::Starting, ("False", reason::POWERED_OFF)),
        (PowerState::Running, ("True", reason::RUNNING)),
        (PowerState::Stopped, ("False", reason::POWERED_OFF)),
    ] {
        let status = shown(&in_state(power));
        let running = state_of(&status, conditions::VIRTUAL_MACHINE_RUNNING);
        assert_eq!(running, expected, "{power:?}");
        assert_eq!(state_of(&status, conditions::READY), ("True", reason::READY));
    }
    assert!(!has_running(&shown(&in_state(PowerState::Failed))));
    shown(&in_state(PowerState::Stopped));
    let vanished = Outcome::Vanished("sim://1".parse().unwrap());
    assert!(!has_running(&shown(&vanished)), "it is not off but gone");
}
