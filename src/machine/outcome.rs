//! The outcome of a plan. A driver failure is an outcome and not an error, because it has to be published.

use std::time::Duration;

use crate::api::conditions::reason;
use crate::api::identity::{InvalidSpec, VmRecord};
use crate::api::retry::{self, Call, Disposition};
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::apiserver::InvalidSecret;
use crate::apiserver::leadership::is_not_leader;
use crate::driver::StableReachability;
use crate::reconcile::runtime_state::RetryTrigger;
use cmi_driver::{Code, JsonPointer, LastKnownState, Operation, ProviderId, Status};

#[cfg(test)]
mod tests;

/// Tells an operator how to end a wait for capacity when the provider can't detect new capacity.
pub const RETRY_NOW_HINT: &str =
    "when capacity is available, change any annotation of this object to retry immediately";
/// Tells an operator how to retry a create that failed for good.
const RETRY_HINT: &str = "correct spec.providerSpec, or change any annotation of this object to retry once";
/// The same if another VM has the machine's name.
const TAKEN_HINT: &str = "delete that VM, then change any annotation of this object to retry once";

/// The outcome of a plan.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing is published now. The machine is requeued after this time, if any.
    Unchanged(Option<Duration>),
    /// Nothing is published about a running VM, because the driver does not support the call for more
    /// details. The call is not repeated until the driver changes.
    NotSupported(Operation),
    /// The machine still waits, and the status shows why.
    Blocked(Blocked),
    /// The machine still waits, and nothing new is published: the status already shows the wait, or the wait
    /// is too short. The wait is for a permit, a lock, or a driver query of another reconcile. Usually the
    /// machine is woken. The time is a fallback. A driver's NOT_FOUND may be stale for such a time, too.
    Waiting(Option<Duration>),
    /// The machine waits for a permit so long that the wait is reported.
    Queued {
        /// When to check again without a wake-up.
        requeue_after: Duration,
    },
    /// Capacity was exhausted for another machine of the class. No create was issued, and the machine is
    /// woken when there may be capacity.
    AwaitingCapacity {
        /// The failure domain that the machine names.
        failure_domain: Option<String>,
        /// When to check again without a wake-up.
        requeue_after: Duration,
    },
    /// The spec was refused before the driver was called.
    Refused {
        /// Why.
        invalid: InvalidSpec,
        /// When to check again.
        requeue_after: Option<Duration>,
    },
    /// The VM exists, is initialized, and has this state.
    Provisioned(Box<cmi_driver::Machine>),
    /// The VM is provisioned and needs no change.
    UpToDate {
        /// Whether the driver is reachable, once that is stable.
        reachability: StableReachability,
        /// Changed fields that an existing VM does not support.
        not_updatable: Vec<JsonPointer>,
        /// When to look the VM up again, if it is unsettled.
        requeue_after: Option<Duration>,
    },
    /// The VM was updated to the wanted spec.
    Updated,
    /// A driver call failed, or its secrets can't be assembled.
    Failed(Box<Failure>),
    /// The driver confirmed that the machine's VM no longer exists.
    Vanished(ProviderId),
    /// The deletion is in progress.
    Deleting {
        /// The progress of the deletion, as the reason of a condition.
        reason: &'static str,
        /// The progress as a message.
        message: String,
        /// When to check again.
        requeue_after: Duration,
    },
    /// The VM is gone. The finalizer may be removed.
    Gone,
    /// There never was a VM, or the administrator takes responsibility.
    RemoveFinalizer(RemovalReason),
}

/// A wait that the status shows.
#[derive(Debug)]
pub struct Blocked {
    /// The condition for the wait.
    pub condition: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
    /// The record that must be written despite the wait, together with the finalizer.
    pub record: Option<Box<VmRecord>>,
    /// When to check again, if nothing changes earlier.
    pub requeue_after: Option<Duration>,
}

impl Blocked {
    /// Returns a wait that writes only the status and ends when something changes.
    pub fn new(condition: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            condition,
            reason,
            message: message.into(),
            record: None,
            requeue_after: None,
        }
    }

    /// Returns the wait with this time of the next check.
    #[must_use]
    pub fn until(self, requeue_after: impl Into<Option<Duration>>) -> Self {
        Self {
            requeue_after: requeue_after.into(),
            ..self
        }
    }
}

/// Why the finalizer may be removed without the deletion of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// No create was ever issued, or all creates were terminally refused and the driver has nothing to
    /// delete.
    NeverCreated,
    /// The administrator requested it.
    Forced,
}

