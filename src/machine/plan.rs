//! Decides the next action for a machine. Pure: no client and no driver. The rules that need an answer of the
//! driver, such as the look-up before a create, are in [`super::execute`].
//!
//! [`plan`] is total: for every object and every observation there is exactly one [`Plan`].

mod addresses;
mod adoption;
mod deletion;
mod kinds;
mod power;
mod provisioned;
#[cfg(test)]
mod tests;
mod waits;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

pub use self::addresses::claim_refused;
pub use self::adoption::{LOOK_UP_INTERVAL, cannot_look_up};
pub use self::deletion::SHUT_DOWN_TRIES;
pub use self::kinds::{
    Adopt, Claim, Delete, DriverPlan, Initialize, PendingCreate, Plan, Provision, Refresh,
    RequiredPolicyCheck, ShutDown, Update,
};
pub use self::waits::{poll_interval, restored};

use self::addresses::{with_claimed_addresses, with_recorded_addresses};
use self::adoption::{obstacle, plan_adoption};
use self::deletion::{pending_create, plan_deletion};
use self::provisioned::plan_provisioned;
use self::waits::retry_wait;
use super::outcome::{Blocked, Failure, Outcome};
use crate::admission;
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::conditions::{self, reason};
use crate::api::identity::{
    self, Adoption, IdentityTags, InvalidRecord, InvalidSpec, MadeFrom, Role, VmRecord, VmState,
    adopted_tags, given_tags,
};
use crate::api::retry::LONG_WAIT;
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::api::wall_clock::{elapsed, remaining};
use crate::api::{MACHINE_FINALIZER, ObjectMetaExt as _, annotations, labels, paused_by};
use crate::apiserver::claims::ObservedClaim;
use crate::driver::{DriverState, KnownDriver, PERMIT_WAIT, ResolveError};
use crate::reconcile::runtime_state::{Retry, RetryTrigger, RuntimeState};
use cmi_driver::{ProviderId, ProviderSpec};

/// Grace period before reporting a state that other controllers usually end.
const GRACE: Duration = Duration::from_mins(1);

/// The observations of one reconcile. They are the input of a plan.
pub struct Observed {
    /// The Machine that owns this one.
    pub owner: Owner,
    /// The machine's Cluster, if it exists.
    pub cluster: Option<Arc<Cluster>>,
    /// Why the Cluster's InfraCluster is not provisioned, as a reason, if the InfraCluster gives one.
    pub infra_cluster: Option<String>,
    /// The Cluster's id at drivers. `None` without a Cluster.
    pub cluster_id: Option<String>,
    /// The state of the machine's driver. The driver may not be configured, or not for this namespace.
    pub driver: Result<DriverState, ResolveError>,
    /// The violation of a limit that neither the API server nor the tag check covers.
    pub violation: Option<String>,
    /// A conflict with another InfraMachine that has the same providerID, during an adoption.
    pub conflict: ProviderIdConflict,
    /// The claims for the pools of the spec, in their order. `None` if they were not read.
    pub claims: Option<Vec<ObservedClaim>>,
    /// The state from earlier reconciles.
    pub state: RuntimeState,
    /// Fingerprint of everything that may change the outcome of a failed call.
    pub inputs: u64,
    /// The driver that answered, as its connection generation. See
    /// [`cmi_driver::Driver::connection_generation`].
    pub connection_generation: u64,
    /// The wall clock.
    pub now: Timestamp,
    /// The monotonic clock, read shortly after the machine.
    pub instant: Instant,
}

impl Observed {
    /// Returns the wait after the last failure, unless the inputs have changed since.
    pub fn failure(&self) -> Option<&Retry> {
        let retry = self.state.retry.as_ref();
        retry.filter(|retry| retry.inputs == self.inputs)
    }

    /// Returns the wait after the last failure, if the spec or an annotation has changed since.
    fn outdated_failure(&self) -> Option<&Retry> {
        let retry = self.state.retry.as_ref();
        retry.filter(|retry| retry.inputs != self.inputs)
    }
}

/// Another InfraMachine that has the providerID of the VM to adopt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderIdConflict {
    /// There is no such InfraMachine.
    None,
    /// The cache does not hold the object's current version, so it may lack other objects too.
    Unknown,
    /// The name of such an InfraMachine, `<namespace>/<name>`.
    Named(String),
}

/// The controller owner of kind Machine.
pub enum Owner {
    /// The machine has no owner. Nothing may be written.
    None,
    /// The owner reference names a Machine that is not in the cache.
    Missing,
    /// The Machine is in the cache.
    Found(Arc<Machine>),
}

