//! The kinds of plans, and their inputs.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::identity::{MadeFrom, VmRecord};
use crate::api::v1alpha1::OperationType;
use crate::api::wall_clock::elapsed;
use crate::driver::Priority;
use crate::machine::outcome::{Blocked, Outcome};
use cmi_driver::{ProviderId, ProviderSpec};

/// The next action for a machine.
#[derive(Debug)]
pub enum Plan {
    /// No driver call is needed. The outcome is known.
    Outcome(Outcome),
    /// Restore the finalizer before anything else.
    RestoreFinalizer,
    /// Read the claims for the machine's static addresses, and plan again.
    ReadClaims,
    /// Claim static addresses.
    Claim(Box<Claim>),
    /// Record for Cluster API that the VM has the requested spec.
    ReportInPlaceUpdate,
    /// Call the driver.
    CallDriver(DriverPlan),
}

/// A plan that calls the driver.
#[derive(Debug)]
pub enum DriverPlan {
    /// Look up the VM, create it if absent, and initialize it.
    Provision(Box<Provision>),
    /// Adopt a VM that another controller created, after the driver confirms it.
    Adopt(Box<Adopt>),
    /// Read the status of the VM.
    Refresh(Box<Refresh>),
    /// Update the VM to the wanted spec.
    Update(Box<Update>),
    /// Shut down and delete the VM, and confirm the deletion.
    Delete(Box<Delete>),
}

impl<T: Into<Outcome>> From<T> for Plan {
    fn from(outcome: T) -> Self {
        Self::Outcome(outcome.into())
    }
}

impl From<DriverPlan> for Plan {
    fn from(plan: DriverPlan) -> Self {
        Self::CallDriver(plan)
    }
}

impl DriverPlan {
    /// The priority of the permit.
    pub fn priority(&self) -> Priority {
        match self {
            // The look-up of a VM that may exist must not wait for the creates of other machines.
            Self::Provision(plan) if plan.vm_may_exist() => Priority::Upkeep,
            Self::Provision(_) => Priority::Create,
            Self::Adopt(_) | Self::Refresh(_) | Self::Update(_) | Self::Delete(_) => Priority::Upkeep,
        }
    }

    /// The operation that includes the calls.
    pub fn during(&self) -> OperationType {
        match self {
            Self::Provision(_) | Self::Adopt(_) | Self::Refresh(_) => OperationType::Create,
            Self::Update(_) => OperationType::Update,
            Self::Delete(_) => OperationType::Delete,
        }
    }
}

impl Plan {
    /// The check of the admission policies that the plan requires.
    pub fn required_policy_check(&self) -> RequiredPolicyCheck {
        match self {
            // The plan takes over an existing VM, and may initialize it.
            Self::CallDriver(DriverPlan::Provision(plan)) if !plan.is_identified => {
                RequiredPolicyCheck::Cached
            }
            Self::CallDriver(_) | Self::Outcome(Outcome::RemoveFinalizer(_)) => RequiredPolicyCheck::Fresh,
            Self::RestoreFinalizer | Self::Claim(_) => RequiredPolicyCheck::Cached,
            Self::Outcome(Outcome::Blocked(block)) if block.record.is_some() => RequiredPolicyCheck::Cached,
            Self::Outcome(_) | Self::ReadClaims | Self::ReportInPlaceUpdate => RequiredPolicyCheck::None,
        }
    }
}

/// The input to claim static addresses.
#[derive(Debug)]
pub struct Claim {
    /// The record that must be written first, together with the finalizer. The finalizer keeps the machine
    /// until its claims are released.
    pub record: VmRecord,
    /// The name of the Cluster.
    pub cluster: String,
    /// The places in the spec of the pools without a claim.
    pub absent: Vec<usize>,
    /// The places in the spec of the pools whose claims are being deleted. No VM has their addresses.
    pub terminating: Vec<usize>,
    /// The wait that follows.
    pub wait: Blocked,
}

/// The check of the admission policies that a plan needs so that it never acts on a forged identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredPolicyCheck {
    /// No check. The plan acts on no identity.
    None,
    /// The last check of the policies is enough, because the plan reaches no existing VM.
    Cached,
    /// The check must start after the machine was read, because the plan acts on or forgets a VM that may
    /// exist.
    Fresh,
}

