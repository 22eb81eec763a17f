//! Tests the wait and the message of every failure.

use super::*;
use crate::api::retry::{FIRST_BACKOFF, LONG_WAIT, MAX_BACKOFF};
use crate::apiserver::leadership::NotLeader;

fn failure(call: Call, code: Code) -> Failure {
    Failure::new(call, Status::new(code, "no"))
}

fn asking(call: Call, code: Code, wait: Duration) -> Failure {
    Failure::new(call, Status::new(code, "no").with_retry_after(wait))
}

fn wait(failure: &Failure, attempt: u32, jitter: f64) -> Option<Duration> {
    failure.disposition.wait(&failure.status, attempt, jitter)
}

/// CTL-CR-01..CTL-CR-16, CTL-DE-02..CTL-DE-16, CTL-GS-02..CTL-GS-16, INI-17
#[test]
fn every_call_and_code_waits_as_its_class_says() {
    // A failed shutdown request does not count as a failure, because the VM is then deleted.
    for call in Call::ALL.into_iter().filter(|call| *call != Call::ShutDown) {
        for code in Code::ALL {
            let failure = failure(call, code);
            let (first, tenth) = (wait(&failure, 1, 0.0), wait(&failure, 10, 0.0));
            let expected = match code {
                // Not called for an InfraMachine. Remediation and drain handle these stages.
                _ if matches!(call, Call::Restart | Call::VolumeIds) => continue,
                Code::Canceled
                | Code::Unknown
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::Unavailable
                | Code::NotFound
                | Code::Uninitialized => (Some(FIRST_BACKOFF), Some(MAX_BACKOFF)),
                // CMI-37
                Code::Unimplemented if failure.disposition == Disposition::AwaitDriver => (None, None),
                Code::ResourceExhausted
                | Code::PermissionDenied
                | Code::Unauthenticated
                | Code::FailedPrecondition
                | Code::Internal
                | Code::DataLoss
                | Code::Unimplemented => (Some(LONG_WAIT), Some(LONG_WAIT)),
                Code::InvalidArgument if matches!(call, Call::LookUp | Call::List) => (None, None),
                Code::InvalidArgument | Code::AlreadyExists | Code::OutOfRange => {
                    if call == Call::Create {
                        (None, None)
                    } else {
                        (Some(LONG_WAIT), Some(LONG_WAIT))
                    }
                }
            };
            assert_eq!((first, tenth), expected, "{call:?} {code}");
        }
    }
}

/// CMI-37
#[test]
fn what_the_driver_does_not_offer_is_remembered_by_the_call() {
    let failed = |call| Outcome::Failed(Box::new(failure(call, Code::Unimplemented)));
    for (outcome, call) in [
        (failed(Call::Update), Some(Operation::UpdateMachine)),
        (
            failed(Call::FinishInitialization),
            Some(Operation::InitializeMachine),
        ),
        (
            Outcome::NotSupported(Operation::GetMachineStatus),
            Some(Operation::GetMachineStatus),
        ),
        (failed(Call::Refresh), None),
        (Outcome::Unchanged(None), None),
    ] {
        assert_eq!(outcome.awaits_another_driver(), call, "{outcome:?}");
    }
}

#[test]
fn jitter_only_shortens_a_wait_and_never_to_nothing() {
    for call in Call::ALL {
        for code in Code::ALL {
            let failure = failure(call, code);
            let (whole, less) = (wait(&failure, 3, 0.0), wait(&failure, 3, 0.999));
            assert!(less <= whole, "{call:?} {code}");
            assert!(less.is_none_or(|less| less > FIRST_BACKOFF), "{call:?} {code}");
        }
    }
}

