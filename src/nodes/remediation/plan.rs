//! The plan for a remediation. Pure and total.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::owner::{OwnerRemediation, RemediatedMachine};
use super::record::Record;
use crate::api::cluster_api::Cluster;
use crate::api::conditions::{self, ConditionStatus, PAUSED, READY, reason};
use crate::api::identity::{self, Adoption};
use crate::api::retry::LONG_WAIT;
use crate::api::v1alpha1::{
    InfraMachine, InfraMachineRemediation, InfraMachineRemediationStatus, RemediationPhase,
};
use crate::api::wall_clock::{remaining, until as time_until};
use crate::api::{annotation_cause, pause_causes, pause_message};
use crate::driver::{DriverState, PERMIT_WAIT, ResolveError};
use crate::in_place::hot_update::InPlaceUpdate;
use crate::reconcile::Requeue;
use crate::reconcile::caches::machine_owner;
use cmi_driver::{Operation, ProviderId, ProviderSpec};

#[cfg(test)]
mod tests;

/// How long a Node may be healthy before the plan still restarts the VM, or leaves the Machine to its owner.
/// A MachineHealthCheck evaluates a Machine every 15 s at the earliest, and may be about to find it healthy.
const NOTICE: Duration = Duration::from_secs(30);
/// How far the recorded time of a restart may be ahead of this clock: another replica, or the source of a
/// move, may have recorded it with another clock. A later time is wrong, and gives the Node no time.
const SKEW: Duration = Duration::from_secs(30);

/// The inputs of one reconcile.
pub struct Observed {
    /// The Machine that the remediation is for.
    pub owner: Owner,
    /// The Cluster that the Machine belongs to, if it exists.
    pub cluster: Option<Arc<Cluster>>,
    /// The InfraMachine that the Machine refers to, if it exists.
    pub infra: Option<InfraMachine>,
    /// The state of the driver that has its VM; `None` without an InfraMachine.
    pub driver: Option<Result<DriverState, ResolveError>>,
    /// The wall clock.
    pub now: Timestamp,
}

/// The Machine that a remediation is for.
pub enum Owner {
    /// The remediation names no Machine.
    None,
    /// The named Machine does not exist.
    Missing,
    /// The Machine exists.
    Found(Box<RemediatedMachine>),
}

impl Owner {
    /// The Machine, if it exists.
    pub fn machine(&self) -> Option<&RemediatedMachine> {
        match self {
            Self::Found(machine) => Some(machine),
            Self::None | Self::Missing => None,
        }
    }
}

/// The next step of a remediation.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// Do nothing, and write nothing.
    NoOp,
    /// Do nothing for now, and write nothing.
    Later(Requeue),
    /// Publish that the remediation is paused, with the cause.
    Pause(String),
    /// Publish the state, here and on the Machine.
    Publish(RemediationState),
    /// Restart the VM.
    Restart(Box<Restart>),
}

/// The state of a remediation.
#[derive(Clone, Debug, PartialEq)]
pub struct RemediationState {
    /// The phase.
    pub phase: RemediationPhase,
    /// The status of the `Ready` condition.
    pub ready: ConditionStatus,
    /// The reason of the `Ready` condition.
    pub reason: String,
    /// The message of the `Ready` condition.
    pub message: String,
    /// The condition for the owner, to be published on the Machine.
    pub owner_remediation: Option<OwnerRemediation>,
    /// When to reconcile the remediation again.
    pub requeue: Requeue,
}

/// A permitted restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Restart {
    /// The record with this restart.
    pub record: Record,
    /// The record without this restart.
    pub before: Record,
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// The spec that the VM was made from, with its tags.
    pub spec: ProviderSpec,
}

/// A VM that may be restarted.
struct Vm {
    provider_id: ProviderId,
    spec: ProviderSpec,
}