/// Decides the next action for a machine.
pub fn plan(machine: &InfraMachine, observed: &Observed) -> Plan {
    if machine.metadata.deletion_timestamp.is_some() {
        plan_deletion(machine, observed)
    } else {
        plan_normal(machine, observed)
    }
}

fn plan_normal(machine: &InfraMachine, observed: &Observed) -> Plan {
    let owner = match &observed.owner {
        Owner::None => {
            let why = "metadata.ownerReferences names no Machine as controller";
            return plan_unattended(machine, observed, reason::WAITING_FOR_OWNER, why);
        }
        Owner::Missing => {
            let why = "the controller Machine in metadata.ownerReferences does not exist";
            return plan_unattended(machine, observed, reason::WAITING_FOR_OWNER, why);
        }
        Owner::Found(owner) => owner,
    };
    // Checked before all other waits, because an operator who paused the machine expects this message.
    if let Some(block) = paused(machine, observed.cluster.as_deref()) {
        return block.into();
    }
    let record = match VmRecord::of(machine) {
        Ok(record) => record,
        Err(invalid) => return plan_invalid_record(machine, &invalid),
    };
    // A restore from a backup drops finalizers. Deleting such an object would leave the VM behind.
    let may_have_vm = record.as_ref().is_some_and(|record| record.state.may_exist());
    let finalizer_missing = may_have_vm && !machine.metadata.has_finalizer(MACHINE_FINALIZER);
    if has_failed_for_good(machine) && !finalizer_missing && observed.outdated_failure().is_none() {
        // Nothing is tried until the spec or an annotation changes. The end of a pause is still reported.
        return Outcome::Waiting(None).into();
    }
    let Some(cluster) = &observed.cluster else {
        let why = format!("Cluster `{}` does not exist", owner.spec.cluster_name);
        return plan_unattended(machine, observed, reason::CLUSTER_NOT_FOUND, &why);
    };
    let Some(cluster_id) = &observed.cluster_id else {
        return Outcome::Unchanged(None).into();
    };
    let Some(record) = record.or_else(|| VmRecord::new(machine, cluster_id)) else {
        return Outcome::Unchanged(None).into();
    };
    let adoption = Adoption::of(machine);
    let is_foreign = machine.spec.provider_id.is_some() && !record.state.is_known();
    if is_foreign && adoption == Adoption::None {
        let (condition, message) = (condition_without_calls(machine), foreign_provider_id(machine));
        return Blocked::new(condition, reason::FOREIGN_PROVIDER_ID, message).into();
    }
    if finalizer_missing {
        return Plan::RestoreFinalizer;
    }
    // A VM would be deleted right after it is created.
    if owner.metadata.deletion_timestamp.is_some() && !machine.is_provisioned() {
        return Blocked::new(conditions::READY, reason::MACHINE_DELETED, machine_deleted(owner)).into();
    }
    if let Some(obstacle) = obstacle(machine, observed, owner, &record) {
        return obstacle.into();
    }
    if !record.state.is_known()
        && let Some(message) = refers_to_another(machine, owner)
    {
        return Blocked::new(conditions::READY, reason::NOT_REFERENCED, message).into();
    }
    let bootstrap = match bootstrap_of(owner, cluster, observed.infra_cluster.as_deref()) {
        // An existing VM needs no bootstrap data.
        _ if record.state.is_known() || adoption != Adoption::None => None,
        Ok(name) => Some(name.to_owned()),
        Err((reason, message)) => {
            let record = if_missing(machine, record);
            return Blocked {
                record,
                ..Blocked::new(conditions::READY, reason, message)
            }
            .into();
        }
    };
    let driver = match &observed.driver {
        Ok(DriverState::Known(driver)) => driver,
        // The driver's state is unknown, so nothing can revoke the refusal.
        Ok(DriverState::Unknown(_)) if is_refused_uncalled(machine) => {
            return Outcome::Waiting(Some(PERMIT_WAIT)).into();
        }
        Ok(DriverState::Unknown(status)) => {
            return Failure::capabilities_unknown(OperationType::Create, status).into();
        }
        Ok(DriverState::Pending) => return Outcome::Waiting(Some(PERMIT_WAIT)).into(),
        Err(unresolved) => {
            // An adopting machine gets no record until the driver confirms the VM.
            let record = if_missing(machine, record);
            return no_driver(machine, record.filter(|_| adoption == Adoption::None), unresolved);
        }
    };
    let wanted = wanted_spec(machine, owner, observed, driver, &record);
    match (bootstrap, wanted) {
        (None, wanted) if adoption != Adoption::None => {
            plan_adoption(machine, observed, driver, record, wanted)
        }
        (None, wanted) => plan_known(machine, observed, driver, &record, wanted),
        (Some(bootstrap), Ok(wanted)) => {
            plan_provisioning(machine, owner, observed, driver, record, wanted, bootstrap)
        }
        (Some(_), Err(invalid)) => refuse(invalid, driver),
    }
}

