//! The steps that a plan can have, and what each of them needs.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::identity::{MadeFrom, VmRecord};
use crate::api::v1alpha1::OperationType;
use crate::api::wall_clock::elapsed;
use crate::driver::{HalfOpenReason, Priority};
use crate::machine::outcome::Outcome;
use cmi_driver::{ProviderId, ProviderSpec};

/// What has to be done for a machine.
#[derive(Debug)]
pub enum Plan {
    /// No driver call: the outcome is known.
    Outcome(Outcome),
    /// Write the finalizer again; everything else comes after that.
    RestoreFinalizer,
    /// Write the annotation by which Cluster API learns that the VM has the spec that it asked for.
    ReportInPlaceUpdate(Option<String>),
    /// Call the driver.
    Execute(Step),
}

/// What the driver is called for.
#[derive(Debug)]
pub enum Step {
    /// Look the VM up, create it if it is not there, initialize it.
    Provision(Box<Provision>),
    /// Have the driver confirm a VM that something else created, and adopt it.
    Adopt(Box<Adopt>),
    /// Ask the driver how the VM is.
    Refresh(Box<Refresh>),
    /// Bring the VM to the wanted spec.
    Update(Box<Update>),
    /// Shut down and delete the VM, until it is gone.
    Delete(Box<Delete>),
}

impl From<Outcome> for Plan {
    fn from(outcome: Outcome) -> Self {
        Self::Outcome(outcome)
    }
}

impl From<Step> for Plan {
    fn from(step: Step) -> Self {
        Self::Execute(step)
    }
}

impl Step {
    /// What a permit of the driver is needed for.
    pub fn priority(&self) -> Priority {
        match self {
            // A VM that may exist is looked up first, which must not wait for the creates of other machines.
            Self::Provision(plan) if plan.vm_may_exist() => Priority::Upkeep,
            Self::Provision(_) => Priority::Create,
            Self::Adopt(_) | Self::Refresh(_) | Self::Update(_) | Self::Delete(_) => Priority::Upkeep,
        }
    }

    /// The operation that the step is part of.
    pub fn during(&self) -> OperationType {
        match self {
            Self::Provision(_) | Self::Adopt(_) | Self::Refresh(_) => OperationType::Create,
            Self::Update(_) => OperationType::Update,
            Self::Delete(_) => OperationType::Delete,
        }
    }
}

impl Plan {
    /// What has to be known of the admission policies before the plan is carried out.
    pub fn required_policy_check(&self) -> RequiredPolicyCheck {
        match self {
            // The step takes over the VM that it finds, and may initialize it.
            Self::Execute(Step::Provision(plan)) if !plan.is_identified => RequiredPolicyCheck::Cached,
            Self::Execute(_) | Self::Outcome(Outcome::RemoveFinalizer(_)) => RequiredPolicyCheck::Fresh,
            Self::RestoreFinalizer => RequiredPolicyCheck::Cached,
            Self::Outcome(Outcome::Blocked(block)) if block.record.is_some() => RequiredPolicyCheck::Cached,
            Self::Outcome(_) | Self::ReportInPlaceUpdate(_) => RequiredPolicyCheck::None,
        }
    }

    /// Whether nothing is done about the machine now, and it is not paused: an earlier failure that is not
    /// published yet can come first.
    pub fn is_idle(&self) -> bool {
        matches!(
            self,
            Self::Outcome(Outcome::Waiting(_) | Outcome::Refused { .. } | Outcome::UpToDate { .. })
        )
    }
}

/// The check of the admission policies that a plan needs, so that it acts on no forged identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredPolicyCheck {
    /// None: the plan acts on no identity.
    None,
    /// The last check of the policies is enough: the plan reaches no VM that exists.
    Cached,
    /// The plan acts on a VM that may exist, or lets one be forgotten: a check has to begin after the machine
    /// was read.
    Fresh,
}

