//! Tables of what every code of every call leads to, written from the rows of the specification and from the
//! documented waits, not taken from the provider's own table. The comments beside the codes have the row's
//! recovery, and whether the specification requires a retry.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::{InfraMachine, LastOperation, OperationState, OperationType};
use cmi_driver::{Code, Code::*, Operation};

use self::Next::*;
use crate::support::checks::{condition, provisioned};

/// A driver call at the point of a machine's life where it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// GetMachineStatus before any create.
    LookUp,
    /// GetMachineStatus after a create whose answer was lost.
    LookUpAgain,
    Create,
    Initialize,
    /// GetMachineStatus of a VM that is provisioned.
    Recheck,
    Update,
    ShutDown,
    Delete,
    /// GetMachineStatus after the delete.
    Confirm,
    /// ListMachines instead of a look-up before any create.
    List,
    /// ListMachines instead of a look-up after a create whose answer was lost.
    ListAgain,
    /// ListMachines after the delete of a VM whose create was never answered.
    ListAfterDelete,
}

/// One code of one call.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub call: Call,
    pub code: Code,
    /// The seconds that the driver asks for.
    pub asked: Option<u32>,
}

/// The consequence of a code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Tried again after 5 s, 10 s, … up to 5 min.
    Backoff,
    /// Tried again after 10 min.
    Long,
    /// Not before the driver is another one.
    NotSupported,
    /// Not before the spec changes.
    Terminal,
    /// The call is not needed: the machine is provisioned.
    Provisioned,
    /// The call is not needed: the machine is deleted.
    Gone,
    /// The VM may be there: the deletion goes on, without an error.
    Deleting,
    /// The VM is gone without a deletion.
    Vanished,
    /// The VM stays as it was. The driver is asked again with back-off.
    Kept,
    /// The VM stays as it was. The driver's answer is reported, and it is asked again after 10 min.
    Reported,
    /// The VM stays as it was, and the driver is asked no more.
    Unasked,
    /// The VM stays as it was, and is initialized, as often as it says that it is not.
    Initialized,
}

type Rows = [(Code, Next); 17];

/// CTL-CR-01..CTL-CR-16
const CREATE: Rows = [
    (Canceled, Backoff),         // none, N: the VM may be on its way, so it is looked up again
    (Unknown, Backoff),          // "Retry operation after sometime", Y
    (InvalidArgument, Terminal), // "Update providerSpec to fix issues.", N
    (DeadlineExceeded, Backoff), // "Retry operation after sometime", Y
    (NotFound, Backoff),         // no row
    (AlreadyExists, Terminal),   // "Create machine with a different name", N
    (PermissionDenied, Long),    // "Update requestor permissions to grant the same", N
    (ResourceExhausted, Long),   // "Enhance resource limits …", N
    (FailedPrecondition, Long),  // "Manual intervention might be needed …", N
    (Aborted, Backoff),          // "Wait until previous pending operation is processed", Y
    (OutOfRange, Terminal),      // "Update request paramaters …", N
    (Unimplemented, NotSupported), // "Retry with an alternate logic or implement this method …", N
    (Internal, Long),            // "Needs manual intervension to fix this", N
    (Unavailable, Backoff),      // "Retry operation after sometime", Y
    (DataLoss, Long),            // no row
    (Unauthenticated, Long),     // "Fix the provider credentials", N
    (Uninitialized, Backoff),    // no row: InitializeMachine fails, since there is no VM
];

/// INI-12..INI-17, INI-24; otherwise as CreateMachine, but no code proves the spec wrong: the VM is there.
const INITIALIZE: Rows = [
    (Canceled, Backoff),
    (Unknown, Backoff),
    (InvalidArgument, Long),
    (DeadlineExceeded, Backoff),
    (NotFound, Backoff), // INI-24: not counted as initialized
    (AlreadyExists, Long),
    (PermissionDenied, Long),
    (ResourceExhausted, Long),
    (FailedPrecondition, Long),
    (Aborted, Backoff),
    (OutOfRange, Long),
    (Unimplemented, Provisioned), // INI-11: optional
    (Internal, Long),
    (Unavailable, Backoff),
    (DataLoss, Long),
    (Unauthenticated, Long),
    (Uninitialized, Backoff), // INI-17: a short retry
];

