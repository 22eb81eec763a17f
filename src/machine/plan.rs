//! What has to be done for a machine: every rule of the contract, without a client and without a driver.
//!
//! [`plan`] is total: for every object and every observation there is exactly one [`Plan`].

mod difference;
mod steps;
#[cfg(test)]
mod tests;
mod waits;

use std::time::{Duration, Instant};

use jiff::Timestamp;

pub use self::steps::{Claim, Delete, Hold, Plan, Provision, Release, Update};
pub use self::waits::{is_unsettled, pace};

use self::difference::difference;
use self::waits::{look_up_wait, pace_of_deletion, retry_wait, until_settling};
use super::identity::{self, InvalidSpec, MachineId, Role};
use super::memory::{Note, Suspicion};
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::conditions::{self, reason};
use crate::api::labels::{self, Instance};
use crate::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use crate::api::{MACHINE_FINALIZER, paused_by};
use crate::driver::{Capabilities, Code, Operation, ProviderId, ProviderSpec};
use crate::provider::TURN_WAIT;

/// What was read for one reconcile.
pub struct Observed<'a> {
    /// The Machine that owns this one.
    pub owner: Owner<'a>,
    /// The Cluster it belongs to, when it is there.
    pub cluster: Option<&'a Cluster>,
    /// The id that drivers know the Cluster by; `None` without a Cluster.
    pub cluster_id: Option<String>,
    /// The configured driver.
    pub driver: Driver<'a>,
    /// What violates a limit that neither the API server nor the tags know.
    pub violation: Option<String>,
    /// What is remembered of the last reconciles.
    pub note: &'a Note,
    /// Fingerprint of all that may change the outcome of a failed call.
    pub inputs: u64,
    /// Which driver was met; see [`crate::driver::Driver::incarnation`].
    pub incarnation: u64,
    /// The wall clock.
    pub now: Timestamp,
    /// The monotonic clock.
    pub instant: Instant,
}

/// The controller owner of kind Machine.
pub enum Owner<'a> {
    /// There is none: nothing may be written.
    None,
    /// It is named but not in the cache.
    Missing,
    /// It is there.
    Found(&'a Machine),
}

/// The configured driver of a machine.
pub enum Driver<'a> {
    /// It has said what it offers.
    Known(DriverFacts<'a>),
    /// It could never be asked what it offers: nothing may be assumed.
    OutOfContact(Code, String),
    /// It has not said yet, and too many ask it at the moment.
    Busy,
    /// There is none, or not for this namespace.
    NotConfigured(String),
}

/// What a plan needs to know of a driver.
pub struct DriverFacts<'a> {
    /// The name it is configured under.
    pub name: &'a str,
    /// What it offers.
    pub capabilities: &'a Capabilities,
    /// Whether it has said so since it was met; else it may be another by now, and nothing is refused in its name.
    pub current: bool,
    /// Whether it answered lately.
    pub reachable: bool,
}

/// How long the guest gets to shut down when the object does not say.
const SHUTDOWN_TIMEOUT: i32 = 60;
/// How long to wait for an answer that only a person or a configuration can change.
const LONG_WAIT: Duration = crate::driver::retry::LONG_WAIT;

/// What has to be done for a machine.
pub fn plan(machine: &InfraMachine, seen: &Observed<'_>) -> Plan {
    if machine.metadata.deletion_timestamp.is_some() {
        plan_deletion(machine, seen)
    } else {
        plan_normal(machine, seen)
    }
}