/// Plans a remediation.
pub fn plan(remediation: &InfraMachineRemediation, observed: &Observed) -> Plan {
    if remediation.metadata.deletion_timestamp.is_some() {
        return Plan::NoOp;
    }
    let machine = match &observed.owner {
        Owner::Found(machine) => machine,
        Owner::None => {
            return waiting(
                reason::WAITING_FOR_OWNER,
                "no Machine owns the remediation: only MachineHealthChecks create remediations",
            );
        }
        Owner::Missing => {
            return waiting(
                reason::WAITING_FOR_OWNER,
                "the Machine that owns the remediation does not exist",
            );
        }
    };
    let infra = observed.infra.as_ref();
    let (own, of) = (&remediation.metadata.name, &machine.metadata.name);
    if own != of {
        let message = format!(
            "the owner Machine `{}` has another name than the remediation, so no VM is restarted: only \
                MachineHealthChecks create remediations",
            of.as_deref().unwrap_or_default()
        );
        return waiting(reason::WAITING_FOR_OWNER, &message);
    }
    let Some(cluster) = &observed.cluster else {
        return Plan::Later(Requeue::OnChange);
    };
    if let Some(by) = paused(remediation, machine, cluster, infra) {
        return Plan::Pause(by);
    }
    if machine.metadata.deletion_timestamp.is_some() || machine.is_left_to_its_owner() {
        return left_to_owner(remediation);
    }
    // Either the remediation is about to be deleted, or the Machine about to become unhealthy. Both enqueue
    // it.
    if machine.is_healthy() {
        return Plan::Later(Requeue::OnChange);
    }
    // The VM may run as a Node already. If the remediation failed, the owner would replace the Machine, and a
    // second VM would replace the VM to adopt.
    let is_to_be_adopted = |infra| Adoption::of(infra) == Adoption::Asked;
    if infra.is_some_and(is_to_be_adopted) {
        return waiting(
            reason::WAITING_FOR_VIRTUAL_MACHINE,
            "the driver has not confirmed the VM that the InfraMachine adopts: no restart or replacement \
                until then",
        );
    }
    let vm = match vm_of(machine, infra) {
        Ok(vm) => vm,
        Err(why) => return without_vm(remediation, machine, why, observed.now),
    };
    let record = Record::of(remediation.metadata.annotations.as_ref());
    let issued_at = record
        .issued_at
        .filter(|at| time_until(*at, observed.now) <= SKEW);
    let began = issued_at.map(|at| node_time_begins(remediation, at));
    if let Some(left) = began.and_then(|at| remaining(at, remediation.spec.timeout(), observed.now)) {
        return restarting(remediation, record, left, observed.now);
    }
    if record.count >= remediation.spec.retry_limit() {
        return exhausted(remediation, machine, observed.now);
    }
    let driver = match &observed.driver {
        Some(Ok(DriverState::Known(driver))) => driver,
        Some(Ok(DriverState::Unknown(status))) => {
            let message = format!("cannot get the capabilities of the driver: {}", status.message());
            return refused(status.code().name(), message, Requeue::BackOff(Duration::ZERO));
        }
        Some(Ok(DriverState::Pending)) | None => return Plan::Later(Requeue::After(PERMIT_WAIT)),
        Some(Err(unresolved)) => {
            let requeue = Requeue::After(LONG_WAIT);
            return refused(reason::DRIVER_NOT_CONFIGURED, unresolved.to_string(), requeue);
        }
    };
    if !driver.capabilities.supports(Operation::RestartMachine) {
        return if driver.is_current {
            let message = format!("driver `{}` does not implement RestartMachine", driver.name);
            unless_healthy(remediation, machine, observed.now, || {
                Plan::Publish(hand_over(reason::RESTART_NOT_POSSIBLE, message))
            })
        } else {
            Plan::Later(Requeue::After(PERMIT_WAIT))
        };
    }
    unless_healthy(remediation, machine, observed.now, || {
        Plan::Restart(Box::new(Restart {
            record: record.and_one_at(observed.now),
            before: record,
            provider_id: vm.provider_id,
            spec: vm.spec,
        }))
    })
}

/// Leaves the Machine to its owner.
pub fn hand_over(reason: &'static str, message: String) -> RemediationState {
    RemediationState {
        phase: RemediationPhase::Replacing,
        ready: ConditionStatus::True,
        reason: reason.to_owned(),
        message: format!("{message}; the owner of the Machine replaces it"),
        owner_remediation: Some(OwnerRemediation {
            owner_must_remediate: true,
            reason,
            message,
        }),
        requeue: Requeue::OnChange,
    }
}

/// The state after the restart with this number.
pub fn restarted(remediation: &InfraMachineRemediation, record: Record, now: Timestamp) -> RemediationState {
    let message = format!("{}; {}", number(remediation, record), until(remediation, record));
    RemediationState {
        phase: RemediationPhase::Restarting,
        ready: ConditionStatus::True,
        reason: reason::RESTARTED.to_owned(),
        owner_remediation: Some(OwnerRemediation {
            owner_must_remediate: false,
            reason: reason::RESTARTED,
            message: message.clone(),
        }),
        message,
        requeue: after_timeout(remediation, record, now),
    }
}

/// The state when it is unknown whether the restart with this number was made.
pub fn unanswered(
    remediation: &InfraMachineRemediation,
    record: Record,
    (reason, why): (&str, &str),
    now: Timestamp,
) -> RemediationState {
    RemediationState {
        phase: RemediationPhase::Restarting,
        ready: ConditionStatus::False,
        reason: reason.to_owned(),
        message: format!(
            "{}: {why}; {}",
            number(remediation, record),
            until(remediation, record)
        ),
        owner_remediation: None,
        requeue: after_timeout(remediation, record, now),
    }
}