/// CTL-GS-02..CTL-GS-16, before any create: nothing is at stake yet.
const LOOK_UP: Rows = [
    (Canceled, Backoff),          // no row
    (Unknown, Backoff),           // "Retry operation after sometime", Y
    (InvalidArgument, Terminal),  // "Update `Machine.Name` to fix issues.", N
    (DeadlineExceeded, Backoff),  // "Retry operation after sometime", Y
    (NotFound, Provisioned),      // "Not required", N: there is no VM, so one is created
    (AlreadyExists, Long),        // no row
    (PermissionDenied, Long),     // "Update requestor permissions to grant the same", N
    (ResourceExhausted, Long),    // no row
    (FailedPrecondition, Long),   // "Manual intervention might be needed …", N
    (Aborted, Backoff),           // no row
    (OutOfRange, Long),           // "Orphan VM handler … / Manual intervention maybe required", Y
    (Unimplemented, Provisioned), // "Retry with an alternate logic …", N: the list, or the create
    (Internal, Long),             // "Needs manual intervension to fix this", N
    (Unavailable, Backoff),       // "Retry operation after sometime", Y
    (DataLoss, Long),             // no row
    (Unauthenticated, Long),      // "Fix the provider credentials", N
    (Uninitialized, Backoff),     // INI-19: InitializeMachine, which fails, since there is no VM
];

/// CTL-GS-02..CTL-GS-16, after a create that may have made a VM.
const LOOK_UP_AGAIN: Rows = [
    (Canceled, Backoff),
    (Unknown, Backoff),
    (InvalidArgument, Long), // the spec is not refused: the VM may be there
    (DeadlineExceeded, Backoff),
    (NotFound, Provisioned),
    (AlreadyExists, Long),
    (PermissionDenied, Long),
    (ResourceExhausted, Long),
    (FailedPrecondition, Long),
    (Aborted, Backoff),
    (OutOfRange, Long),
    (Unimplemented, NotSupported), // declared and not answered, which says nothing about the VM
    (Internal, Long),
    (Unavailable, Backoff),
    (DataLoss, Long),
    (Unauthenticated, Long),
    (Uninitialized, Provisioned), // INI-19: initialized, not created again
];

/// CTL-GS-02..CTL-GS-16, of a machine that is up.
const RECHECK: Rows = [
    (Canceled, Kept),
    (Unknown, Kept),
    (InvalidArgument, Reported),
    (DeadlineExceeded, Kept),
    (NotFound, Vanished),
    (AlreadyExists, Reported),
    (PermissionDenied, Reported),
    (ResourceExhausted, Reported),
    (FailedPrecondition, Reported),
    (Aborted, Kept),
    (OutOfRange, Reported),
    (Unimplemented, Unasked),
    (Internal, Reported),
    (Unavailable, Kept),
    (DataLoss, Reported),
    (Unauthenticated, Reported),
    (Uninitialized, Initialized),
];

/// UPD-01. Nothing about the VM is refused for good: it runs with its old spec.
const UPDATE: Rows = [
    (Canceled, Backoff),
    (Unknown, Backoff),
    (InvalidArgument, Long),
    (DeadlineExceeded, Backoff),
    (NotFound, Backoff),
    (AlreadyExists, Long),
    (PermissionDenied, Long),
    (ResourceExhausted, Long),
    (FailedPrecondition, Long),
    (Aborted, Backoff),
    (OutOfRange, Long),
    (Unimplemented, NotSupported),
    (Internal, Long),
    (Unavailable, Backoff),
    (DataLoss, Long),
    (Unauthenticated, Long),
    (Uninitialized, Backoff),
];

/// CLI-SD-02..CLI-SD-16. A shut-down is best effort: only an outage is waited for.
const SHUT_DOWN: Rows = [
    (Canceled, Backoff),         // no row
    (Unknown, Backoff),          // "Retry operation after sometime", Y
    (InvalidArgument, Gone),     // N
    (DeadlineExceeded, Backoff), // "Retry operation after sometime", Y
    (NotFound, Gone),            // no row
    (AlreadyExists, Gone),       // no row
    (PermissionDenied, Gone),    // N
    (ResourceExhausted, Gone),   // no row
    (FailedPrecondition, Gone),  // N
    (Aborted, Deleting), // "Wait until previous pending operation is processed", Y: the guest is stopping
    (OutOfRange, Gone),  // no row
    (Unimplemented, Gone), // N
    (Internal, Gone),    // N
    (Unavailable, Backoff), // "Retry operation after sometime", Y
    (DataLoss, Gone),    // no row
    (Unauthenticated, Gone), // N
    (Uninitialized, Backoff), // no row
];

