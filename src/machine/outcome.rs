//! The outcome of a plan. The failure of a driver is an outcome, not an error: it has to be published.

use std::time::Duration;

use crate::api::conditions::reason;
use crate::api::identity::{InvalidSpec, VmRecord};
use crate::api::retry::{self, Delay, Disposition, LONG_WAIT_JITTER, Stage};
use crate::api::v1alpha1::OperationType;
use crate::apiserver::InvalidSecret;
use crate::apiserver::leadership::is_not_leader;
use crate::driver::StableReachability;
use cmi_driver::{Code, JsonPointer, LastKnownState, Operation, ProviderId, Status};

#[cfg(test)]
mod tests;

/// Tells an operator how to end a wait for capacity whose end the provider can't see.
pub const RETRY_NOW_HINT: &str =
    "when capacity is available, change any annotation of this object to retry immediately";

/// The outcome of a plan.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing is published, for this reason.
    NoOp(&'static str),
    /// Nothing is published now. The machine is requeued after this time.
    Requeue(Duration),
    /// Nothing is published: the driver does not offer a call that would say more of a VM that is up, and is
    /// not asked for that call again until the driver is another one.
    NotSupported(Operation),
    /// The machine still waits, and the status says for what.
    Blocked(Blocked),
    /// The machine still waits, for what the status says already, or for too short a time to publish it: for
    /// a permit, a lock, or an answer that another reconcile has asked the driver for. Unlike after a
    /// requeue, it is woken as a rule; the time is when to look again, if nothing wakes it before.
    Waiting(Option<Duration>),
    /// The machine waits for a permit to call the driver, and for so long that the wait is reported.
    Queued {
        /// When to look again, should nothing wake it.
        requeue_after: Duration,
    },
    /// Capacity was exhausted for another machine of the class: no create was issued, and the machine is
    /// woken when there may be capacity.
    AwaitingCapacity {
        /// When to look again, should nothing wake it.
        requeue_after: Duration,
    },
    /// The spec was refused before the driver saw it.
    Refused {
        /// Why.
        invalid: InvalidSpec,
        /// When to look again.
        requeue_after: Option<Duration>,
    },
    /// The VM exists, is initialized, and has this state.
    Provisioned(Box<cmi_driver::Machine>),
    /// The VM is provisioned and as it should be.
    UpToDate {
        /// Whether the driver can be reached, once that is stable.
        reachability: StableReachability,
        /// Fields in which the spec differs and that can't be changed on a VM that exists.
        not_updatable: Vec<JsonPointer>,
        /// When to look the VM up again, if the VM is not settled.
        requeue_after: Option<Duration>,
    },
    /// The VM has the wanted spec.
    Updated,
    /// A driver call failed.
    Failed(Box<Failure>),
    /// The secrets can't be put together.
    NoSecrets {
        /// What was about to be done.
        during: OperationType,
        /// Why.
        cause: InvalidSecret,
    },
    /// The driver does not see the VM, but its view may be behind.
    Absent {
        /// When the absence is certain.
        requeue_after: Duration,
    },
    /// The driver confirmed that a VM that should exist is gone.
    Vanished(ProviderId),
    /// The deletion is in progress.
    Deleting {
        /// How far the deletion is, as the reason of a condition.
        reason: &'static str,
        /// The same in words.
        message: String,
        /// When to look again.
        requeue_after: Duration,
    },
    /// The VM is gone: the finalizer may be removed.
    Gone,
    /// There never was a VM, or the administrator takes the responsibility.
    RemoveFinalizer(RemovalReason),
}

/// A wait that the status shows.
#[derive(Debug)]
pub struct Blocked {
    /// The condition that says why.
    pub condition: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
    /// The record that has to be written in spite of the wait, with the finalizer.
    pub record: Option<Box<VmRecord>>,
    /// Whether an earlier call still keeps `clusterctl move` waiting. No call is in flight
    /// while the machine is blocked.
    pub unblocks_move: bool,
    /// Whether the beginning of the wait is worth an event although its reason by itself is not: as a rule
    /// others end the wait, and here they have not.
    pub is_worth_an_event: bool,
    /// When to look again, if nothing changes before.
    pub requeue_after: Option<Duration>,
}

impl Blocked {
    /// Returns a wait with nothing to write but the status, which ends when something changes.
    pub fn new(condition: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            condition,
            reason,
            message: message.into(),
            record: None,
            unblocks_move: false,
            is_worth_an_event: false,
            requeue_after: None,
        }
    }
}

