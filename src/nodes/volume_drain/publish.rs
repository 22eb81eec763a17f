//! The writes: the condition and the record of the drain on the InfraMachine, and the hook on the Machine.

use kube::api::Api;
use serde_json::{Value, json};

use super::Context;
use super::plan::Observed;
use super::record::Eviction;
use super::status::{self, DrainCondition};
use crate::api::cluster_api::Machine;
use crate::api::identity;
use crate::api::progress::Task;
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock;
use crate::api::{ObjectMetaExt as _, annotations};
use crate::apiserver::{Error, NewEvent, patch_metadata, publish_status, record_progress};

/// Publishes the condition of the drain on the InfraMachine of a Machine, if it exists. Without a report,
/// removes the condition.
pub async fn publish(
    observed: &Observed,
    ctx: &Context,
    report: Option<&DrainCondition>,
) -> Result<(), Error> {
    match observed.infra() {
        Some(infra) => publish_on(infra, ctx, report).await,
        None => Ok(()),
    }
}

/// Publishes the condition on this version of an InfraMachine.
pub async fn publish_on(
    infra: &InfraMachine,
    ctx: &Context,
    report: Option<&DrainCondition>,
) -> Result<(), Error> {
    if report.is_none() && !status::is_shown(infra) {
        return Ok(());
    }
    if let Some(event) = report.and_then(|report| status::event(infra, report)) {
        record_failure(infra, ctx, event).await;
    }
    let after = status::after(infra, report, wall_clock::now());
    let api = Api::<InfraMachine>::namespaced(ctx.client.clone(), infra.metadata.namespace());
    publish_status(&api, &infra.metadata, infra.status.as_ref(), &after).await?;
    Ok(())
}

/// Records an event of the drain, and logs it if it is a warning.
pub async fn record_failure(infra: &InfraMachine, ctx: &Context, event: NewEvent) {
    let driver = identity::driver_name(infra);
    ctx.events.record_failure(infra, &driver, None, event).await;
}

/// Records the evicted pod, on the planned resource version, and returns the InfraMachine as
/// written.
pub async fn record(infra: &InfraMachine, ctx: &Context, eviction: &Eviction) -> Result<InfraMachine, Error> {
    let action = "recording the evicted pod";
    record_progress(&ctx.client, infra, Task::VolumeDrain, eviction, action).await
}

/// Patches the hook of the Machine with this UID. Returns whether that is permitted.
pub async fn write_hook(observed: &Observed, ctx: &Context, value: &Value) -> Result<bool, Error> {
    let (namespace, name, uid) = observed.machine_names();
    let body = json!({"metadata": {
        "uid": uid, "annotations": {annotations::VOLUME_DRAIN_HOOK: value},
    }});
    let api = Api::<Machine>::namespaced(ctx.client.clone(), namespace);
    match patch_metadata(&api, name, &body).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(refusal)) if refusal.code == 403 => Ok(false),
        Err(error) => Err(Error::api("writing the hook of a Machine", error)),
    }
}