/// The state when no restart was made, with the cause.
pub fn not_done(reason: &str, message: String, requeue: Requeue) -> RemediationState {
    RemediationState {
        phase: RemediationPhase::Waiting,
        ready: ConditionStatus::False,
        reason: reason.to_owned(),
        message,
        owner_remediation: None,
        requeue,
    }
}

fn refused(reason: &str, message: String, requeue: Requeue) -> Plan {
    Plan::Publish(not_done(reason, message, requeue))
}

fn waiting(reason: &str, message: &str) -> Plan {
    refused(reason, message.to_owned(), Requeue::OnChange)
}

fn left_to_owner(remediation: &InfraMachineRemediation) -> Plan {
    let status = remediation.status.as_ref();
    let is_replacing =
        |status: &&InfraMachineRemediationStatus| status.phase == Some(RemediationPhase::Replacing);
    let status = status.filter(is_replacing);
    if status.is_some() && is_observed(remediation) {
        return Plan::Later(Requeue::OnChange);
    }
    // A change of the spec comes too late, and the cause stays.
    let shown = status.and_then(|status| conditions::get(&status.conditions, READY));
    let (reason, message) = shown.map_or(
        (
            reason::LEFT_TO_OWNER,
            "the owner of the Machine replaces it, or the Machine is being deleted",
        ),
        |shown| (shown.reason.as_str(), shown.message.as_str()),
    );
    Plan::Publish(RemediationState {
        phase: RemediationPhase::Replacing,
        ready: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
        owner_remediation: None,
        requeue: Requeue::OnChange,
    })
}

/// Gives a Machine without a VM as much time to get a VM as a restart gets.
fn without_vm(
    remediation: &InfraMachineRemediation,
    machine: &RemediatedMachine,
    why: &str,
    now: Timestamp,
) -> Plan {
    let created = remediation
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0);
    match created.and_then(|created| remaining(created, remediation.spec.timeout(), now)) {
        Some(left) => refused(
            reason::WAITING_FOR_VIRTUAL_MACHINE,
            why.to_owned(),
            Requeue::After(left),
        ),
        None => unless_healthy(remediation, machine, now, || {
            Plan::Publish(hand_over(reason::RESTART_NOT_POSSIBLE, why.to_owned()))
        }),
    }
}

fn exhausted(remediation: &InfraMachineRemediation, machine: &RemediatedMachine, now: Timestamp) -> Plan {
    unless_healthy(remediation, machine, now, || {
        let message = format!(
            "the VM was restarted {} times, the limit, and the Machine is still unhealthy {} s after the \
                last restart",
            remediation.spec.retry_limit(),
            remediation.spec.timeout().as_secs()
        );
        Plan::Publish(hand_over(reason::RESTARTS_EXHAUSTED, message))
    })
}

/// When the time starts within which a Node must become healthy after a restart: at the restart, but not
/// before the last pause ended or this remediation was created. No MachineHealthCheck evaluates a Machine
/// during a pause, and a move creates the remediation again.
fn node_time_begins(remediation: &InfraMachineRemediation, issued_at: Timestamp) -> Timestamp {
    let metadata = &remediation.metadata;
    let made = metadata.creation_timestamp.as_ref().map(|time| time.0);
    [made, resumed_at(remediation)]
        .into_iter()
        .flatten()
        .fold(issued_at, Timestamp::max)
}

/// When the last pause ended; `None` during a pause, or before the first reconcile.
fn resumed_at(remediation: &InfraMachineRemediation) -> Option<Timestamp> {
    let conditions = &remediation.status.as_ref()?.conditions;
    let paused = conditions::get(conditions, PAUSED)?;
    (!conditions::is_true(conditions, PAUSED)).then_some(paused.last_transition_time.0)
}

/// The plan, unless the Node is healthy and the MachineHealthCheck may be about to see that. It evaluates
/// every 15 s at the earliest, also when a pause ends. Without a report that the Machine is unhealthy, the
/// health of the Node decides.
fn unless_healthy(
    remediation: &InfraMachineRemediation,
    machine: &RemediatedMachine,
    now: Timestamp,
    plan: impl FnOnce() -> Plan,
) -> Plan {
    let Some(since) = machine.node_is_healthy_since() else {
        return plan();
    };
    if !machine.is_unhealthy() {
        return waiting(
            reason::WAITING_FOR_HEALTH_CHECK,
            "the Node is healthy, and no MachineHealthCheck marks the Machine as unhealthy: a \
                MachineHealthCheck deletes this remediation; without one, delete it by hand",
        );
    }
    let since = resumed_at(remediation).map_or(since, |resumed| since.max(resumed));
    match remaining(since, NOTICE, now) {
        Some(left) => Plan::Later(Requeue::After(left)),
        None => plan(),
    }
}