/// Why the finalizer may be removed without the deletion of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// No create was ever issued, or all were refused for good, and the driver has nothing to delete.
    NeverCreated,
    /// The administrator said so.
    Forced,
}

impl Outcome {
    /// Returns the operation that failed or that the driver does not support, where only another driver, or a
    /// newer one, can do better.
    pub fn awaits_another_driver(&self) -> Option<Operation> {
        match self {
            Self::Failed(failure) if failure.disposition == Disposition::AwaitDriver => {
                Some(failure.operation)
            }
            Self::NotSupported(operation) => Some(*operation),
            _ => None,
        }
    }

    /// Returns the state that the driver wants back with the next call, where a call failed with one.
    pub fn last_known_state(&self) -> Option<&LastKnownState> {
        match self {
            Self::Failed(failure) => failure.last_known_state(),
            _ => None,
        }
    }

    /// Returns the outcome, or a plain wait where the call was not made because this replica is not the
    /// leader: no driver was called, so there is nothing to say, and another replica may be saying it.
    #[must_use]
    pub fn unless_not_leading(self) -> Self {
        match self {
            Self::Failed(failure) if failure.is_not_leading() => Self::Waiting(Some(retry::FIRST_BACKOFF)),
            other => other,
        }
    }

    /// Whether the outcome repeats what the driver said in answer to a call that carried no bootstrap data.
    pub fn quotes_the_driver(&self) -> bool {
        match self {
            Self::Failed(failure) => !matches!(
                failure.operation,
                Operation::CreateMachine | Operation::GetPluginCapabilities
            ),
            Self::Deleting { reason, .. } => *reason == reason::SHUTTING_DOWN,
            // Every variant by name: a forgotten one would publish bootstrap data.
            Self::NoOp(_)
            | Self::Requeue(_)
            | Self::NotSupported(_)
            | Self::Blocked(_)
            | Self::Waiting(_)
            | Self::Queued { .. }
            | Self::AwaitingCapacity { .. }
            | Self::Refused { .. }
            | Self::Provisioned(_)
            | Self::UpToDate { .. }
            | Self::Updated
            | Self::NoSecrets { .. }
            | Self::Absent { .. }
            | Self::Vanished(_)
            | Self::Gone
            | Self::RemoveFinalizer(_) => false,
        }
    }

    /// Returns the outcome with the driver's message changed.
    #[must_use]
    pub fn map_message(self, change: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::Failed(mut failure) => {
                let message = change(failure.status.message());
                failure.status = failure.status.with_message(message);
                Self::Failed(failure)
            }
            Self::Deleting {
                reason,
                message,
                requeue_after,
            } => Self::Deleting {
                reason,
                message: change(&message),
                requeue_after,
            },
            other => other,
        }
    }
}

/// What may trigger the retry of a failed call before its wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryTrigger {
    /// A failure that passes by itself, such as an outage of the driver: it is over when the driver is back.
    Transient,
    /// Capacity was exhausted: there may be capacity when another machine is made or deleted.
    Capacity,
    /// Anything else.
    Other,
}

/// A driver call that failed.
#[derive(Debug)]
pub struct Failure {
    /// The call.
    pub operation: Operation,
    /// The operation that the call was part of.
    pub during: OperationType,
    /// What the driver said.
    pub status: Status,
    /// What the failure leads to.
    pub disposition: Disposition,
    /// The machine's own VM, which exists in spite of the failure: the VM of an initialization, or a VM that
    /// is not initialized.
    pub machine: Option<cmi_driver::Machine>,
}

impl Failure {
    /// A failure, sorted by the retry table.
    pub fn new(stage: Stage, status: Status) -> Self {
        Self::sorted(
            stage.operation(),
            during(stage),
            retry::disposition(stage, status.code()),
            status,
        )
    }

    /// Returns the failure of a driver that could not be asked for its capabilities.
    pub fn capabilities_unknown(during: OperationType, status: Status) -> Self {
        Self::sorted(
            Operation::GetPluginCapabilities,
            during,
            Disposition::Retry,
            status,
        )
    }

    fn sorted(operation: Operation, during: OperationType, disposition: Disposition, status: Status) -> Self {
        // With any other code the VM may be another machine's, such as the one that already has the name.
        let is_its_own = status.code() == Code::Uninitialized || operation == Operation::InitializeMachine;
        let machine = status.machine().filter(|_| is_its_own).cloned();
        Self {
            operation,
            during,
            status,
            disposition,
            machine,
        }
    }

