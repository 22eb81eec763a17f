//! Maps each driver call and its code to the controller's reaction. The documentation's table
//! is generated from this mapping.

mod jitter;

use std::time::Duration;

use super::v1alpha1::OperationType;
use cmi_driver::{Code, Operation, Status};

pub use self::jitter::jitter;

/// An exponential back-off, as a function of the number of consecutive failures. That count is stored where
/// it outlives the caller, such as in a status, so this is not an iterator of waits as in `backon`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The wait after the first failure. It doubles with each further failure.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

/// The first wait after a driver call failed.
pub const FIRST_BACKOFF: Duration = Duration::from_secs(5);
/// The longest wait after a driver call failed.
pub const MAX_BACKOFF: Duration = Duration::from_mins(5);
/// The wait if only an outside change helps.
pub const LONG_WAIT: Duration = Duration::from_mins(10);
/// The longest wait that a driver can request.
pub const MAX_REQUESTED_DELAY: Duration = Duration::from_hours(1);

/// The largest fraction of a back-off that jitter subtracts.
pub const BACKOFF_JITTER: f64 = 0.2;
/// The largest fraction of a wait that jitter subtracts from a long wait or adds to a requested wait.
pub const LONG_WAIT_JITTER: f64 = 0.1;
/// The shortest requeue delay of an object, because the rest of a wait may be close to zero.
pub const MIN_REQUEUE: Duration = Duration::from_millis(100);

/// Returns whether two condition reasons are equal or both transient codes. A transient outage may report a
/// different code at each attempt. Writing each would cost one write per machine.
pub fn is_same_or_both_transient(one: &str, other: &str) -> bool {
    let passes = |reason| {
        Code::ALL
            .iter()
            .any(|code| code.is_transient() && code.name() == reason)
    };
    one == other || (passes(one) && passes(other))
}

/// A driver call, with its place in a machine's life. The same answer may have a different meaning at another
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// The look-up before the first create.
    LookUp,
    /// The look-up after a create that may have made the VM.
    LookUpAgain,
    /// The list in which the VM is looked for before the first create, for a driver that can't look up.
    List,
    /// The same list after a create that may have made the VM.
    ListAgain,
    /// The create.
    Create,
    /// The initialization after a create or a look-up that did not ask for one.
    Initialize,
    /// The initialization that the driver asked for.
    FinishInitialization,
    /// The look-up of a provisioned VM.
    Refresh,
    /// The update.
    Update,
    /// The restart of a VM whose Machine is unhealthy.
    Restart,
    /// The request to the guest to stop, before the delete.
    ShutDown,
    /// The delete.
    Delete,
    /// The look-up after the delete.
    ConfirmGone,
    /// The list in which a VM of an unanswered create is looked for after the delete, for a driver that can't
    /// look up.
    ListAfterDelete,
    /// The request for the failure domains, before there is a machine.
    ListZones,
    /// The request for the resources of a machine, before there is one.
    DescribeClass,
    /// The request for the ids of volumes, before a pod that uses them is evicted.
    VolumeIds,
}

/// What happens after a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Disposition {
    /// Make the same call again, after an exponential back-off.
    Retry,
    /// The VM exists; initialize it, after an exponential back-off when that has just failed.
    Initialize,
    /// Wait long; after a create, let no other machine create from the same class with the same credentials
    /// meanwhile.
    AwaitCapacity,
    /// Wait long, or until spec or annotations change: an operator has to act. Secrets are not watched.
    NeedsIntervention,
    /// Nothing before the driver is another one, or the request (CMI-37): the driver does not offer a call
    /// that is needed here.
    AwaitDriver,
    /// Go on without this call.
    Fallback,
    /// Nothing before the spec or an annotation changes: failureReason and failureMessage.
    Terminal,
    /// There is no such VM: the look-up may be followed by a create.
    Create,
    /// The VM is not where it was thought to be: look it up again, after an exponential back-off.
    LookUp,
    /// The VM that should exist is gone.
    Vanished,
    /// The VM can't be restarted: its Machine is left to its owner, which replaces it.
    Replace,
    /// The guest can't be asked to stop: delete its VM now.
    Delete,
    /// The driver refuses the spec of a delete, as it may have refused the create: when its look-up says that
    /// there is no VM, nothing is left to be deleted; else as [`Disposition::NeedsIntervention`].
    VerifyDeleted,
    /// The VM is still there.
    StillThere,
    /// There is no such VM: the delete is done.
    Gone,
}