/// Refuses a spec, if the driver's capabilities are current.
fn refuse(invalid: InvalidSpec, driver: &KnownDriver) -> Plan {
    if driver.is_current {
        return Outcome::Refused {
            invalid,
            requeue_after: None,
        }
        .into();
    }
    // The driver's capabilities are queried first, and the machine is woken by the answer.
    Outcome::Waiting(Some(PERMIT_WAIT)).into()
}

/// Plans a machine that lacks its owner Machine or its Cluster. The report waits for a grace period: Cluster
/// API creates the object before its Machine, and a move or a restore creates the objects in sequence.
fn plan_unattended(machine: &InfraMachine, observed: &Observed, reason: &'static str, why: &str) -> Plan {
    let created = machine.metadata.creation_timestamp.as_ref();
    if let Some(left) = created.and_then(|created| remaining(created.0, GRACE, observed.now)) {
        return Outcome::Unchanged(Some(left)).into();
    }
    let message = format!("{why}: {}", what_is_left_undone(machine));
    // A paused machine gets no other write. clusterctl moves it with the Cluster, and waits for it.
    let block = match paused(machine, observed.cluster.as_deref()) {
        Some(paused) => Blocked {
            message: format!("{}; also, {message}", paused.message),
            ..paused
        },
        // The reason says nothing about a running VM, so `Ready` stays.
        None if machine.is_provisioned() => {
            Blocked::new(conditions::VIRTUAL_MACHINE_UP_TO_DATE, reason, message)
        }
        None => Blocked::new(conditions::READY, reason, message),
    };
    Outcome::Blocked(block).into()
}

/// Describes the effects when a machine can't be reconciled. A VM may exist even if the machine was never
/// provisioned.
fn what_is_left_undone(machine: &InfraMachine) -> &'static str {
    if machine.is_provisioned() {
        "its VM is not touched, and spec changes have no effect"
    } else if identity::vm_state(machine).may_exist() {
        "a VM that was created for it is not touched"
    } else {
        "no VM is created"
    }
}

/// Plans a machine whose record is invalid. No driver is called.
fn plan_invalid_record(machine: &InfraMachine, invalid: &InvalidRecord) -> Plan {
    let remedy = if machine.metadata.deletion_timestamp.is_some() {
        format!(
            "no VM can be deleted safely: restore the annotation, or delete the VM by hand and set \
                annotation {}=true",
            annotations::FORCE_DELETE
        )
    } else {
        "its VM is not touched, and none is created: restore the annotation from a backup, or remove it if \
            the object never had a VM"
            .to_owned()
    };
    let message = format!("{invalid}, so {remedy}");
    let condition = condition_without_calls(machine);
    Blocked::new(condition, reason::FOREIGN_IDENTITY, message).into()
}

/// Returns the record if the machine lacks its finalizer or record.
fn if_missing(machine: &InfraMachine, record: VmRecord) -> Option<Box<VmRecord>> {
    let has_finalizer = machine.metadata.has_finalizer(MACHINE_FINALIZER);
    (!is_identified(machine) || !has_finalizer).then(|| Box::new(record))
}

/// Returns whether the machine has a record. Without a record, the identity of a machine is its UID.
fn is_identified(machine: &InfraMachine) -> bool {
    identity::annotation(machine, annotations::VM_RECORD).is_some()
}

/// Returns a message if the owner references a different object: a Machine has one VM. Cluster API creates a
/// Machine with this reference, and sets the owner reference of the referenced object later. The reference is
/// therefore never late.
fn refers_to_another(machine: &InfraMachine, owner: &Machine) -> Option<String> {
    let referred = &owner.spec.infrastructure_ref;
    let is_this = referred.is_to::<InfraMachine>() && Some(&referred.name) == machine.metadata.name.as_ref();
    (!is_this).then(|| {
        format!(
            "spec.infrastructureRef of Machine `{}` names {} `{}` instead of this object: delete this object",
            owner.metadata.name(),
            referred.kind,
            referred.name
        )
    })
}