/// A restart is in progress. A status that shows the restart stays, with the limits of a changed spec. A
/// status without it is from a process that ended after it had recorded the restart.
fn restarting(remediation: &InfraMachineRemediation, record: Record, left: Duration, now: Timestamp) -> Plan {
    let status = remediation.status.as_ref();
    let shown = status.filter(|status| {
        let count = status.retry_count.and_then(|count| u32::try_from(count).ok());
        count == Some(record.count) && status.phase == Some(RemediationPhase::Restarting)
    });
    match shown {
        Some(_) if is_observed(remediation) => Plan::Later(Requeue::After(left)),
        Some(status) if conditions::is_true(&status.conditions, READY) => {
            Plan::Publish(restarted(remediation, record, now))
        }
        Some(_) | None => Plan::Publish(unshown(remediation, record, left)),
    }
}

/// Whether the status describes the spec. Users may change the spec at any time.
fn is_observed(remediation: &InfraMachineRemediation) -> bool {
    let status = remediation.status.as_ref();
    status.and_then(|status| status.observed_generation) == remediation.metadata.generation
}

/// The recorded restarts, without an answer.
fn unshown(remediation: &InfraMachineRemediation, record: Record, left: Duration) -> RemediationState {
    let message = format!(
        "{}, and the answer is unknown; {}",
        number(remediation, record),
        until(remediation, record)
    );
    RemediationState {
        phase: RemediationPhase::Restarting,
        ready: ConditionStatus::Unknown,
        reason: reason::RESTARTED.to_owned(),
        message,
        owner_remediation: None,
        requeue: Requeue::After(left),
    }
}

fn number(remediation: &InfraMachineRemediation, record: Record) -> String {
    format!(
        "called RestartMachine {} of at most {} times",
        record.count,
        remediation.spec.retry_limit()
    )
}

fn until(remediation: &InfraMachineRemediation, record: Record) -> String {
    let until = record.issued_at.and_then(|at| {
        node_time_begins(remediation, at)
            .checked_add(remediation.spec.timeout())
            .ok()
    });
    match until {
        Some(until) => format!("waiting for the Node until {until:.0}"),
        None => "the Node has no time left to become ready".to_owned(),
    }
}

fn after_timeout(remediation: &InfraMachineRemediation, record: Record, now: Timestamp) -> Requeue {
    let left = record
        .issued_at
        .and_then(|at| remaining(node_time_begins(remediation, at), remediation.spec.timeout(), now));
    Requeue::After(left.unwrap_or_default())
}

fn paused(
    remediation: &InfraMachineRemediation,
    machine: &RemediatedMachine,
    cluster: &Cluster,
    infra: Option<&InfraMachine>,
) -> Option<String> {
    let mut causes = pause_causes(remediation, cluster.is_paused());
    causes.extend(annotation_cause("Machine", &machine.metadata));
    causes.extend(infra.into_iter().flat_map(|infra| pause_causes(infra, false)));
    pause_message(&causes)
}

/// The VM of a Machine, if this provider created it and it is provisioned, or else the cause.
fn vm_of(machine: &RemediatedMachine, infra: Option<&InfraMachine>) -> Result<Vm, &'static str> {
    let reference = &machine.spec.infrastructure_ref;
    if !reference.is_to::<InfraMachine>() {
        return Err("spec.infrastructureRef of the Machine names no InfraMachine");
    }
    let infra = infra.ok_or("the InfraMachine of the Machine does not exist")?;
    let owner = machine_owner(&infra.metadata).map(|owner| owner.uid.as_str());
    if owner != machine.metadata.uid.as_deref() {
        return Err("another Machine owns the InfraMachine that spec.infrastructureRef names");
    }
    if infra.metadata.deletion_timestamp.is_some() {
        return Err("the InfraMachine is being deleted");
    }
    let provider_id = infra.spec.provider_id.as_deref().and_then(|id| id.parse().ok());
    let provider_id = provider_id.ok_or("the Machine has no VM to restart yet")?;
    // Cluster API manages an update in place without this provider: another extension may be at work on the
    // VM.
    if InPlaceUpdate::of(infra) == InPlaceUpdate::NotRequested {
        return Err("another extension updates the VM in place");
    }
    // A VM that is not the provider's own is left alone.
    let made = identity::bound(infra).ok_or("this provider did not create the VM")?;
    Ok(Vm {
        provider_id,
        spec: made.provider_spec,
    })
}
