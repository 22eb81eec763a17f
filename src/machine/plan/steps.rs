//! What a plan can say.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::labels::Instance;
use crate::api::v1alpha1::OperationType;
use crate::configured_driver::{Priority, TrialReason};
use crate::identity::{InvalidSpec, MachineId};
use crate::machine::unanswered::{Unanswered, elapsed};
use cmi_driver::{Code, JsonPointer, ProviderId, ProviderSpec};

/// What has to be done.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// Nothing, and nothing is written.
    NoOp(&'static str),
    /// As [`Plan::NoOp`], and look again after this long: what is so for a moment as a
    /// rule is not worth a write.
    Requeue(Duration),
    /// Wait; the status says for what.
    Blocked(Blocked),
    /// Wait; the status says all there is to say already. When to look again, if nothing changes before.
    Waiting(Option<Duration>),
    /// Write finalizer and identity again; what else there is to do comes after that.
    RestoreFinalizer(Box<Ownership>),
    /// The driver has never answered.
    CapabilitiesUnknown(Code, String),
    /// The spec can't be accepted as it is.
    Refused {
        /// Why.
        invalid: InvalidSpec,
        /// When to look again, if nothing changes before.
        again: Option<Duration>,
    },
    /// Look the VM up, create it if it is not there, initialize it.
    Provision(Box<Provision>),
    /// The VM is provisioned and as it should be.
    UpToDate {
        /// Whether the driver can be reached, where that is settled.
        reachable: Option<bool>,
        /// Fields in which the spec differs and that a living VM can't change.
        not_updatable: Vec<JsonPointer>,
        /// When to ask after it, if it is not settled.
        again: Option<Duration>,
    },
    /// Ask the driver how the VM is.
    Recheck(Box<Recheck>),
    /// The VM is gone for all that the driver can say: lists lack it, and it can't be asked about one VM.
    Vanished(ProviderId),
    /// The VM that was gone is in the lists of a driver that can't be asked about one VM.
    Reappeared(ProviderId),
    /// Bring the VM to the wanted spec.
    Update(Box<Update>),
    /// Shut down, delete, until it is gone.
    Delete(Box<Delete>),
    /// There is no VM: let the object go.
    RemoveFinalizer(RemovalReason),
}

impl Plan {
    /// What a permit of the driver is needed for; `None` where it is not called.
    pub fn priority(&self) -> Option<Priority> {
        match self {
            // Where there may be a VM it is looked up first, which must not wait for the creates of others.
            Self::Provision(plan) if plan.vm_may_exist() => Some(Priority::Upkeep),
            Self::Provision(_) => Some(Priority::Create),
            Self::Recheck(_) | Self::Update(_) | Self::Delete(_) => Some(Priority::Upkeep),
            Self::NoOp(_)
            | Self::Requeue(_)
            | Self::Blocked(_)
            | Self::Waiting(_)
            | Self::RestoreFinalizer(_)
            | Self::CapabilitiesUnknown(..)
            | Self::Refused { .. }
            | Self::UpToDate { .. }
            | Self::Vanished(_)
            | Self::Reappeared(_)
            | Self::RemoveFinalizer(_) => None,
        }
    }

    /// What has to be known of the admission policies before it is carried out.
    pub fn trust(&self) -> Trust {
        match self {
            Self::Delete(_) | Self::Update(_) | Self::Recheck(_) | Self::RemoveFinalizer(_) => {
                Trust::CheckSinceRead
            }
            // It takes over the VM that it finds, and may initialize it.
            Self::Provision(plan) if plan.is_identified => Trust::CheckSinceRead,
            Self::Provision(_) | Self::RestoreFinalizer(_) => Trust::LastCheck,
            Self::Blocked(block) if block.ownership.is_some() => Trust::LastCheck,
            Self::Blocked(_)
            | Self::NoOp(_)
            | Self::Requeue(_)
            | Self::Waiting(_)
            | Self::CapabilitiesUnknown(..)
            | Self::Refused { .. }
            | Self::UpToDate { .. }
            | Self::Vanished(_)
            | Self::Reappeared(_) => Trust::Nothing,
        }
    }

    /// Whether nothing is done about the machine now, and it is not paused: what has failed before and is not
    /// published can be said first.
    pub fn is_idle(&self) -> bool {
        match self {
            Self::Waiting(_) | Self::Refused { .. } | Self::UpToDate { .. } => true,
            Self::NoOp(_)
            | Self::Requeue(_)
            | Self::Blocked(_)
            | Self::RestoreFinalizer(_)
            | Self::CapabilitiesUnknown(..)
            | Self::Provision(_)
            | Self::Recheck(_)
            | Self::Vanished(_)
            | Self::Reappeared(_)
            | Self::Update(_)
            | Self::Delete(_)
            | Self::RemoveFinalizer(_) => false,
        }
    }

    /// What it is part of, where it calls the driver.
    pub fn during(&self) -> OperationType {
        match self {
            Self::Delete(_) | Self::RemoveFinalizer(_) => OperationType::Delete,
            Self::Update(_) => OperationType::Update,
            Self::NoOp(_)
            | Self::Requeue(_)
            | Self::Blocked(_)
            | Self::Waiting(_)
            | Self::RestoreFinalizer(_)
            | Self::CapabilitiesUnknown(..)
            | Self::Refused { .. }
            | Self::UpToDate { .. }
            | Self::Provision(_)
            | Self::Recheck(_)
            | Self::Vanished(_)
            | Self::Reappeared(_) => OperationType::Create,
        }
    }
}