/// CTL-DE-02..CTL-DE-16
const DELETE: Rows = [
    (Canceled, Backoff),           // no row
    (Unknown, Backoff),            // "Retry operation after sometime", Y
    (InvalidArgument, Long),       // "Update `Machine.Name` to fix issues.", N: the VM is there
    (DeadlineExceeded, Backoff),   // "Retry operation after sometime", Y
    (NotFound, Deleting),          // no row: the look-up still finds the VM
    (AlreadyExists, Long),         // no row
    (PermissionDenied, Long),      // "Update requestor permissions to grant the same", N
    (ResourceExhausted, Long),     // no row
    (FailedPrecondition, Long),    // "Manual intervention might be needed …", N
    (Aborted, Backoff),            // "Wait until previous pending operation is processed", Y
    (OutOfRange, Long),            // no row
    (Unimplemented, NotSupported), // "Retry with an alternate logic …", N
    (Internal, Long),              // "Needs manual intervension to fix this", N
    (Unavailable, Backoff),        // "Retry operation after sometime", Y
    (DataLoss, Long),              // no row
    (Unauthenticated, Long),       // "Fix the provider credentials", N
    (Uninitialized, Backoff),      // INI-24
];

/// CTL-GS-02..CTL-GS-16, after a delete that was answered OK: only NOT_FOUND says that the VM is gone.
const CONFIRM: Rows = [
    (Canceled, Backoff),
    (Unknown, Backoff),
    (InvalidArgument, Long),
    (DeadlineExceeded, Backoff),
    (NotFound, Gone),
    (AlreadyExists, Long),
    (PermissionDenied, Long),
    (ResourceExhausted, Long),
    (FailedPrecondition, Long),
    (Aborted, Backoff),
    (OutOfRange, Long),
    (Unimplemented, NotSupported), // declared and not answered, which says nothing about the VM
    (Internal, Long),
    (Unavailable, Backoff),
    (DataLoss, Long),
    (Unauthenticated, Long),
    (Uninitialized, Deleting), // INI-24: the VM is there, initialized or not
];

/// CTL-LM-01..CTL-LM-16, CTL-GS-12, for a driver without GetMachineStatus, before any create. Only a list
/// without the VM proves that it does not exist.
const LIST: Rows = [
    (Canceled, Backoff),          // none, N: repeated, since no create may come before the list
    (Unknown, Backoff),           // "Retry operation after sometime", Y
    (InvalidArgument, Terminal),  // "Update `ProviderSpec` to fix issues.", N
    (DeadlineExceeded, Backoff),  // "Retry operation after sometime", Y
    (NotFound, Backoff),          // no row
    (AlreadyExists, Long),        // no row
    (PermissionDenied, Long),     // "Update requestor permissions to grant the same", N
    (ResourceExhausted, Long),    // no row
    (FailedPrecondition, Long),   // no row
    (Aborted, Backoff),           // no row
    (OutOfRange, Long),           // no row
    (Unimplemented, Provisioned), // "Retry with an alternate logic …", N: the create
    (Internal, Long),             // "Needs manual intervension to fix this", N
    (Unavailable, Backoff),       // "Retry operation after sometime", Y
    (DataLoss, Long),             // no row
    (Unauthenticated, Long),      // "Fix the provider credentials", N
    (Uninitialized, Backoff),     // no row
];

/// The same after a create that may have made a VM.
const LIST_AGAIN: Rows = [
    (Canceled, Backoff),
    (Unknown, Backoff),
    (InvalidArgument, Long), // the spec is not refused: the VM may be there
    (DeadlineExceeded, Backoff),
    (NotFound, Backoff),
    (AlreadyExists, Long),
    (PermissionDenied, Long),
    (ResourceExhausted, Long),
    (FailedPrecondition, Long),
    (Aborted, Backoff),
    (OutOfRange, Long),
    (Unimplemented, NotSupported), // declared and not answered, which says nothing about the VM
    (Internal, Long),
    (Unavailable, Backoff),
    (DataLoss, Long),
    (Unauthenticated, Long),
    (Uninitialized, Backoff),
];

/// The same after a delete that was answered OK.
const LIST_AFTER_DELETE: Rows = [
    (Canceled, Backoff),
    (Unknown, Backoff),
    (InvalidArgument, Long),
    (DeadlineExceeded, Backoff),
    (NotFound, Backoff),
    (AlreadyExists, Long),
    (PermissionDenied, Long),
    (ResourceExhausted, Long),
    (FailedPrecondition, Long),
    (Aborted, Backoff),
    (OutOfRange, Long),
    (Unimplemented, Deleting), // the delete was answered; only the time for a late create is waited for
    (Internal, Long),
    (Unavailable, Backoff),
    (DataLoss, Long),
    (Unauthenticated, Long),
    (Uninitialized, Backoff),
];