/// The input to look up, create and initialize a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Provision {
    /// The record of the machine before the create.
    pub record: VmRecord,
    /// How the VM will be made.
    pub made_from: MadeFrom,
    /// The spec for the look-up: the spec of an earlier create, else the wanted spec.
    pub look_up: ProviderSpec,
    /// The name of the Secret with the bootstrap data.
    pub bootstrap: String,
    /// Whether the object had a record when it was read. The VM with the recorded identity is looked up, even
    /// if it belongs to another machine. Without a record, the identity is the object's UID, which can't be
    /// forged.
    pub is_identified: bool,
    /// Whether an earlier create may still be carried out.
    pub earlier_create: bool,
    /// An earlier create that may still make a VM with a different spec. A create now would overwrite the
    /// recorded spec, which is the only spec for finding and deleting that VM.
    pub pending_create: Option<PendingCreate>,
    /// Whether an operator requests a create although capacity was exhausted.
    pub requested: bool,
}

impl Provision {
    /// Returns whether an earlier create may have made a VM.
    pub fn vm_may_exist(&self) -> bool {
        self.record.state.may_exist()
    }
}

/// The input to look up and adopt a VM. It contains nothing that a create needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopt {
    /// The record to write after the driver has confirmed the VM.
    pub record: VmRecord,
    /// The spec for the look-up, with the tags of the VM.
    pub look_up: ProviderSpec,
    /// The id of the VM.
    pub provider_id: ProviderId,
}

/// The input to look up a VM and to initialize it on request. It contains nothing that a create needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Refresh {
    /// The spec for the look-up: the spec of the create.
    pub look_up: ProviderSpec,
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// When to initialize the VM.
    pub initialize: Initialize,
    /// Whether to start the VM if it is switched off.
    pub start: bool,
}

/// When to initialize a VM whose id is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initialize {
    /// When the driver requests it or can't look up. The VM was never provisioned.
    OnTheWayUp,
    /// When the driver requests it.
    OnRequest,
    /// Never, because the driver has answered that it does not support the call.
    Never,
}

/// The input of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// The spec that the VM was last updated to.
    pub applied: ProviderSpec,
    /// The wanted spec.
    pub wanted: ProviderSpec,
}

/// The input to shut down and delete a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Delete {
    /// The id of the VM, if known.
    pub provider_id: Option<ProviderId>,
    /// The spec that the VM was made from.
    pub spec: ProviderSpec,
    /// How to shut the guest down, while it has grace period left.
    pub shut_down: Option<ShutDown>,
    /// A create that may still make a VM. Until it is settled, the absence of the VM proves nothing.
    pub pending_create: Option<PendingCreate>,
    /// Whether an unanswered create may have made a second VM, in addition to the known VM.
    pub may_have_second_vm: bool,
    /// Whether the driver terminally refused every create. Such a create made no VM, but may have made
    /// something else. The driver may refuse the same spec again.
    pub refused: bool,
    /// When to check again while the VM still exists.
    pub requeue_after: Duration,
}

/// The grace period of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutDown {
    /// The length of the grace period.
    pub grace: Duration,
    /// When the driver accepted the shutdown, which starts the grace period. `None` before that.
    pub accepted: Option<Timestamp>,
    /// Whether this is the last attempt. If it fails, the deletion continues.
    pub last_try: bool,
}

impl ShutDown {
    /// Returns the rest of the grace period.
    pub fn left(&self, now: Timestamp) -> Duration {
        let passed = self.accepted.and_then(|accepted| elapsed(accepted, now));
        self.grace.saturating_sub(passed.unwrap_or_default())
    }
}

/// An unanswered create that may still be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCreate {
    /// When the create was issued.
    pub issued: Timestamp,
    /// The latest time when the create can be carried out.
    pub latest: Timestamp,
    /// How long the VM must be absent after the create has timed out.
    pub time: Duration,
    /// The time until one of these limits is reached.
    pub left: Duration,
}

impl PendingCreate {
    /// Returns a constant message that gives the end of the search for the VM.
    pub fn in_words(&self) -> String {
        let (issued, latest, seconds) = (self.issued, self.latest, self.time.as_secs_f64());
        format!(
            "CreateMachine at {issued:.0} was never answered and may still complete: waiting until the VM \
                has been absent for {seconds} s, or until {latest:.0}"
        )
    }
}
