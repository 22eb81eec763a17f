//! What the controller does about a code: one table for every call.

use std::time::Duration;

use super::{Code, Operation};

/// First wait of an exponential back-off.
pub const FIRST_BACKOFF: Duration = Duration::from_secs(5);
/// Longest wait of an exponential back-off.
pub const LONGEST_BACKOFF: Duration = Duration::from_mins(5);
/// The wait where only somebody else can change the outcome.
pub const LONG_WAIT: Duration = Duration::from_mins(10);

/// What happens after a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Next {
    /// The same again, after an exponential back-off.
    Retry,
    /// The VM exists; initialize it, after an exponential back-off when that has just failed.
    Initialize,
    /// Wait long, and let nobody else create from the same class with the same credentials meanwhile.
    AwaitCapacity,
    /// Wait long, or until spec, annotations or secrets change: a person has to act.
    AwaitPerson,
    /// Not before the driver reconnects or is configured anew.
    AwaitDriver,
    /// Go on without this call.
    Fallback,
    /// Nothing before the spec changes: failureReason and failureMessage.
    Terminal,
    /// There is no such VM: the look-up may be followed by a create.
    Create,
    /// There is no such VM: the delete is done.
    Gone,
    /// The VM is not where it was thought to be: look it up again, after an exponential back-off.
    LookUp,
}

impl Next {
    /// Every outcome, in the order of the documentation's table.
    pub const ALL: [Self; 10] = [
        Self::Retry,
        Self::Initialize,
        Self::AwaitCapacity,
        Self::AwaitPerson,
        Self::AwaitDriver,
        Self::Fallback,
        Self::Terminal,
        Self::Create,
        Self::Gone,
        Self::LookUp,
    ];

    /// What it means, for the documentation's table.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Retry => "transient: tried again after 5 s, doubling up to 5 min, with jitter",
            Self::Initialize => {
                "the VM exists but is not initialized: InitializeMachine is called, again after 5 s, doubling up to 5 min"
            }
            Self::AwaitCapacity => {
                "quota or pool is used up: tried again after 10 min; until then no other machine of the same driver, class and credential is created; deletes go on"
            }
            Self::AwaitPerson => {
                "a person has to act: tried again after 10 min, or at once when spec or annotations change"
            }
            Self::AwaitDriver => {
                "the driver does not offer a required call: not tried before it reconnects or is configured anew"
            }
            Self::Fallback => {
                "the driver does not offer this optional call: the controller goes on without it"
            }
            Self::Terminal => {
                "the request can't succeed as it is: failureReason and failureMessage are set, not tried before the spec changes"
            }
            Self::Create => "there is no such VM: it is created",
            Self::Gone => "there is no such VM: the deletion is done",
            Self::LookUp => "the VM is not where it was thought to be: it is looked up again",
        }
    }
}

/// What the controller does when `operation` failed with `code` (CTL-02, CTL-04, and the rows CTL-<call>-<code>).
pub const fn next(operation: Operation, code: Code) -> Next {
    match code {
        Code::Canceled | Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => {
            Next::Retry
        }
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::Internal
        | Code::DataLoss => Next::AwaitPerson,
        Code::ResourceExhausted => Next::AwaitCapacity,
        Code::InvalidArgument | Code::AlreadyExists | Code::OutOfRange => refused(operation),
        Code::NotFound => not_found(operation),
        Code::Unimplemented => not_offered(operation),
        Code::Uninitialized => uninitialized(operation),
    }
}

/// Whether this answer of [`super::Driver::create_machine`] says that no VM was made and none will be.
pub const fn refuses_for_good(code: Code) -> bool {
    matches!(next(Operation::CreateMachine, code), Next::Terminal)
}

const fn refused(operation: Operation) -> Next {
    match operation {
        Operation::CreateMachine => Next::Terminal,
        Operation::InitializeMachine
        | Operation::DeleteMachine
        | Operation::GetMachineStatus
        | Operation::ListMachines
        | Operation::ShutDownMachine
        | Operation::UpdateMachine
        | Operation::GetVolumeIds
        | Operation::GenerateMachineClassForMigration
        | Operation::ListZones
        | Operation::DescribeClass
        | Operation::Probe
        | Operation::GetPluginInfo
        | Operation::GetPluginCapabilities => Next::AwaitPerson,
    }
}