/// When a failed call is retried, if nothing changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Not at all: something has to change first.
    UntilChange,
    /// After an exponential back-off, and not before the time that the driver asks for.
    Backoff,
    /// After [`LONG_WAIT`], since only a change from outside helps. A driver that asks for a time knows
    /// better: the call is then retried with back-off.
    Long,
}

/// The evidence of a code about the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmObservation {
    /// The VM does not exist.
    Absent,
    /// The VM exists and is not initialized.
    Uninitialized,
}

impl Call {
    /// Every call, in the order of a machine's life.
    pub const ALL: [Self; 17] = [
        Self::LookUp,
        Self::LookUpAgain,
        Self::List,
        Self::ListAgain,
        Self::Create,
        Self::Initialize,
        Self::FinishInitialization,
        Self::Refresh,
        Self::Update,
        Self::Restart,
        Self::ShutDown,
        Self::Delete,
        Self::ConfirmGone,
        Self::ListAfterDelete,
        Self::ListZones,
        Self::DescribeClass,
        Self::VolumeIds,
    ];

    /// Returns the operation of this call.
    pub const fn operation(self) -> Operation {
        match self {
            Self::LookUp | Self::LookUpAgain | Self::Refresh | Self::ConfirmGone => {
                Operation::GetMachineStatus
            }
            Self::List | Self::ListAgain | Self::ListAfterDelete => Operation::ListMachines,
            Self::Create => Operation::CreateMachine,
            Self::Initialize | Self::FinishInitialization => Operation::InitializeMachine,
            Self::Update => Operation::UpdateMachine,
            Self::Restart => Operation::RestartMachine,
            Self::ShutDown => Operation::ShutDownMachine,
            Self::Delete => Operation::DeleteMachine,
            Self::ListZones => Operation::ListZones,
            Self::DescribeClass => Operation::DescribeClass,
            Self::VolumeIds => Operation::GetVolumeIds,
        }
    }

    /// Returns the operation on a machine that includes this call.
    pub const fn during(self) -> OperationType {
        match self {
            Self::LookUp
            | Self::LookUpAgain
            | Self::List
            | Self::ListAgain
            | Self::Create
            | Self::Initialize
            | Self::FinishInitialization
            | Self::Refresh
            | Self::ListZones
            | Self::DescribeClass
            | Self::VolumeIds => OperationType::Create,
            Self::Update | Self::Restart => OperationType::Update,
            Self::ShutDown | Self::Delete | Self::ConfirmGone | Self::ListAfterDelete => {
                OperationType::Delete
            }
        }
    }
}

impl Disposition {
    /// Every disposition, in the order of the documentation's table.
    pub const ALL: [Self; 15] = [
        Self::Retry,
        Self::Initialize,
        Self::AwaitCapacity,
        Self::NeedsIntervention,
        Self::AwaitDriver,
        Self::Fallback,
        Self::Terminal,
        Self::Create,
        Self::LookUp,
        Self::Vanished,
        Self::Replace,
        Self::Delete,
        Self::VerifyDeleted,
        Self::StillThere,
        Self::Gone,
    ];

    /// Returns the evidence of this disposition about the VM, if any.
    pub const fn observation(self) -> Option<VmObservation> {
        match self {
            Self::Create | Self::Vanished | Self::Gone => Some(VmObservation::Absent),
            Self::Initialize | Self::StillThere => Some(VmObservation::Uninitialized),
            Self::Retry
            | Self::AwaitCapacity
            | Self::NeedsIntervention
            | Self::AwaitDriver
            | Self::Fallback
            | Self::Terminal
            | Self::LookUp
            | Self::Replace
            | Self::Delete
            | Self::VerifyDeleted => None,
        }
    }