/// How sure a plan has to be that the identity was not forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It acts on none.
    Nothing,
    /// The last check of the policies is enough: what is done reaches no VM that exists.
    LastCheck,
    /// It acts on a VM that may exist, or lets one be forgotten: a check has to begin
    /// after the machine was read.
    CheckSinceRead,
}

/// A wait that the status tells of.
#[derive(Debug, PartialEq)]
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
    /// When to look again, if nothing changes before.
    pub again: Option<Duration>,
}

/// Finalizer and identity, as they have to be before a side effect (write 1).
#[derive(Clone, Debug, PartialEq)]
pub struct Ownership {
    /// The identity of the machine.
    pub machine_id: MachineId,
    /// Which cluster it belongs to.
    pub cluster_id: String,
    /// Whether a create may have been issued.
    pub instance: Instance,
    /// The driver that is about to make the VM.
    pub driver: Option<String>,
    /// The Secret with the credentials that it is about to be made with, an empty name for none.
    pub secret: Option<String>,
    /// What the VM is about to be made from.
    pub applied: Option<ProviderSpec>,
}

/// Look up, create, initialize.
#[derive(Clone, Debug, PartialEq)]
pub struct Provision {
    /// The ownership to write before the create.
    pub ownership: Ownership,
    /// The spec to create with.
    pub wanted: ProviderSpec,
    /// The spec to look up with: that of an earlier create, or the wanted one.
    pub look_up: ProviderSpec,
    /// The id, when it is known; then nothing is ever created.
    pub provider_id: Option<ProviderId>,
    /// The Secret with the bootstrap data.
    pub bootstrap: String,
    /// Whether the object carried an identity when it was read: the VM of that identity is looked up,
    /// whosever it is. Without one, the identity is the object's UID, which can't be forged.
    pub is_identified: bool,
    /// What the object says of a VM before the create.
    pub noted: Instance,
    /// Creates before this one that may still be carried out.
    pub unanswered: Unanswered,
    /// What may still make a VM of another spec: a create now would write down its own, by which alone the VM
    /// is looked for and deleted.
    pub settling: Option<Settling>,
    /// Why its create may be let through though capacity was exhausted.
    pub trial: TrialReason,
}

impl Provision {
    /// Whether a create was issued before, so that there may be a VM.
    pub fn vm_may_exist(&self) -> bool {
        self.noted == Instance::MayExist
    }
}

/// Look up, initialize where the driver asks for it. Nothing to create with is part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recheck {
    /// The spec to look up with: that of the create.
    pub look_up: ProviderSpec,
    /// The id.
    pub provider_id: ProviderId,
    /// Whether the driver may be asked to initialize it: not one that has answered
    /// that it does not offer this.
    pub may_initialize: bool,
}

/// Hot update.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// What it was brought to the last time.
    pub applied: ProviderSpec,
    /// What it has to be brought to.
    pub wanted: ProviderSpec,
}

/// Shut down and delete.
#[derive(Clone, Debug, PartialEq)]
pub struct Delete {
    /// The id of the VM, when it is known.
    pub provider_id: Option<ProviderId>,
    /// What it was made from.
    pub spec: ProviderSpec,
    /// How the guest is asked to stop, while it has time.
    pub shut_down: Option<ShutDown>,
    /// What may still make a VM, so that one that is absent is no proof.
    pub settling: Option<Settling>,
    /// Whether a create that was never answered may have made another VM beside the one whose id is known.
    pub strays: bool,
    /// Whether the driver refused every create for good: it may have made something, but no VM, and may
    /// refuse the same spec again.
    pub refused: bool,
    /// When to look again, while the VM is still there.
    pub again: Duration,
}

/// The guest's time to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutDown {
    /// How long it is.
    pub grace: Duration,
    /// When the driver accepted to shut the guest down, from when the time runs; `None` where it has not yet.
    pub accepted: Option<Timestamp>,
    /// Whether the driver has had its tries: one more that fails does not hold the deletion up.
    pub last_try: bool,
}

impl ShutDown {
    /// What is left of the guest's time.
    pub fn left(&self, now: Timestamp) -> Duration {
        let passed = self.accepted.and_then(|accepted| elapsed(accepted, now));
        self.grace.saturating_sub(passed.unwrap_or_default())
    }
}

/// A create that was never answered and may still be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settling {
    /// When it was issued, and when it can't be carried out any more, at the latest;
    /// `None` where that is not known.
    pub issued: Option<(Timestamp, Timestamp)>,
    /// How long the VM has to be absent once the create was given up.
    pub time: Duration,
    /// What is left until one of these has come.
    pub left: Duration,
}

impl Settling {
    /// Until when the VM is looked for, in words that stay the same.
    pub fn in_words(&self) -> String {
        let seconds = self.time.as_secs_f64();
        match self.issued {
            Some((issued, latest)) => format!(
                "CreateMachine of {issued:.0} was never answered and may still be carried out, until the VM has been absent for \
                 {seconds} s, or until {latest:.0}"
            ),
            None => format!(
                "a CreateMachine may have been issued that was never answered and may still be carried out, until the VM has \
                 been absent for {seconds} s"
            ),
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