impl Call {
    /// Whether the driver can't look up, so that it is asked for its list.
    pub const fn lists(self) -> bool {
        matches!(self, Self::List | Self::ListAgain | Self::ListAfterDelete)
    }

    /// Whether a create of the machine was not answered before.
    pub const fn follows_a_lost_create(self) -> bool {
        matches!(self, Self::LookUpAgain | Self::ListAgain | Self::ListAfterDelete)
    }

    /// Whether it is a call of a machine that is deleted.
    pub fn is_of_deletion(self) -> bool {
        self.is_part_of() == OperationType::Delete
    }

    const fn rows(self) -> &'static Rows {
        match self {
            Self::LookUp => &LOOK_UP,
            Self::LookUpAgain => &LOOK_UP_AGAIN,
            Self::Create => &CREATE,
            Self::Initialize => &INITIALIZE,
            Self::Recheck => &RECHECK,
            Self::Update => &UPDATE,
            Self::ShutDown => &SHUT_DOWN,
            Self::Delete => &DELETE,
            Self::Confirm => &CONFIRM,
            Self::List => &LIST,
            Self::ListAgain => &LIST_AGAIN,
            Self::ListAfterDelete => &LIST_AFTER_DELETE,
        }
    }

    pub const fn operation(self) -> Operation {
        match self {
            Self::LookUp | Self::LookUpAgain | Self::Recheck | Self::Confirm => Operation::GetMachineStatus,
            Self::Create => Operation::CreateMachine,
            Self::Initialize => Operation::InitializeMachine,
            Self::Update => Operation::UpdateMachine,
            Self::ShutDown => Operation::ShutDownMachine,
            Self::Delete => Operation::DeleteMachine,
            Self::List | Self::ListAgain | Self::ListAfterDelete => Operation::ListMachines,
        }
    }

    const fn is_part_of(self) -> OperationType {
        match self {
            Self::LookUp
            | Self::LookUpAgain
            | Self::Create
            | Self::Initialize
            | Self::Recheck
            | Self::List
            | Self::ListAgain => OperationType::Create,
            Self::Update => OperationType::Update,
            Self::ShutDown | Self::Delete | Self::Confirm | Self::ListAfterDelete => OperationType::Delete,
        }
    }
}

impl Case {
    /// Every code of a call.
    pub fn of(call: Call, asked: Option<u32>) -> Vec<Self> {
        Code::ALL.map(|code| Self { call, code, asked }).into()
    }

    pub fn name(self) -> String {
        format!("m-{:02}", self.code.number())
    }

    /// The driver's message.
    pub fn message(self) -> String {
        format!("scripted for {}", self.name())
    }

    pub fn next(self) -> Next {
        let rows = self.call.rows();
        let row = rows.iter().find(|(code, _)| *code == self.code);
        row.map(|(_, next)| *next).unwrap()
    }

    /// The call that fails in the end, and its code. A driver that says "uninitialized" gets an
    /// initialization, and there is no VM to initialize (INI-19, INI-24).
    pub fn failure(self) -> (Operation, Code) {
        match (self.call, self.code) {
            (Call::LookUp | Call::Create, Code::Uninitialized) => {
                (Operation::InitializeMachine, Code::NotFound)
            }
            (call, code) => (call.operation(), code),
        }
    }

    /// The shortest and the longest wait after an attempt, counted from 1; `None` if the call is not
    /// retried.
    pub fn wait(self, attempt: i32) -> Option<(Duration, Duration)> {
        let asked = self.asked.filter(|_| self.failure().0 == self.call.operation());
        let backoff = (5.0 * 2f64.powi(attempt - 1)).min(300.0);
        let (least, most) = match (self.next(), asked) {
            (Terminal | NotSupported, _) => return None,
            // A lower bound of the back-off, and a tenth more by jitter.
            (_, Some(asked)) => {
                let asked = f64::from(asked);
                (asked.max(0.8 * backoff), backoff.max(1.1 * asked))
            }
            (Long | Reported, None) => (540.0, 600.0),
            // The VM is looked up in between, after another wait.
            (_, None) if self.call == Call::Update && self.code == NotFound => (0.8 * backoff, 2.0 * backoff),
            (_, None) => (0.8 * backoff, backoff),
        };
        Some((Duration::from_secs_f64(least), Duration::from_secs_f64(most)))
    }