/// Returns the Secret with the bootstrap data once a VM may be created. Otherwise returns the reason to wait
/// and its message.
fn bootstrap_of<'a>(
    owner: &'a Machine,
    cluster: &Cluster,
    why_not: Option<&str>,
) -> Result<&'a str, (&'static str, String)> {
    if !cluster.infrastructure_is_provisioned() {
        let message = infrastructure_is_missing(cluster, why_not);
        return Err((reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE, message));
    }
    let name = owner.spec.bootstrap.data_secret_name.as_deref();
    let message = "waiting for spec.bootstrap.dataSecretName of the Machine";
    name.ok_or_else(|| (reason::WAITING_FOR_BOOTSTRAP_DATA, message.to_owned()))
}

/// Names the object that a machine waits for and the reason why that object is not ready. Leaves out the
/// message of that object, because it may change at each attempt while a fleet waits.
fn infrastructure_is_missing(cluster: &Cluster, why_not: Option<&str>) -> String {
    let Some(infra) = &cluster.spec.infrastructure_ref else {
        return "waiting for spec.infrastructureRef of the Cluster: it is not set".to_owned();
    };
    let waiting = format!("waiting for {} `{}` to be provisioned", infra.kind, infra.name);
    match why_not {
        Some(reason) => format!("{waiting}, which reports {reason}: check its conditions"),
        None => waiting,
    }
}

fn plan_provisioning(
    machine: &InfraMachine,
    owner: &Machine,
    observed: &Observed,
    driver: &KnownDriver,
    record: VmRecord,
    wanted: ProviderSpec,
    bootstrap: String,
) -> Plan {
    if let Some(wait) = retry_wait(observed) {
        return Outcome::Waiting(wait.requeue_after()).into();
    }
    let wanted = match with_claimed_addresses(machine, owner, observed, driver, &record, wanted) {
        ControlFlow::Continue(wanted) => wanted,
        ControlFlow::Break(plan) => return plan,
    };
    let look_up = match (record.state, &record.made_from) {
        (VmState::Creating { .. }, Some(made)) => made.provider_spec.clone(),
        _ => wanted.clone(),
    };
    let outdated = observed.outdated_failure();
    let earlier_create = may_be_carried_out(record.state, observed, driver);
    let pending_create =
        pending_create(record.state, observed, driver).filter(|_| earlier_create && look_up != wanted);
    DriverPlan::Provision(Box::new(Provision {
        look_up,
        made_from: made_from(machine, driver, wanted),
        record,
        bootstrap,
        is_identified: is_identified(machine),
        earlier_create,
        pending_create,
        requested: outdated.is_some_and(|wait| wait.trigger == RetryTrigger::Capacity),
    }))
    .into()
}

/// Returns whether the back end may still carry out an earlier create. That create has no answer and is
/// recent enough.
fn may_be_carried_out(state: VmState, observed: &Observed, driver: &KnownDriver) -> bool {
    let VmState::Creating { issued, several } = state else {
        return false;
    };
    let longest = driver
        .create_given_up_after
        .saturating_add(driver.create_settle_time);
    // A create in the future, after a clock was set back, still counts.
    let is_too_old = elapsed(issued, observed.now).is_some_and(|elapsed| elapsed >= longest);
    let is_answered = !several && observed.state.answered == Some(issued);
    !is_too_old && !is_answered
}

/// Returns how the VM of a machine is made.
fn made_from(machine: &InfraMachine, driver: &KnownDriver, provider_spec: ProviderSpec) -> MadeFrom {
    MadeFrom {
        driver: driver.name.to_string(),
        secret: identity::credentials(machine),
        provider_spec,
    }
}

/// Plans a machine with a confirmed VM. No other VM is ever created for it.
fn plan_known(
    machine: &InfraMachine,
    observed: &Observed,
    driver: &KnownDriver,
    record: &VmRecord,
    wanted: Result<ProviderSpec, InvalidSpec>,
) -> Plan {
    let (Some(provider_id), Some(made)) = (known_provider_id(machine), &record.made_from) else {
        return Outcome::Unchanged(None).into();
    };
    if machine.is_provisioned() {
        return plan_provisioned(machine, observed, driver, record, made, provider_id, wanted);
    }
    if let Some(wait) = retry_wait(observed) {
        return Outcome::Waiting(wait.requeue_after()).into();
    }
    DriverPlan::Refresh(Box::new(Refresh {
        look_up: made.provider_spec.clone(),
        provider_id,
        initialize: Initialize::OnTheWayUp,
        start: false,
    }))
    .into()
}

fn no_driver(machine: &InfraMachine, record: Option<Box<VmRecord>>, unresolved: &ResolveError) -> Plan {
    let message = if machine.metadata.deletion_timestamp.is_some() {
        format!(
            "{unresolved}; or delete the VM by hand, then set annotation {}=true",
            annotations::FORCE_DELETE
        )
    } else {
        unresolved.to_string()
    };
    let condition = condition_without_calls(machine);
    Blocked {
        record,
        ..Blocked::new(condition, reason::DRIVER_NOT_CONFIGURED, message).until(LONG_WAIT)
    }
    .into()
}