    /// Returns when the call is retried. If another call follows immediately, this is the wait after a
    /// failure of that call.
    pub const fn delay(self) -> Delay {
        match self {
            Self::Terminal | Self::AwaitDriver | Self::Replace => Delay::UntilChange,
            Self::Retry
            | Self::Initialize
            | Self::LookUp
            | Self::Create
            | Self::Vanished
            | Self::Delete
            | Self::StillThere
            | Self::Gone => Delay::Backoff,
            Self::AwaitCapacity | Self::NeedsIntervention | Self::Fallback | Self::VerifyDeleted => {
                Delay::Long
            }
        }
    }

    /// Returns the wait before the next attempt, after this many failures in a row. `None` means that only a
    /// change leads to an attempt.
    ///
    /// # Guarantees
    /// The delay that the driver requests is a lower bound. It never ends the back-off of a repeated failure.
    /// Where only an outside change helps, the wait is long by default. If the driver requests a delay there,
    /// the call is retried with back-off, and not before the requested time.
    pub fn wait(self, status: &Status, attempt: u32, jitter: f64) -> Option<Duration> {
        // Jitter only lengthens the requested delay. It keeps machines that failed together from retrying
        // together.
        let asked = requested_delay(status);
        let asked = asked.map(|asked| asked.mul_f64(1.0 + LONG_WAIT_JITTER * jitter));
        let backoff = backoff(attempt, jitter);
        match self.delay() {
            Delay::UntilChange => None,
            Delay::Backoff => Some(backoff.max(asked.unwrap_or_default())),
            Delay::Long => Some(asked.map_or_else(
                || LONG_WAIT.mul_f64(1.0 - LONG_WAIT_JITTER * jitter),
                |asked| backoff.max(asked),
            )),
        }
    }
}

/// Returns the reaction to a failed call with this code (CTL-02, CTL-04, and the rows `CTL-<call>-<code>`).
pub const fn disposition(call: Call, code: Code) -> Disposition {
    if matches!(call, Call::VolumeIds) {
        return of_volume_ids(code);
    }
    match code {
        Code::Canceled | Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => {
            Disposition::Retry
        }
        Code::PermissionDenied | Code::Unauthenticated => {
            skip_shut_down_or(call, Disposition::NeedsIntervention)
        }
        Code::Internal | Code::DataLoss => match call {
            // The failed call still counts as one of the VM's limited restarts.
            Call::Restart => Disposition::Retry,
            _ => skip_shut_down_or(call, Disposition::NeedsIntervention),
        },
        Code::FailedPrecondition => match call {
            Call::Restart => Disposition::Replace,
            _ => skip_shut_down_or(call, Disposition::NeedsIntervention),
        },
        Code::ResourceExhausted => skip_shut_down_or(call, Disposition::AwaitCapacity),
        Code::InvalidArgument => match call {
            Call::Restart => Disposition::Replace,
            // Refusing the spec in a look-up means refusing the create, unless a VM may exist.
            Call::LookUp | Call::List | Call::Create => Disposition::Terminal,
            Call::Delete => Disposition::VerifyDeleted,
            _ => skip_shut_down_or(call, Disposition::NeedsIntervention),
        },
        Code::AlreadyExists | Code::OutOfRange => match call {
            Call::Create => Disposition::Terminal,
            Call::Restart => Disposition::Replace,
            _ => skip_shut_down_or(call, Disposition::NeedsIntervention),
        },
        Code::NotFound => match call {
            Call::LookUp | Call::LookUpAgain => Disposition::Create,
            Call::Create | Call::Initialize | Call::FinishInitialization | Call::Update => {
                Disposition::LookUp
            }
            Call::Refresh => Disposition::Vanished,
            Call::Restart => Disposition::Replace,
            Call::ShutDown => Disposition::Delete,
            Call::Delete | Call::ConfirmGone => Disposition::Gone,
            // Only a list without the VM proves that it is absent.
            Call::List
            | Call::ListAgain
            | Call::ListAfterDelete
            | Call::ListZones
            | Call::DescribeClass
            | Call::VolumeIds => Disposition::Retry,
        },
        Code::Unimplemented => match call {
            Call::LookUp
            | Call::List
            | Call::Initialize
            | Call::Refresh
            // The delete was answered, and the settle time of a create still applies.
            | Call::ListAfterDelete
            | Call::ListZones
            | Call::DescribeClass
            | Call::VolumeIds => Disposition::Fallback,
            Call::Restart => Disposition::Replace,
            Call::ShutDown => Disposition::Delete,
            // The call is required, or the driver offers it without answering. A VM may exist, and this
            // answer says nothing about it.
            Call::LookUpAgain
            | Call::ListAgain
            | Call::Create
            | Call::FinishInitialization
            | Call::Update
            | Call::Delete
            | Call::ConfirmGone => Disposition::AwaitDriver,
        },
        Code::Uninitialized => match call {
            Call::LookUp
            | Call::LookUpAgain
            | Call::Create
            | Call::Initialize
            | Call::FinishInitialization
            | Call::Refresh => Disposition::Initialize,
            // A deletion continues even if the VM was never initialized (INI-24).
            Call::ConfirmGone => Disposition::StillThere,
            Call::List
            | Call::ListAgain
            | Call::ListAfterDelete
            | Call::Update
            | Call::Restart
            | Call::ShutDown
            | Call::Delete
            | Call::ListZones
            | Call::DescribeClass
            | Call::VolumeIds => Disposition::Retry,
        },
    }
}