/// Look up, create, initialize.
#[derive(Clone, Debug, PartialEq)]
pub struct Provision {
    /// The record of the machine, as it is before the create.
    pub record: VmRecord,
    /// How the VM is to be made.
    pub made_from: MadeFrom,
    /// The spec to look up with: the spec of an earlier create, or the wanted one.
    pub look_up: ProviderSpec,
    /// The name of the Secret with the bootstrap data.
    pub bootstrap: String,
    /// Whether the object had a record when it was read: the VM of its identity is looked up, whatever its
    /// owner is. Without one, the identity is the object's UID, which can't be forged.
    pub is_identified: bool,
    /// Whether an earlier create may still be carried out.
    pub earlier_create: bool,
    /// An earlier create that may still make a VM of another spec: a create now would write down its own
    /// spec, and a VM is looked up and deleted only by the spec that is written down.
    pub pending_create: Option<PendingCreate>,
    /// Why the create may be let through although capacity was exhausted.
    pub half_open_reason: HalfOpenReason,
}

impl Provision {
    /// Whether an earlier create may have made a VM.
    pub fn vm_may_exist(&self) -> bool {
        self.record.state.may_exist()
    }
}

/// Look up, and adopt the VM that is found. Nothing to create with is part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopt {
    /// The record to write once the driver has confirmed the VM.
    pub record: VmRecord,
    /// The spec to look up with, with the tags that the VM carries.
    pub look_up: ProviderSpec,
    /// The id of the VM.
    pub provider_id: ProviderId,
}

/// Look up, and initialize where the driver asks for it. Nothing to create with is part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Refresh {
    /// The spec to look up with: the spec of the create.
    pub look_up: ProviderSpec,
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// When the driver is asked to initialize the VM.
    pub initialize: Initialize,
}

/// When a driver is asked to initialize a VM whose id is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initialize {
    /// The VM was never handed to Cluster API: where the driver asks for it, or can't look up.
    OnTheWayUp,
    /// Where the driver asks for it.
    OnRequest,
    /// Never: the driver has answered that it does not offer this.
    Never,
}

/// Hot update.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// The spec that the VM was last brought to.
    pub applied: ProviderSpec,
    /// The spec that the VM has to be brought to.
    pub wanted: ProviderSpec,
    /// The annotation by which Cluster API learns that the VM has the wanted spec, where it has asked for
    /// that.
    pub report_done: Option<String>,
}

/// Shut down and delete.
#[derive(Clone, Debug, PartialEq)]
pub struct Delete {
    /// The id of the VM, when it is known.
    pub provider_id: Option<ProviderId>,
    /// The spec that the VM was made from.
    pub spec: ProviderSpec,
    /// How the guest is asked to stop, while it has time.
    pub shut_down: Option<ShutDown>,
    /// A create that may still make a VM, so that the absence of the VM is no proof.
    pub pending_create: Option<PendingCreate>,
    /// Whether a create that was never answered may have made another VM beside the one whose id is known.
    pub may_have_second_vm: bool,
    /// Whether the driver refused every create for good: it may have made something, but no VM, and may
    /// refuse the same spec again.
    pub refused: bool,
    /// When to look again, while the VM still exists.
    pub requeue_after: Duration,
}

/// The guest's time to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutDown {
    /// The length of the time.
    pub grace: Duration,
    /// When the driver accepted to shut the guest down, which starts the time; `None` where it has not yet.
    pub accepted: Option<Timestamp>,
    /// Whether the driver has had its tries: another failure does not hold the deletion up.
    pub last_try: bool,
}

impl ShutDown {
    /// Returns what is left of the guest's time.
    pub fn left(&self, now: Timestamp) -> Duration {
        let passed = self.accepted.and_then(|accepted| elapsed(accepted, now));
        self.grace.saturating_sub(passed.unwrap_or_default())
    }
}

/// A create that was never answered and may still be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCreate {
    /// When the create was issued.
    pub issued: Timestamp,
    /// The latest time at which the create can be carried out.
    pub latest: Timestamp,
    /// How long the VM has to be absent once the create was given up.
    pub time: Duration,
    /// What is left until one of these times has come.
    pub left: Duration,
}

impl PendingCreate {
    /// Says in words, which stay the same, until when the VM is looked for.
    pub fn in_words(&self) -> String {
        let (issued, latest, seconds) = (self.issued, self.latest, self.time.as_secs_f64());
        format!(
            "CreateMachine at {issued:.0} was never answered and may still complete: waiting until the VM \
                has been absent for {seconds} s, or until {latest:.0}"
        )
    }
}
