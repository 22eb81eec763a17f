//! What came of a plan. A driver that fails is an outcome, not an error: it has to be published.

use std::time::Duration;

use super::ownership::Ownership;
use crate::api::conditions::reason;
use crate::api::v1alpha1::OperationType;
use crate::apiserver::InvalidSecret;
use crate::configured_driver::StableReachability;
use crate::identity::InvalidSpec;
use crate::leadership::is_not_leader;
use crate::retry::{self, Delay, Disposition, LONG_WAIT_JITTER, Stage};
use cmi_driver::{Code, JsonPointer, LastKnownState, Operation, ProviderId, Status};

#[cfg(test)]
mod tests;

/// How an operator ends a wait for capacity that the provider can't see the end of.
pub const RETRY_NOW_HINT: &str =
    "once there is capacity, change any annotation of this object to retry at once";

/// What came of a plan.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing is published, for this reason.
    NoOp(&'static str),
    /// Nothing is published now. When to look again.
    Requeue(Duration),
    /// Nothing is published: the driver does not offer a call that would say more of a VM that is up, and is
    /// not asked for it before it is another.
    NotSupported(Operation),
    /// Still waiting; the status says for what.
    Blocked(Blocked),
    /// Still waiting; the status says all there is to say already. When to look again,
    /// if nothing changes before.
    Waiting(Option<Duration>),
    /// Waiting for a permit to call the driver, and for so long that this is reported.
    Queued {
        /// When to look again, should nothing wake it.
        requeue_after: Duration,
    },
    /// Capacity was exhausted for another machine of the class: no create was made, and the
    /// machine is woken when there may be room.
    AwaitingCapacity {
        /// When to look again, should nothing wake it.
        requeue_after: Duration,
    },
    /// The spec was not even shown to the driver.
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
        /// Whether the driver can be reached, where that is settled.
        reachability: StableReachability,
        /// Fields in which the spec differs and that a living VM can't change.
        not_updatable: Vec<JsonPointer>,
        /// When to ask after it, if it is not settled.
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
    /// The driver does not see the VM, and may be behind.
    Absent {
        /// When it is sure.
        requeue_after: Duration,
    },
    /// The driver confirmed that a VM is gone that should be there.
    Vanished(ProviderId),
    /// The deletion is under way.
    Deleting {
        /// Where it stands.
        reason: &'static str,
        /// In words.
        message: String,
        /// When to look again.
        requeue_after: Duration,
    },
    /// The VM is gone: the object may go.
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
    /// The ownership that has to be written all the same.
    pub ownership: Option<Box<Ownership>>,
    /// Whether an earlier call still keeps `clusterctl move` waiting. No call is in flight
    /// while the machine is blocked.
    pub unblocks_move: bool,
    /// Whether its beginning is worth an event that the reason by itself is not: as a rule others end the
    /// wait, and here they have not.
    pub is_worth_an_event: bool,
    /// When to look again, if nothing changes before.
    pub requeue_after: Option<Duration>,
}

impl Blocked {
    /// A wait with nothing to write but the status, that ends when something changes.
    pub fn new(condition: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            condition,
            reason,
            message: message.into(),
            ownership: None,
            unblocks_move: false,
            is_worth_an_event: false,
            requeue_after: None,
        }
    }
}

/// Why an object may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// No create was ever issued, or all were refused for good, and the driver has nothing to delete.
    NeverCreated,
    /// The administrator said so.
    Forced,
}

impl Outcome {
    /// The call that failed, where only another driver, or a newer one, can do better.
    pub fn awaits_another_driver(&self) -> Option<Operation> {
        match self {
            Self::Failed(failure) if failure.disposition == Disposition::AwaitDriver => {
                Some(failure.operation)
            }
            Self::NotSupported(operation) => Some(*operation),
            _ => None,
        }
    }

    /// The same, but nothing that a replica would write which is not the leader: no driver was called, so
    /// there is nothing to say, and another replica may be saying it.
    #[must_use]
    pub fn unless_not_leading(self) -> Self {
        match self {
            Self::Failed(failure) if failure.is_not_leading() => Self::Waiting(Some(retry::FIRST_BACKOFF)),
            other => other,
        }
    }

    /// Whether it repeats what the driver said in answer to a call that carried no bootstrap data.
    pub fn quotes_the_driver(&self) -> bool {
        match self {
            Self::Failed(failure) => !matches!(
                failure.operation,
                Operation::CreateMachine | Operation::GetPluginCapabilities
            ),
            Self::Deleting { reason, .. } => *reason == reason::SHUTTING_DOWN,
            // All of them by name: one that is forgotten here would publish bootstrap data.
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

    /// The same with another message of the driver.
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

/// What may have a failed call made again before its wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryTrigger {
    /// Something that passes by itself, such as an outage of the driver: it is over when the driver is back.
    Transient,
    /// Capacity was exhausted: there may be room when another machine is made or deleted.
    Capacity,
    /// Anything else.
    Other,
}

/// A driver call that failed.
#[derive(Debug)]
pub struct Failure {
    /// The call.
    pub operation: Operation,
    /// What it was part of.
    pub during: OperationType,
    /// What the driver said.
    pub status: Status,
    /// What happens now.
    pub disposition: Disposition,
    /// The machine's own VM, which exists in spite of it: that of an initialization, or
    /// one that is not initialized.
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

    /// The driver could not be asked what it offers.
    pub fn capabilities_unknown(during: OperationType, status: Status) -> Self {
        Self::sorted(
            Operation::GetPluginCapabilities,
            during,
            Disposition::Retry,
            status,
        )
    }

    fn sorted(operation: Operation, during: OperationType, disposition: Disposition, status: Status) -> Self {
        // Beside any other code it may be another machine's, such as the VM that already has the name.
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

    /// Whether the driver could not be reached: says nothing about the VM.
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

    /// Whether the answer gives reason to ask if a VM that was up is still there.
    pub fn calls_for_look_up(&self) -> bool {
        self.disposition == Disposition::LookUp && self.during == OperationType::Update
    }

    /// What may end it before its time.
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

    /// What the driver wants back.
    pub fn last_known_state(&self) -> Option<&LastKnownState> {
        self.status.last_known_state()
    }

    /// The wait before the next try, `None` when only a change leads to one.
    ///
    /// # Guarantees
    /// What the driver asks for is a lower bound: it never ends the back-off of a failure that
    /// repeats. Where the wait is otherwise a long one, since only a change from outside helps, a
    /// driver that knows better may say so: the call is then repeated by the back-off, and not before
    /// the time that the driver asked for.
    pub fn wait(&self, attempt: u32, jitter: f64) -> Option<Duration> {
        // Never less than was asked for, and machines that failed together do not come back together.
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

    /// The wait that the driver asks for; it gets an hour at most. No time at all is none that was asked for.
    pub fn requested_delay(&self) -> Option<Duration> {
        retry::requested_delay(&self.status)
    }

    /// What an operator reads: the call, what the driver said, and what can be done where the wait is for an
    /// operator to end.
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

/// What a call is part of.
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