/// Returns the disposition of a call for volume ids. Volumes also have names in Kubernetes, so a driver that
/// can't name a volume does not block a drain. A transient failure is retried.
const fn of_volume_ids(code: Code) -> Disposition {
    match code {
        Code::Canceled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Unavailable
        | Code::ResourceExhausted => Disposition::Retry,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Uninitialized => Disposition::Fallback,
    }
}

/// Returns [`Disposition::Delete`] for a shut-down, which is best effort. The VM of a guest that can't be
/// shut down is deleted now, without waiting for a repair.
const fn skip_shut_down_or(call: Call, otherwise: Disposition) -> Disposition {
    match call {
        Call::ShutDown => Disposition::Delete,
        _ => otherwise,
    }
}

/// Returns the wait that a driver requests, at most an hour. Zero counts as no request.
pub fn requested_delay(status: &Status) -> Option<Duration> {
    let asked = status.retry_after().filter(|wait| !wait.is_zero())?;
    Some(asked.min(MAX_REQUESTED_DELAY))
}

impl Backoff {
    /// Returns the wait after this number of consecutive failures.
    pub fn wait(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// Returns the wait before attempt `attempt + 1`, when `attempt` (from 1) has just failed: 5 s, 10 s, … up to
/// 5 min. `jitter` (0 ≤ jitter < 1) subtracts up to a fifth, so that machines that failed together do not
/// retry together.
pub fn backoff(attempt: u32, jitter: f64) -> Duration {
    const CALLS: Backoff = Backoff {
        first: FIRST_BACKOFF,
        longest: MAX_BACKOFF,
    };
    CALLS
        .wait(attempt)
        .mul_f64(1.0 - BACKOFF_JITTER * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CTL-CR-01..CTL-CR-16
    #[test]
    fn create_is_repeated_only_for_transient_codes() {
        use Code::*;
        for code in Code::ALL {
            let expected = match code {
                Canceled | Unknown | DeadlineExceeded | Aborted | Unavailable => Disposition::Retry,
                NotFound => Disposition::LookUp,
                InvalidArgument | AlreadyExists | OutOfRange => Disposition::Terminal,
                ResourceExhausted => Disposition::AwaitCapacity,
                PermissionDenied | Unauthenticated | FailedPrecondition | Internal | DataLoss => {
                    Disposition::NeedsIntervention
                }
                Unimplemented => Disposition::AwaitDriver,
                Uninitialized => Disposition::Initialize,
            };
            assert_eq!(disposition(Call::Create, code), expected, "{code}");
        }
    }

    #[test]
    fn what_is_transient_is_tried_again_for_every_call() {
        for code in Code::ALL.into_iter().filter(|code| code.is_transient()) {
            for call in Call::ALL {
                assert_eq!(disposition(call, code), Disposition::Retry, "{call:?} {code}");
            }
        }
    }

    /// DRV-30: only a confirmed absence may lead to a create.
    #[test]
    fn no_answer_of_get_status_but_not_found_leads_to_a_create() {
        for call in Call::ALL {
            for code in Code::ALL {
                let creates = disposition(call, code) == Disposition::Create;
                let looks = matches!(call, Call::LookUp | Call::LookUpAgain);
                assert_eq!(creates, looks && code == Code::NotFound, "{call:?} {code}");
            }
        }
    }

    /// CTL-DE-02..CTL-DE-16, INI-24
    #[test]
    fn a_delete_ends_only_when_the_vm_is_gone() {
        for call in [Call::Delete, Call::ConfirmGone] {
            for code in Code::ALL {
                assert_eq!(
                    disposition(call, code) == Disposition::Gone,
                    code == Code::NotFound,
                    "{code}"
                );
                assert_ne!(disposition(call, code), Disposition::Terminal);
            }
        }
    }

    #[test]
    fn a_guest_that_cannot_be_asked_to_stop_does_not_hold_its_deletion_up() {
        for code in Code::ALL {
            let waits = matches!(
                code,
                Code::Canceled
                    | Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::Aborted
                    | Code::Unavailable
                    | Code::Uninitialized
            );
            let expected = if waits {
                Disposition::Retry
            } else {
                Disposition::Delete
            };
            assert_eq!(disposition(Call::ShutDown, code), expected, "{code}");
        }
    }

    /// CTL-GV-02..CTL-GV-14: a drain waits only for the end of an outage.
    #[test]
    fn a_driver_that_cannot_name_a_volume_holds_no_drain_up() {
        use Code::*;
        for code in Code::ALL {
            let expected = match code {
                Canceled | Unknown | DeadlineExceeded | Aborted | Unavailable | ResourceExhausted => {
                    Disposition::Retry
                }
                _ => Disposition::Fallback,
            };
            assert_eq!(disposition(Call::VolumeIds, code), expected, "{code}");
        }
    }

    /// A driver outage or a missing permission says nothing about the VM. An unsupported restart does.
    #[test]
    fn a_machine_is_replaced_at_once_only_where_its_vm_cannot_be_restarted() {
        use Code::*;
        for code in Code::ALL {
            let expected = match code {
                NotFound | Unimplemented | FailedPrecondition | InvalidArgument | AlreadyExists
                | OutOfRange => Disposition::Replace,
                PermissionDenied | Unauthenticated => Disposition::NeedsIntervention,
                ResourceExhausted => Disposition::AwaitCapacity,
                _ => Disposition::Retry,
            };
            assert_eq!(disposition(Call::Restart, code), expected, "{code}");
        }
    }

    /// CTL-GS-03, CTL-GS-12: a VM may exist only after the first create.
    #[test]
    fn a_look_up_is_held_to_more_when_a_vm_may_exist() {
        for (code, before, after) in [
            (
                Code::InvalidArgument,
                Disposition::Terminal,
                Disposition::NeedsIntervention,
            ),
            (
                Code::Unimplemented,
                Disposition::Fallback,
                Disposition::AwaitDriver,
            ),
        ] {
            for (first, again) in [(Call::LookUp, Call::LookUpAgain), (Call::List, Call::ListAgain)] {
                assert_eq!(disposition(first, code), before);
                assert_eq!(disposition(again, code), after);
            }
        }
    }

    #[test]
    fn backoff_doubles_from_five_seconds_to_five_minutes_minus_jitter() {
        let seconds: Vec<_> = (1..=8).map(|n| backoff(n, 0.0).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff(u32::MAX, 0.0), MAX_BACKOFF);
        assert!(backoff(1, 0.999) >= Duration::from_secs(4));
    }
}