    /// Whether the call waits until creates of its class are let through, instead of until its next try. The
    /// two times differ by jitter.
    pub fn waits_with_its_class(self) -> bool {
        self.call == Call::Create && self.code == ResourceExhausted
    }

    /// Checks that the status shows the consequence.
    pub fn is_shown(self, machine: Option<&InfraMachine>) -> Result<()> {
        let next = self.next();
        if next == Gone {
            return machine.map_or(Ok(()), |_| Err(anyhow::anyhow!("is still there")));
        }
        let machine = machine.context("is gone")?;
        let status = machine.status.as_ref().context("has no status")?;
        let refused = status.failure_reason.is_some() || status.failure_message.is_some();
        ensure!(
            refused == (next == Terminal),
            "failureReason {:?}",
            status.failure_reason
        );
        match next {
            Gone | Backoff | Long | NotSupported | Terminal => self.failed_as_it_should(machine),
            Provisioned => provisioned(machine),
            Deleting => condition(machine, conditions::DELETING, "True", None),
            Vanished => condition(
                machine,
                conditions::READY,
                "False",
                Some("VirtualMachineVanished"),
            ),
            Kept | Reported | Unasked | Initialized => {
                provisioned(machine)?;
                // Of a machine that is up an outage is reported when it lasts, and the probes are answered.
                condition(machine, conditions::DRIVER_REACHABLE, "True", Some("Reachable"))
            }
        }
    }

    fn failed_as_it_should(self, machine: &InfraMachine) -> Result<()> {
        let status = machine.status.clone().unwrap_or_default();
        let (operation, code) = self.failure();
        let last = status.last_operation.clone().context("no last operation")?;
        ensure!(
            last.operation.as_deref() == Some(operation.name()) && last.code.as_deref() == Some(code.name()),
            "last operation {:?} {:?}",
            last.operation,
            last.code
        );
        ensure!(
            last.state == OperationState::Failed && last.type_ == self.call.is_part_of(),
            "{last:?}"
        );
        let message = last.message.clone().unwrap_or_default();
        ensure!(
            message.contains(&self.message()) || operation != self.call.operation(),
            "message `{message}`"
        );
        let failed = match operation {
            Operation::UpdateMachine => conditions::VIRTUAL_MACHINE_UP_TO_DATE,
            Operation::InitializeMachine => conditions::VIRTUAL_MACHINE_INITIALIZED,
            _ if last.type_ == OperationType::Delete => conditions::DELETING,
            _ => conditions::VIRTUAL_MACHINE_CREATED,
        };
        let state = if failed == conditions::DELETING {
            "True"
        } else {
            "False"
        };
        condition(machine, failed, state, Some(code.name()))?;
        let shown = conditions::get(&status.conditions, failed).map(|condition| condition.message.as_str());
        ensure!(shown == Some(message.as_str()), "{failed} says {shown:?}");
        let ready = match last.type_ {
            OperationType::Update => ("True", "Ready"),
            OperationType::Create => ("False", code.name()),
            OperationType::Delete => ("False", "Deleting"),
        };
        condition(machine, conditions::READY, ready.0, Some(ready.1))?;
        if operation == Operation::InitializeMachine {
            ensure!(
                message.starts_with("InstanceInitialization"),
                "message `{message}`"
            );
        }
        if self.next() == Terminal {
            ensure!(
                status.failure_reason.as_deref() == Some(code.name())
                    && status.failure_message.as_deref() == Some(message.as_str()),
                "{:?}: {:?}",
                status.failure_reason,
                status.failure_message
            );
        }
        self.names_its_next_try(&last)
    }

    fn names_its_next_try(self, last: &LastOperation) -> Result<()> {
        // Both times may be cut to whole seconds.
        const ROUNDING: f64 = 1.0;
        let next = last.next_retry_time.as_ref();
        let shown = next.map(|next| next.0.duration_since(last.last_update_time.0).as_secs_f64());
        let Some((min, max)) = self.wait(last.attempts) else {
            ensure!(shown.is_none(), "is tried again after {shown:?} s");
            return Ok(());
        };
        let shown = shown.context("is never tried again")?;
        ensure!(
            (min.as_secs_f64() - ROUNDING..=max.as_secs_f64() + ROUNDING).contains(&shown),
            "waits {shown} s after attempt {}, not {min:?} to {max:?}",
            last.attempts
        );
        Ok(())
    }
}