/// Returns the condition that shows why no driver is called.
fn condition_without_calls(machine: &InfraMachine) -> &'static str {
    if machine.metadata.deletion_timestamp.is_some() {
        conditions::DELETING
    } else if machine.is_provisioned() {
        // The condition says nothing about the VM, so Ready stays. Otherwise, a MachineHealthCheck would
        // delete the machine.
        conditions::DRIVER_REACHABLE
    } else {
        conditions::READY
    }
}

/// Returns the replacement for a plan while identities may be forged. A healthy running VM is left alone and
/// its status is not written. Otherwise, the status of the whole fleet would be written.
pub fn not_in_force(machine: &InfraMachine, plan: &Plan, why: &str) -> Plan {
    if let Plan::CallDriver(DriverPlan::Refresh(_) | DriverPlan::Update(_)) = plan {
        return Outcome::Waiting(Some(admission::CHECK_INTERVAL)).into();
    }
    let condition = condition_without_calls(machine);
    let block = Blocked::new(condition, reason::IDENTITY_NOT_GUARDED, why);
    block.until(admission::CHECK_INTERVAL).into()
}

fn foreign_provider_id(machine: &InfraMachine) -> String {
    format!(
        "spec.providerID `{}` was not written by this provider, so the VM is not touched: create the \
            machine without a providerID, or adopt the VM by annotation {}",
        machine.spec.provider_id.as_deref().unwrap_or_default(),
        annotations::ADOPT
    )
}

/// Returns the wait of a paused machine, with the object that paused it (row "Pausing" of the contract).
fn paused(machine: &InfraMachine, cluster: Option<&Cluster>) -> Option<Blocked> {
    let message = paused_by(machine, cluster.is_some_and(Cluster::is_paused))?;
    Some(Blocked::new(conditions::PAUSED, reason::PAUSED, message))
}

fn wanted_spec(
    machine: &InfraMachine,
    owner: &Machine,
    observed: &Observed,
    driver: &KnownDriver,
    record: &VmRecord,
) -> Result<ProviderSpec, InvalidSpec> {
    if let Some(violation) = &observed.violation {
        return Err(InvalidSpec::Violation(violation.clone()));
    }
    let role = role_of(owner);
    let tags = if Adoption::of(machine) == Adoption::Asked {
        given_tags(machine, &record.cluster, role).map_err(InvalidSpec::Violation)?
    } else {
        adopted_tags(record, &driver.capabilities)
            .map_err(InvalidSpec::Violation)?
            .unwrap_or_else(|| IdentityTags::own(&record.cluster, role, &record.machine))
    };
    let spec = identity::tagged_spec(
        &ProviderSpec(machine.spec.provider_spec.clone()),
        &driver.capabilities,
        &tags,
        owner.spec.failure_domain.as_deref(),
    )?;
    with_recorded_addresses(spec, record, &driver.capabilities)
}

fn role_of(owner: &Machine) -> Role {
    let labels = owner.metadata.labels.as_ref();
    if labels.is_some_and(|labels| labels.contains_key(labels::CONTROL_PLANE)) {
        Role::ControlPlane
    } else {
        Role::Node
    }
}

/// Describes a machine whose Machine is being deleted.
fn machine_deleted(owner: &Machine) -> String {
    format!(
        "Machine `{}` is being deleted, so no VM is created or changed: if the deletion lasts, check its \
            finalizers, hooks and conditions",
        owner.metadata.name()
    )
}

/// Returns whether an earlier attempt failed terminally with the current spec (step 2 of the normal
/// resource). A refusal without a driver call is decided again each time, because it follows from the
/// driver's capabilities, which may change.
fn has_failed_for_good(machine: &InfraMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| {
        (status.failure_reason.is_some() || status.failure_message.is_some())
            && status.observed_generation == machine.metadata.generation
    }) && !is_refused_uncalled(machine)
}

/// Returns whether the status shows a refusal without a driver call. [`super::status`] writes such refusals.
pub fn is_refused_uncalled(machine: &InfraMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| {
        let last = status.last_operation.as_ref();
        status.failure_reason.is_some() && last.is_some_and(|last| last.operation.is_none())
    })
}

/// Returns the id of the VM, which may no longer exist.
fn known_provider_id(machine: &InfraMachine) -> Option<ProviderId> {
    machine.spec.provider_id.as_deref()?.parse().ok()
}