impl From<Blocked> for Outcome {
    fn from(block: Blocked) -> Self {
        Self::Blocked(block)
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

impl Outcome {
    /// Returns the operation that failed or is unsupported, if only a different or newer driver can help.
    pub fn awaits_another_driver(&self) -> Option<Operation> {
        match self {
            Self::Failed(failure) if failure.disposition == Disposition::AwaitDriver => failure.operation,
            Self::NotSupported(operation) => Some(*operation),
            _ => None,
        }
    }

    /// The VM in the driver's answer, if the outcome has one.
    pub fn vm_mut(&mut self) -> Option<&mut cmi_driver::Machine> {
        match self {
            Self::Provisioned(vm) => Some(vm),
            Self::Failed(failure) => failure.machine.as_mut(),
            _ => None,
        }
    }

    /// Returns the driver's last known state from a failed call.
    pub fn last_known_state(&self) -> Option<&LastKnownState> {
        match self {
            Self::Failed(failure) => failure.status.last_known_state(),
            _ => None,
        }
    }

    /// Returns the outcome, or a plain wait if this replica is not the leader and therefore made no call. The
    /// leader may be reporting the machine's state, so this replica reports nothing.
    #[must_use]
    pub fn unless_not_leading(self) -> Self {
        match self {
            Self::Failed(failure) if is_not_leader(&failure.status) => {
                Self::Waiting(Some(retry::FIRST_BACKOFF))
            }
            other => other,
        }
    }

    /// Returns the message if it quotes a driver's answer to a call without bootstrap data.
    pub fn quoted_message(&self) -> Option<&str> {
        match self {
            Self::Failed(failure) => match failure.operation? {
                Operation::CreateMachine | Operation::GetPluginCapabilities => None,
                _ => Some(failure.status.message()),
            },
            Self::Deleting { reason, message, .. } => (*reason == reason::SHUTTING_DOWN).then_some(message),
            // Lists every variant by name, because a forgotten variant would publish bootstrap data.
            Self::Unchanged(_)
            | Self::NotSupported(_)
            | Self::Blocked(_)
            | Self::Waiting(_)
            | Self::Queued { .. }
            | Self::AwaitingCapacity { .. }
            | Self::Refused { .. }
            | Self::Provisioned(_)
            | Self::UpToDate { .. }
            | Self::Updated
            | Self::Vanished(_)
            | Self::Gone
            | Self::RemoveFinalizer(_) => None,
        }
    }

    /// Returns the outcome with another message of the driver.
    #[must_use]
    pub fn with_quoted_message(mut self, new: String) -> Self {
        if let Self::Failed(mut failure) = self {
            failure.status = failure.status.with_message(new);
            return Self::Failed(failure);
        }
        if let Self::Deleting { message, .. } = &mut self {
            *message = new;
        }
        self
    }
}

/// A failed driver call.
#[derive(Debug)]
pub struct Failure {
    /// The call. `None` if its secrets can't be assembled, so that nothing was called.
    pub operation: Option<Operation>,
    /// The operation that included the call.
    pub during: OperationType,
    /// The driver's status, or why there are no secrets.
    pub status: Status,
    /// The consequence of the failure.
    pub disposition: Disposition,
    /// The machine's own VM, which exists despite the failure: the VM of an initialization, or an
    /// uninitialized VM.
    pub machine: Option<cmi_driver::Machine>,
}

impl Failure {
    /// Returns a failure with the disposition from the retry table.
    pub fn new(call: Call, status: Status) -> Self {
        Self::sorted(
            Some(call.operation()),
            call.during(),
            retry::disposition(call, status.code()),
            status,
        )
    }

    /// Returns the failure of a driver that could not report its capabilities.
    pub fn capabilities_unknown(during: OperationType, status: &Status) -> Self {
        let status = Status::new(status.code(), status.message());
        let operation = Some(Operation::GetPluginCapabilities);
        Self::sorted(operation, during, Disposition::Retry, status)
    }

    /// Returns the failure of a call whose secrets can't be assembled. Secrets are not watched, and a missing
    /// Secret is often only late.
    pub fn no_secrets(during: OperationType, cause: &InvalidSecret) -> Self {
        let status = Status::new(Code::FailedPrecondition, cause.to_string());
        Self::sorted(None, during, Disposition::Retry, status)
    }

    fn sorted(
        operation: Option<Operation>,
        during: OperationType,
        disposition: Disposition,
        status: Status,
    ) -> Self {
        // With any other code, the VM may belong to another machine that has the same name.
        let is_its_own =
            status.code() == Code::Uninitialized || operation == Some(Operation::InitializeMachine);
        let machine = status.machine().filter(|_| is_its_own).cloned();
        Self {
            operation,
            during,
            status,
            disposition,
            machine,
        }
    }

    /// Returns the reason for conditions, events and the last operation.
    pub fn reason(&self) -> &'static str {
        match self.operation {
            Some(_) => self.status.code().name(),
            None => reason::INVALID_SECRET,
        }
    }

    /// Returns whether a look-up of a VM that is up failed.
    pub fn is_recheck_of(&self, machine: &InfraMachine) -> bool {
        self.during == OperationType::Create && machine.is_provisioned()
    }

    /// Returns whether a failed create is final, so the back end will not carry it out later.
    pub fn is_final_for_create(&self) -> bool {
        self.status.is_never_sent()
            || self.status.has_no_side_effects()
            || self.status.code().is_final_for_create()
    }

    /// Returns whether the answer is a reason to check that a running VM still exists.
    pub fn calls_for_look_up(&self) -> bool {
        self.disposition == Disposition::LookUp && self.during == OperationType::Update
    }

    /// The event that may end the wait early.
    pub fn retry_trigger(&self) -> RetryTrigger {
        RetryTrigger::of(self.operation.map(|_| self.status.code()))
    }

    /// Returns the message for operators: the call, the driver's answer, and how to end the wait if an
    /// operator has to.
    pub fn message(&self) -> String {
        let answer = self.status.message();
        let said = match self.operation {
            // The specification gives the name of the stage (INI-14).
            Some(Operation::InitializeMachine) => format!("InstanceInitialization: {answer}"),
            Some(other) => format!("{other}: {answer}"),
            None => answer.to_owned(),
        };
        let hint = match self.disposition {
            Disposition::AwaitCapacity if self.during == OperationType::Create => RETRY_NOW_HINT,
            Disposition::Terminal if self.status.code() == Code::AlreadyExists => TAKEN_HINT,
            Disposition::Terminal => RETRY_HINT,
            _ => return said,
        };
        format!("{said}; {hint}")
    }
}