fn plan_normal(machine: &InfraMachine, seen: &Observed<'_>) -> Plan {
    let owner = match seen.owner {
        Owner::None => return Plan::Leave("no Machine is the controller owner yet"),
        Owner::Missing => return Plan::Leave("the owner Machine is not in the cache yet"),
        Owner::Found(owner) => owner,
    };
    if has_failed_for_good(machine) {
        return Plan::Leave("failureReason is set; nothing is tried before the spec changes");
    }
    let (Some(cluster), Some(cluster_id)) = (seen.cluster, &seen.cluster_id) else {
        return Plan::Leave("the Cluster can't be found");
    };
    if let Some(hold) = paused(machine, Some(cluster)) {
        return Plan::Hold(hold);
    }
    let Some(machine_id) = MachineId::of(machine).or_else(|| MachineId::derived(machine)) else {
        return Plan::Leave("the object has no UID");
    };
    let claim = Claim {
        machine_id,
        cluster_id: identity::annotation(machine, labels::CLUSTER_ID)
            .filter(|_| MachineId::of(machine).is_some())
            .unwrap_or(cluster_id)
            .to_owned(),
        // A claim that is only made good must not say less than the last one did: a VM may exist.
        instance: identity::instance(machine),
        driver: None,
        secret: None,
        applied: None,
    };
    if machine.spec.provider_id.is_some() && MachineId::of(machine).is_none() {
        return hold(
            None,
            condition_without_calls(machine),
            reason::FOREIGN_PROVIDER_ID,
            foreign_provider_id(machine),
        );
    }
    if !is_provisioned(machine) && !cluster.infrastructure_is_provisioned() {
        let message = "waiting for the Cluster's infrastructure to be provisioned".to_owned();
        return hold(
            claim_if_missing(machine, claim),
            conditions::READY,
            reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE,
            message,
        );
    }
    let bootstrap = match &owner.spec.bootstrap.data_secret_name {
        Some(name) => name.clone(),
        None if is_provisioned(machine) => String::new(),
        None => {
            let message = "waiting for spec.bootstrap.dataSecretName of the Machine".to_owned();
            return hold(
                claim_if_missing(machine, claim),
                conditions::READY,
                reason::WAITING_FOR_BOOTSTRAP_DATA,
                message,
            );
        }
    };
    let facts = match &seen.driver {
        Driver::Known(facts) => facts,
        // Nothing is known that could take the refusal back.
        Driver::OutOfContact(..) if is_refused_uncalled(machine) => {
            return Plan::Hold(Hold::silent(TURN_WAIT));
        }
        Driver::OutOfContact(code, message) => return Plan::OutOfContact(*code, message.clone()),
        Driver::Busy => return Plan::Hold(Hold::silent(TURN_WAIT)),
        Driver::NotConfigured(message) => {
            return no_driver(machine, claim_if_missing(machine, claim), message);
        }
    };
    let wanted = wanted_spec(machine, owner, seen, facts, &claim);
    if is_provisioned(machine) {
        return plan_provisioned(machine, seen, facts, claim, wanted);
    }
    match wanted {
        Ok(wanted) => plan_provisioning(machine, seen, facts, claim, wanted, bootstrap),
        Err(invalid) if facts.current => Plan::Refuse { invalid, again: None },
        // It is asked anew first; who waits for that is called.
        Err(_) => Plan::Hold(Hold::silent(TURN_WAIT)),
    }
}

fn plan_provisioning(
    machine: &InfraMachine,
    seen: &Observed<'_>,
    facts: &DriverFacts<'_>,
    claim: Claim,
    wanted: ProviderSpec,
    bootstrap: String,
) -> Plan {
    if let Some(wait) = retry_wait(machine, seen) {
        return Plan::Hold(Hold::silent(wait.again()));
    }
    let issued = MachineId::of(machine).is_some() && identity::instance(machine) == Instance::MayExist;
    let applied = if issued {
        identity::applied_spec(machine)
    } else {
        None
    };
    let claim = Claim {
        instance: Instance::MayExist,
        driver: Some(facts.name.to_owned()),
        secret: Some(identity::credentials(machine).unwrap_or_default().to_owned()),
        applied: Some(wanted.clone()),
        ..claim
    };
    let look_up = applied.unwrap_or_else(|| wanted.clone());
    Plan::Provision(Box::new(Provision {
        claim,
        wanted,
        look_up,
        provider_id: known_provider_id(machine),
        bootstrap,
        issued,
    }))
}