/// A driver's requested delay is a lower bound. A driver that always requests one second must not be called
/// every second.
#[test]
fn a_wait_that_the_driver_asks_for_is_kept_and_never_ends_the_back_off() {
    let seconds = Duration::from_secs;
    for code in [Code::Unavailable, Code::ResourceExhausted, Code::Internal] {
        for (asked, waits) in [
            (Duration::from_millis(1), [5, 10, 20, 40, 300]),
            (seconds(1), [5, 10, 20, 40, 300]),
            (seconds(15), [15, 15, 20, 40, 300]),
            (seconds(600), [600, 600, 600, 600, 600]),
            (Duration::MAX, [3600, 3600, 3600, 3600, 3600]),
        ] {
            let failure = asking(Call::Create, code, asked);
            let taken = [1, 2, 3, 4, u32::MAX].map(|attempt| wait(&failure, attempt, 0.0));
            assert_eq!(taken, waits.map(|wait| Some(seconds(wait))), "{code} {asked:?}");
            for attempt in [1, 40] {
                let longer = wait(&failure, attempt, 0.999).unwrap();
                assert!(
                    longer >= asked.min(seconds(3600)),
                    "{code}: jitter makes it shorter"
                );
            }
        }
        let nothing_asked = wait(&failure(Call::Create, code), 3, 0.5);
        assert_eq!(
            wait(&asking(Call::Create, code, Duration::ZERO), 3, 0.5),
            nothing_asked
        );
    }
    let refused = asking(Call::Create, Code::InvalidArgument, Duration::from_secs(1));
    assert_eq!(
        wait(&refused, 1, 0.0),
        None,
        "no time makes a refused spec acceptable"
    );
}

/// CTL-CR-01: a replica that does not lead has made no call and writes nothing.
#[test]
fn a_call_that_was_not_made_is_waited_for_in_silence() {
    let failed = |status: Status| {
        let failure = Failure::new(Call::Create, status);
        Outcome::Failed(Box::new(failure)).unless_not_leading()
    };
    let canceled = || Status::new(Code::Canceled, NotLeader.to_string());
    assert!(matches!(
        failed(canceled().with_source(NotLeader)),
        Outcome::Waiting(Some(FIRST_BACKOFF))
    ));
    assert!(
        matches!(failed(canceled()), Outcome::Failed(_)),
        "a driver may say the same in its own name"
    );
}

#[test]
fn only_an_update_that_finds_no_vm_gives_reason_to_look_for_it() {
    for call in Call::ALL {
        for code in Code::ALL {
            let calls_for_look_up = failure(call, code).calls_for_look_up();
            assert_eq!(
                calls_for_look_up,
                call == Call::Update && code == Code::NotFound,
                "{call:?} {code}"
            );
        }
    }
}

/// CTL-CR-06: an ALREADY_EXISTS answer contains the VM that has the name. Its id must not be written.
#[test]
fn only_a_vm_that_is_the_machines_own_is_taken_from_an_error() {
    let vm = cmi_driver::Machine::new("sim://1".parse().unwrap(), "node");
    for call in Call::ALL {
        for code in Code::ALL {
            let failure = Failure::new(call, Status::new(code, "no").with_machine(vm.clone()));
            let own = code == Code::Uninitialized || call.operation() == Operation::InitializeMachine;
            assert_eq!(failure.machine.is_some(), own, "{call:?} {code}");
        }
    }
}

/// OPS-11: only the create carries bootstrap data, and a driver may repeat them in a later answer.
#[test]
fn messages_of_all_calls_except_the_create_are_redacted_again() {
    for call in Call::ALL {
        let outcome = Outcome::Failed(Box::new(failure(call, Code::Internal)));
        assert_eq!(
            outcome.quoted_message().is_some(),
            call != Call::Create,
            "{call:?}"
        );
        let Outcome::Failed(changed) = outcome.with_quoted_message("[no]".to_owned()) else {
            panic!("still a failure");
        };
        assert_eq!(changed.status.message(), "[no]");
    }
    let stopping = Outcome::Deleting {
        reason: reason::SHUTTING_DOWN,
        message: "no".to_owned(),
        requeue_after: FIRST_BACKOFF,
    };
    assert_eq!(stopping.quoted_message(), Some("no"));
    assert!(matches!(
        stopping.with_quoted_message("NO".to_owned()),
        Outcome::Deleting { message, .. } if message == "NO"
    ));
}

/// INI-14
#[test]
fn a_failure_names_its_call_and_the_stage_of_an_initialization() {
    let message = |call| failure(call, Code::Internal).message();
    assert_eq!(message(Call::Create), "CreateMachine: no");
    assert_eq!(message(Call::Initialize), "InstanceInitialization: no");
}
