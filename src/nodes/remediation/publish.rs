//! The writes of a reconcile: on the Machine, for core's controllers, and the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch};
use serde_json::json;

use super::Context;
use super::gather::{Gathered, machine_of, machines};
use super::owner::{OwnerRemediation, RemediatedMachine};
use super::plan::RemediationState;
use super::record::Record;
use crate::api::ObjectMetaExt as _;
use crate::api::conditions::{self, ConditionStatus, PAUSED, READY, Setter, reason};
use crate::api::v1alpha1::{InfraMachineRemediation, InfraMachineRemediationStatus};
use crate::api::wall_clock;
use crate::apiserver::{Error, NewEvent, patch_metadata, patch_params, publish_status};

/// How often a write to a Machine is tried.
const TRIES: u32 = 3;

/// Publishes the state of a remediation, first on the Machine, because its owner waits for that. Then it
/// writes the status on the version of `metadata`.
pub async fn publish(
    gathered: &Gathered,
    metadata: &ObjectMeta,
    ctx: &Context,
    record: Record,
    outcome: &RemediationState,
) -> Result<(), Error> {
    if let (Some(machine), Some(owner_remediation)) =
        (gathered.observed.owner.machine(), &outcome.owner_remediation)
    {
        let is_new = report_to_machine(ctx, gathered.namespace(), machine, owner_remediation).await?;
        if is_new && owner_remediation.owner_must_remediate {
            record_failure(gathered, ctx, failure_event(outcome)).await;
        }
    }
    let status = status(&gathered.remediation, record, outcome, wall_clock::now());
    write(&gathered.remediation, metadata, ctx, &status).await
}

/// Records an event of the remediation, and logs it if it is a warning.
pub async fn record_failure(gathered: &Gathered, ctx: &Context, event: NewEvent) {
    let driver = gathered.infra_and_driver().map(|(_, driver)| driver.name());
    let (driver, remediation) = (driver.unwrap_or_default(), &gathered.remediation);
    ctx.events.record_failure(remediation, driver, None, event).await;
}

/// The event of a Machine that its owner has to replace.
fn failure_event(outcome: &RemediationState) -> NewEvent {
    NewEvent::warning(&outcome.reason, "Replace", &outcome.message)
}

/// Patches the record of restarts, on the resource version of the read.
pub async fn write_record(
    ctx: &Context,
    namespace: &str,
    metadata: &ObjectMeta,
    record: Record,
) -> Result<ObjectMeta, Error> {
    let name = metadata.name();
    let body = json!({"metadata": {
        "resourceVersion": metadata.resource_version, "annotations": record.annotations(),
    }});
    let api = Api::<InfraMachineRemediation>::namespaced(ctx.client.clone(), namespace);
    let written = patch_metadata(&api, name, &body).await;
    written.map_err(|error| Error::api("patching the annotations restarts and restart-issued-at", error))
}

/// Publishes that the remediation is paused, with the cause.
pub async fn publish_pause(
    remediation: &InfraMachineRemediation,
    ctx: &Context,
    by: &str,
) -> Result<(), Error> {
    let (metadata, now) = (&remediation.metadata, wall_clock::now());
    let mut status = remediation.status.clone().unwrap_or_default();
    let mut conditions = Setter::new(&mut status.conditions, metadata, now);
    conditions.set(PAUSED, ConditionStatus::True, reason::PAUSED, by);
    write(remediation, &remediation.metadata, ctx, &status).await
}

/// Publishes that the remediation is no longer paused, if its status shows a pause. The rest of the status
/// stays.
pub async fn publish_resumption(remediation: &InfraMachineRemediation, ctx: &Context) -> Result<(), Error> {
    let Some(mut status) = remediation.status.clone() else {
        return Ok(());
    };
    if !conditions::is_true(&status.conditions, PAUSED) {
        return Ok(());
    }
    let mut conditions = Setter::new(&mut status.conditions, &remediation.metadata, wall_clock::now());
    conditions.set(PAUSED, ConditionStatus::False, reason::NOT_PAUSED, "");
    write(remediation, &remediation.metadata, ctx, &status).await
}

/// Writes the Machine's conditions for the remediation. Other controllers write the Machine's conditions,
/// too, especially its MachineHealthCheck. So this reads the current conditions, and leaves a Machine that is
/// healthy again. Returns whether it changed any.
async fn report_to_machine(
    ctx: &Context,
    namespace: &str,
    machine: &RemediatedMachine,
    owner_remediation: &OwnerRemediation,
) -> Result<bool, Error> {
    let mut machine = machine.clone();
    let mut tries = 1;
    loop {
        let written = write_conditions(ctx, namespace, &machine, owner_remediation).await;
        let Err(Error::Conflict { action }) = written else {
            return written;
        };
        let meta = &machine.metadata;
        let (name, uid) = (meta.name.as_deref(), meta.uid.as_deref());
        let found = machine_of(ctx, namespace, name.unwrap_or_default(), uid.unwrap_or_default()).await?;
        machine = found.ok_or(Error::Gone { action })?;
        tries += 1;
        if tries > TRIES || owner_remediation.owner_must_remediate && machine.is_healthy() {
            return Err(Error::Conflict { action });
        }
    }
}

async fn write_conditions(
    ctx: &Context,
    namespace: &str,
    machine: &RemediatedMachine,
    owner_remediation: &OwnerRemediation,
) -> Result<bool, Error> {
    let Some(conditions) = machine.with(owner_remediation, wall_clock::now()) else {
        return Ok(false);
    };
    let body = json!({
        "metadata": {"resourceVersion": machine.metadata.resource_version},
        "status": {"conditions": conditions},
    });
    let name = machine.metadata.name();
    let action = "writing the conditions of the remediated Machine";
    machines(ctx, namespace)
        .patch_status(name, &patch_params(), &Patch::Merge(&body))
        .await
        .map_err(|error| Error::api(action, error))?;
    Ok(true)
}

async fn write(
    remediation: &InfraMachineRemediation,
    metadata: &ObjectMeta,
    ctx: &Context,
    status: &InfraMachineRemediationStatus,
) -> Result<(), Error> {
    let namespace = metadata.namespace();
    let api = Api::<InfraMachineRemediation>::namespaced(ctx.client.clone(), namespace);
    publish_status(&api, metadata, remediation.status.as_ref(), status).await?;
    Ok(())
}

/// The status after a reconcile.
fn status(
    remediation: &InfraMachineRemediation,
    record: Record,
    outcome: &RemediationState,
    now: Timestamp,
) -> InfraMachineRemediationStatus {
    let before = remediation.status.clone().unwrap_or_default();
    let mut conditions = before.conditions;
    let mut shown = Setter::new(&mut conditions, &remediation.metadata, now);
    shown.set(READY, outcome.ready, &outcome.reason, &outcome.message);
    shown.set(PAUSED, ConditionStatus::False, reason::NOT_PAUSED, "");
    InfraMachineRemediationStatus {
        phase: Some(outcome.phase),
        retry_count: Some(i32::try_from(record.count).unwrap_or(i32::MAX)),
        last_remediated: record.issued_at.map(Time),
        conditions,
        observed_generation: remediation.metadata.generation,
    }
}