fn plan_provisioned(
    machine: &InfraMachine,
    seen: &Observed<'_>,
    facts: &DriverFacts<'_>,
    claim: Claim,
    wanted: Result<ProviderSpec, InvalidSpec>,
) -> Plan {
    let Some(provider_id) = known_provider_id(machine) else {
        return Plan::Leave("provisioned, and the providerID has not been seen yet");
    };
    let offers = |operation| facts.capabilities.offers(operation);
    let applied = identity::applied_spec(machine);
    let mut again = None;
    // Before anything else: a spec that is refused, or an update that fails, must not hide that the VM is gone.
    if !offers(Operation::GetMachineStatus) {
        match (seen.note.suspicion, machine.has_vanished()) {
            (Some(Suspicion::Missing), false) => return Plan::Vanish(provider_id),
            (Some(Suspicion::Back), true) => return Plan::Reappear(provider_id),
            (Some(Suspicion::Missing), true)
            | (Some(Suspicion::Back), false)
            | (Some(Suspicion::Sign) | None, _) => {}
        }
    } else if let Some(look_up) = applied.as_ref().or(wanted.as_ref().ok()) {
        let unsettled = is_unsettled(machine);
        // A suspicion that the driver could not answer stays, and waits as any failed call does.
        let suspected = seen.note.suspicion.is_some();
        let unanswered = look_up_wait(seen).filter(|_| suspected && !seen.note.suspicion_is_new);
        again = until_settling(seen).filter(|_| unsettled).or(unanswered);
        if (suspected && unanswered.is_none()) || (unsettled && again.is_none()) {
            return Plan::Recheck(Box::new(Provision {
                claim,
                wanted: look_up.clone(),
                look_up: look_up.clone(),
                provider_id: Some(provider_id),
                bootstrap: String::new(),
                issued: true,
            }));
        }
    }
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(invalid) => return Plan::Refuse { invalid, again },
    };
    let applied = applied.unwrap_or_else(|| wanted.clone());
    let (hot, fixed): (Vec<_>, Vec<_>) = difference(&applied, &wanted).into_iter().partition(|path| {
        offers(Operation::UpdateMachine)
            && facts
                .capabilities
                .hot_updatable
                .iter()
                .any(|allowed| allowed.covers(path))
    });
    if fixed.is_empty() && (has_unfinished_update(machine) || !hot.is_empty()) {
        if let Some(wait) = retry_wait(machine, seen) {
            return Plan::Hold(Hold::silent(again.into_iter().chain(wait.again()).min()));
        }
        return Plan::Update(Box::new(Update {
            provider_id,
            applied,
            wanted,
        }));
    }
    Plan::Keep {
        reachable: Some(facts.reachable),
        fixed,
        again,
    }
}

/// Whether an update was begun that nobody saw the end of: the VM may be half way.
fn has_unfinished_update(machine: &InfraMachine) -> bool {
    machine
        .status
        .as_ref()
        .and_then(|status| status.last_operation.as_ref())
        .is_some_and(|last| last.type_ == OperationType::Update && last.state != OperationState::Successful)
}

fn plan_deletion(machine: &InfraMachine, seen: &Observed<'_>) -> Plan {
    if !has_finalizer(machine) {
        return Plan::Leave("it is being deleted and does not wait for this provider");
    }
    if let Some(hold) = paused(machine, seen.cluster) {
        return Plan::Hold(hold);
    }
    if identity::annotation(machine, labels::FORCE_DELETE) == Some("true") {
        return Plan::Release(Release::Forced);
    }
    if MachineId::of(machine).is_none() {
        let message = format!(
            "the identity annotations are gone or belong to another object, so no VM can be deleted safely; delete it by hand, then set the annotation {}=true",
            labels::FORCE_DELETE
        );
        return hold(None, conditions::DELETING, reason::FOREIGN_IDENTITY, message);
    }
    match identity::instance(machine) {
        // An id of our own writing is a VM, whatever the note says.
        Instance::None if machine.spec.provider_id.is_none() => return Plan::Release(Release::NeverCreated),
        Instance::None | Instance::MayExist => {}
    }
    let facts = match &seen.driver {
        Driver::Known(facts) => facts,
        Driver::OutOfContact(code, message) => return Plan::OutOfContact(*code, message.clone()),
        Driver::Busy => return Plan::Hold(Hold::silent(TURN_WAIT)),
        Driver::NotConfigured(message) => return no_driver(machine, None, message),
    };
    if let Some(wait) = retry_wait(machine, seen) {
        return Plan::Hold(Hold::silent(wait.again()));
    }
    let Some(spec) = identity::applied_spec(machine) else {
        let message = format!(
            "the annotation {} is gone, so no VM can be deleted safely; restore it, or delete the VM by hand and set {}=true",
            labels::APPLIED_PROVIDER_SPEC,
            labels::FORCE_DELETE
        );
        return hold(None, conditions::DELETING, reason::FOREIGN_IDENTITY, message);
    };
    let left = time_to_shut_down(machine, seen.now)
        .filter(|_| facts.capabilities.offers(Operation::ShutDownMachine));
    Plan::Delete(Box::new(Delete {
        provider_id: known_provider_id(machine),
        spec,
        shut_down: left.is_some(),
        again: pace_of_deletion(deleted_for(machine, seen.now), left),
    }))
}

fn hold(claim: Option<Claim>, condition: &'static str, reason: &'static str, message: String) -> Plan {
    Plan::Hold(Hold {
        condition,
        reason,
        message,
        claim,
        again: None,
    })
}

