//! How long every failure is waited for, and what it says.

use super::*;
use crate::driver::retry::{FIRST_BACKOFF, LONG_WAIT, LONGEST_BACKOFF};
use crate::machine::fixtures::machine;

fn failure(operation: Operation, code: Code) -> Failure {
    Failure::new(operation, OperationType::Create, Status::new(code, "no"))
}

fn asking(operation: Operation, code: Code, wait: Duration) -> Failure {
    let status = Status::new(code, "no").with_retry_after(wait);
    Failure::new(operation, OperationType::Create, status)
}

/// CTL-CR-01..CTL-CR-16, CTL-DE-02..CTL-DE-16, CTL-GS-02..CTL-GS-16, INI-17
#[test]
fn every_call_and_code_waits_as_its_class_says() {
    for operation in Operation::ALL {
        for code in Code::ALL {
            let failure = failure(operation, code);
            let (first, tenth) = (failure.wait(1, 0.0), failure.wait(10, 0.0));
            let expected = match code {
                Code::Canceled
                | Code::Unknown
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::Unavailable
                | Code::NotFound
                | Code::Uninitialized => (Some(FIRST_BACKOFF), Some(LONGEST_BACKOFF)),
                Code::ResourceExhausted
                | Code::PermissionDenied
                | Code::Unauthenticated
                | Code::FailedPrecondition
                | Code::Internal
                | Code::DataLoss
                | Code::Unimplemented => (Some(LONG_WAIT), Some(LONG_WAIT)),
                Code::InvalidArgument | Code::AlreadyExists | Code::OutOfRange => {
                    if operation == Operation::CreateMachine {
                        (None, None)
                    } else {
                        (Some(LONG_WAIT), Some(LONG_WAIT))
                    }
                }
            };
            assert_eq!((first, tenth), expected, "{operation} {code}");
        }
    }
}

#[test]
fn jitter_only_shortens_a_wait_and_never_to_nothing() {
    for operation in Operation::ALL {
        for code in Code::ALL {
            let failure = failure(operation, code);
            let (whole, less) = (failure.wait(3, 0.0), failure.wait(3, 0.999));
            assert!(less <= whole, "{operation} {code}");
            assert!(less.is_none_or(|less| less > FIRST_BACKOFF), "{operation} {code}");
        }
    }
}

#[test]
fn a_wait_that_the_driver_asks_for_is_taken_within_reason() {
    let create = Operation::CreateMachine;
    for code in [Code::Unavailable, Code::ResourceExhausted, Code::Internal] {
        for (asked, taken) in [
            (Duration::from_secs(42), Duration::from_secs(42)),
            (Duration::ZERO, Duration::from_millis(100)),
            (Duration::MAX, Duration::from_hours(1)),
        ] {
            assert_eq!(asking(create, code, asked).wait(1, 0.5), Some(taken), "{code}");
        }
    }
    let refused = asking(create, Code::InvalidArgument, Duration::from_secs(1));
    assert_eq!(
        refused.wait(1, 0.0),
        None,
        "no time makes a refused spec acceptable"
    );
}

/// CTL-GS-03: the look-up comes before the create, and refuses the same spec.
#[test]
fn a_look_up_that_refuses_the_spec_before_any_create_is_terminal() {
    for code in Code::ALL {
        let failure = failure(Operation::GetMachineStatus, code).before_any_create();
        assert_eq!(
            failure.next == Next::Terminal,
            code == Code::InvalidArgument,
            "{code}"
        );
    }
}

/// CTL-CR-01: a replica that does not lead has called nobody, and has nothing to write.
#[test]
fn a_call_that_was_not_made_is_waited_for_in_silence() {
    let failed = |message: &str| {
        let status = Status::new(Code::Canceled, message);
        let failure = Failure::new(Operation::CreateMachine, OperationType::Create, status);
        Outcome::Failed(Box::new(failure)).unless_not_leading()
    };
    assert!(matches!(
        failed(NOT_LEADER),
        Outcome::Held(hold) if hold.is_silent() && hold.again == Some(FIRST_BACKOFF)
    ));
    assert!(matches!(failed("the caller hung up"), Outcome::Failed(_)));
}

#[test]
fn only_an_update_that_finds_no_vm_gives_reason_to_look_for_it() {
    let doubts = |operation, during, code| {
        let failure = Failure::new(operation, during, Status::new(code, "no"));
        failure.doubts_the_vm(&machine().provisioned().build())
    };
    for code in Code::ALL {
        let (update, create) = (Operation::UpdateMachine, Operation::CreateMachine);
        assert_eq!(
            doubts(update, OperationType::Update, code),
            code == Code::NotFound
        );
        assert!(!doubts(create, OperationType::Create, code));
    }
}

/// INI-14
#[test]
fn a_failure_names_its_call_and_the_stage_of_an_initialization() {
    let message = |operation| failure(operation, Code::Internal).message();
    assert_eq!(message(Operation::CreateMachine), "CreateMachine: no");
    assert_eq!(
        message(Operation::InitializeMachine),
        "InstanceInitialization: no"
    );
}