const fn not_found(operation: Operation) -> Next {
    match operation {
        Operation::GetMachineStatus => Next::Create,
        Operation::DeleteMachine => Next::Gone,
        Operation::CreateMachine
        | Operation::InitializeMachine
        | Operation::ListMachines
        | Operation::ShutDownMachine
        | Operation::UpdateMachine
        | Operation::GetVolumeIds
        | Operation::GenerateMachineClassForMigration
        | Operation::ListZones
        | Operation::DescribeClass
        | Operation::Probe
        | Operation::GetPluginInfo
        | Operation::GetPluginCapabilities => Next::LookUp,
    }
}

const fn not_offered(operation: Operation) -> Next {
    match operation {
        Operation::CreateMachine | Operation::DeleteMachine => Next::AwaitDriver,
        Operation::InitializeMachine
        | Operation::GetMachineStatus
        | Operation::ListMachines
        | Operation::ShutDownMachine
        | Operation::UpdateMachine
        | Operation::GetVolumeIds
        | Operation::GenerateMachineClassForMigration
        | Operation::ListZones
        | Operation::DescribeClass
        | Operation::Probe
        | Operation::GetPluginInfo
        | Operation::GetPluginCapabilities => Next::Fallback,
    }
}

const fn uninitialized(operation: Operation) -> Next {
    match operation {
        Operation::CreateMachine | Operation::InitializeMachine | Operation::GetMachineStatus => {
            Next::Initialize
        }
        // A deletion goes on whether or not the VM was ever initialized (INI-24).
        Operation::DeleteMachine
        | Operation::ListMachines
        | Operation::ShutDownMachine
        | Operation::UpdateMachine
        | Operation::GetVolumeIds
        | Operation::GenerateMachineClassForMigration
        | Operation::ListZones
        | Operation::DescribeClass
        | Operation::Probe
        | Operation::GetPluginInfo
        | Operation::GetPluginCapabilities => Next::Retry,
    }
}

/// The wait before attempt `attempt + 1`, when `attempt` (from 1) has just failed: 5 s, 10 s, … up to 5 min, less up to
/// a fifth by `jitter` (0 ≤ jitter < 1), so that machines that failed together do not come back together.
pub fn backoff(attempt: u32, jitter: f64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(16);
    let full = FIRST_BACKOFF.saturating_mul(1 << doublings).min(LONGEST_BACKOFF);
    full.mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0))
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
                Canceled | Unknown | DeadlineExceeded | Aborted | Unavailable => Next::Retry,
                NotFound => Next::LookUp,
                InvalidArgument | AlreadyExists | OutOfRange => Next::Terminal,
                ResourceExhausted => Next::AwaitCapacity,
                PermissionDenied | Unauthenticated | FailedPrecondition | Internal | DataLoss => {
                    Next::AwaitPerson
                }
                Unimplemented => Next::AwaitDriver,
                Uninitialized => Next::Initialize,
            };
            assert_eq!(next(Operation::CreateMachine, code), expected, "{code}");
        }
    }

    /// DRV-30: only a confirmed absence may lead to a create.
    #[test]
    fn no_answer_of_get_status_but_not_found_leads_to_a_create() {
        for operation in Operation::ALL {
            for code in Code::ALL {
                let creates = next(operation, code) == Next::Create;
                assert_eq!(
                    creates,
                    (operation, code) == (Operation::GetMachineStatus, Code::NotFound)
                );
            }
        }
    }

    /// CTL-DE-02..CTL-DE-16, INI-24
    #[test]
    fn a_delete_ends_only_when_the_vm_is_gone() {
        for code in Code::ALL {
            assert_eq!(
                next(Operation::DeleteMachine, code) == Next::Gone,
                code == Code::NotFound
            );
            assert_ne!(next(Operation::DeleteMachine, code), Next::Terminal);
        }
    }

    #[test]
    fn backoff_doubles_from_five_seconds_to_five_minutes_and_jitter_only_shortens_it() {
        let seconds: Vec<_> = (1..=8).map(|n| backoff(n, 0.0).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff(u32::MAX, 0.0), LONGEST_BACKOFF);
        assert!(backoff(1, 0.999) >= Duration::from_secs(4));
    }
}