fn no_driver(machine: &InfraMachine, claim: Option<Claim>, message: &str) -> Plan {
    Plan::Hold(Hold {
        condition: condition_without_calls(machine),
        reason: reason::DRIVER_NOT_CONFIGURED,
        message: message.to_owned(),
        claim,
        again: Some(LONG_WAIT),
    })
}

/// The condition that says why no driver is called.
fn condition_without_calls(machine: &InfraMachine) -> &'static str {
    if machine.metadata.deletion_timestamp.is_some() {
        conditions::DELETING
    } else if is_provisioned(machine) {
        // It says nothing about the VM, so Ready stays: a MachineHealthCheck would delete the machine.
        conditions::DRIVER_REACHABLE
    } else {
        conditions::READY
    }
}

fn foreign_provider_id(machine: &InfraMachine) -> String {
    format!(
        "spec.providerID `{}` was not written by this provider, so the VM is left alone; create the machine without a providerID",
        machine.spec.provider_id.as_deref().unwrap_or_default()
    )
}

/// Who paused the machine, if anybody did (row "Pausing" of the contract).
fn paused(machine: &InfraMachine, cluster: Option<&Cluster>) -> Option<Hold> {
    let message = paused_by(machine, cluster.is_some_and(Cluster::is_paused))?;
    Some(Hold {
        condition: conditions::PAUSED,
        reason: reason::PAUSED,
        message,
        claim: None,
        again: None,
    })
}

fn wanted_spec(
    machine: &InfraMachine,
    owner: &Machine,
    seen: &Observed<'_>,
    facts: &DriverFacts<'_>,
    claim: &Claim,
) -> Result<ProviderSpec, InvalidSpec> {
    if let Some(violation) = &seen.violation {
        return Err(InvalidSpec::Violation(violation.clone()));
    }
    let labels = owner.metadata.labels.as_ref();
    let role = if labels.is_some_and(|labels| labels.contains_key(labels::CONTROL_PLANE)) {
        Role::ControlPlane
    } else {
        Role::Node
    };
    identity::tagged_spec(
        &ProviderSpec(machine.spec.provider_spec.clone()),
        facts.capabilities,
        &claim.cluster_id,
        role,
        &claim.machine_id,
        owner.spec.failure_domain.as_deref(),
    )
}

fn claim_if_missing(machine: &InfraMachine, claim: Claim) -> Option<Claim> {
    (MachineId::of(machine).is_none() || !has_finalizer(machine)).then_some(claim)
}

/// Whether the object waits for this provider when it is deleted.
pub fn has_finalizer(machine: &InfraMachine) -> bool {
    machine
        .metadata
        .finalizers
        .as_ref()
        .is_some_and(|all| all.iter().any(|name| name == MACHINE_FINALIZER))
}

/// Whether the VM was handed to Cluster API.
pub fn is_provisioned(machine: &InfraMachine) -> bool {
    machine.is_provisioned()
}

/// Whether an earlier attempt failed for good with the spec as it is now (step 2 of the normal resource). What no driver
/// was asked about is decided anew each time: it follows from what the driver says of itself, which may change.
fn has_failed_for_good(machine: &InfraMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| {
        (status.failure_reason.is_some() || status.failure_message.is_some())
            && status.observed_generation == machine.metadata.generation
    }) && !is_refused_uncalled(machine)
}

/// Whether the failure that the status shows is a refusal that no driver was called for; see
/// [`super::status`], which writes it.
pub fn is_refused_uncalled(machine: &InfraMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| {
        status.failure_reason.is_some()
            && status.last_operation.as_ref().is_some_and(|last| {
                last.state == OperationState::Failed
                    && last.operation.is_none()
                    && last.code == status.failure_reason
                    && last.message == status.failure_message
            })
    })
}

/// The id that this provider wrote.
fn known_provider_id(machine: &InfraMachine) -> Option<ProviderId> {
    machine.spec.provider_id.as_deref()?.parse().ok()
}

/// For how long the object has been deleted; a clock that was set back makes it no time.
fn deleted_for(machine: &InfraMachine, now: Timestamp) -> Duration {
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    deleted
        .and_then(|deleted| Duration::try_from(now.duration_since(deleted.0)).ok())
        .unwrap_or_default()
}

/// The time that the guest still has to shut down, if any is left.
fn time_to_shut_down(machine: &InfraMachine, now: Timestamp) -> Option<Duration> {
    let seconds = machine.spec.shutdown_timeout_seconds.unwrap_or(SHUTDOWN_TIMEOUT);
    let timeout = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    timeout
        .checked_sub(deleted_for(machine, now))
        .filter(|left| !left.is_zero())
}