    /// Whether the driver could not be reached, which says nothing about the VM.
    pub fn is_outage(&self) -> bool {
        self.status.code().is_outage()
    }

    /// Whether the call was not made because this replica is not the leader.
    pub fn is_not_leading(&self) -> bool {
        is_not_leader(&self.status)
    }

    /// Whether a create that failed like this is over, so that the back end will not carry it out later.
    pub fn is_final_for_create(&self) -> bool {
        self.status.is_never_sent()
            || self.status.has_no_side_effects()
            || self.status.code().is_final_for_create()
    }

    /// Whether the answer gives reason to ask if a VM that was up still exists.
    pub fn calls_for_look_up(&self) -> bool {
        self.disposition == Disposition::LookUp && self.during == OperationType::Update
    }

    /// What may end the wait before its time.
    pub fn retry_trigger(&self) -> RetryTrigger {
        match self.disposition {
            Disposition::Retry | Disposition::LookUp => RetryTrigger::Transient,
            Disposition::AwaitCapacity => RetryTrigger::Capacity,
            Disposition::Initialize
            | Disposition::NeedsIntervention
            | Disposition::AwaitDriver
            | Disposition::Fallback
            | Disposition::Terminal
            | Disposition::Create
            | Disposition::Vanished
            | Disposition::Replace
            | Disposition::Delete
            | Disposition::VerifyDeleted
            | Disposition::StillThere
            | Disposition::Gone => RetryTrigger::Other,
        }
    }

    /// The state that the driver wants back with the next call.
    pub fn last_known_state(&self) -> Option<&LastKnownState> {
        self.status.last_known_state()
    }

    /// The wait before the next try, `None` when only a change leads to one.
    ///
    /// # Guarantees
    /// The delay that the driver asks for is a lower bound: it never ends the back-off of a failure that
    /// repeats. Where the wait is otherwise a long one, since only a change from outside helps, a driver that
    /// knows better may ask for a delay: the call is then retried with back-off, and not before the time that
    /// the driver asked for.
    pub fn wait(&self, attempt: u32, jitter: f64) -> Option<Duration> {
        // Never less than was asked for, and spread out: machines that failed together do not come back
        // together.
        let asked = self
            .requested_delay()
            .map(|asked| asked.mul_f64(1.0 + LONG_WAIT_JITTER * jitter));
        let backoff = retry::backoff(attempt, jitter);
        match self.disposition.delay() {
            Delay::UntilChange => None,
            Delay::Backoff => Some(backoff.max(asked.unwrap_or_default())),
            Delay::Long => Some(asked.map_or_else(
                || retry::LONG_WAIT.mul_f64(1.0 - LONG_WAIT_JITTER * jitter),
                |asked| backoff.max(asked),
            )),
        }
    }

    /// The wait that the driver asks for, an hour at most. A wait of zero counts as none.
    pub fn requested_delay(&self) -> Option<Duration> {
        retry::requested_delay(&self.status)
    }

    /// Returns what an operator reads: the call, what the driver said, and how to end the wait where it is
    /// for an operator to end it.
    pub fn message(&self) -> String {
        let said = self.call_and_answer();
        if self.disposition == Disposition::AwaitCapacity && self.during == OperationType::Create {
            format!("{said}; {RETRY_NOW_HINT}")
        } else {
            said
        }
    }

    fn call_and_answer(&self) -> String {
        match self.operation {
            // The stage's name is the specification's (INI-14).
            Operation::InitializeMachine => format!("InstanceInitialization: {}", self.status.message()),
            other => format!("{other}: {}", self.status.message()),
        }
    }
}

/// Returns the operation that a call is part of.
const fn during(stage: Stage) -> OperationType {
    match stage {
        Stage::LookUp
        | Stage::LookUpAgain
        | Stage::List
        | Stage::ListAgain
        | Stage::Create
        | Stage::Initialize
        | Stage::FinishInitialization
        | Stage::Refresh
        | Stage::ListZones
        | Stage::DescribeClass
        | Stage::VolumeIds => OperationType::Create,
        Stage::Update | Stage::Restart => OperationType::Update,
        Stage::ShutDown | Stage::Delete | Stage::ConfirmGone | Stage::ListAfterDelete => {
            OperationType::Delete
        }
    }
}
