//! Publishes the result of a reconcile: finalizer and cluster id, status, events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch};
use serde_json::json;

use super::Context;
use super::plan::{Connectivity, Plan, Transition, Zones, new_failure, report_connectivity, status};
use crate::api::conditions::{self, DELETING, READY, reason};
use crate::api::v1alpha1::InfraCluster;
use crate::api::wall_clock;
use crate::api::{CLUSTER_FINALIZER, ObjectMetaExt as _, annotations};
use crate::apiserver::{Error, NewEvent, finalizers, patch_metadata, patch_params, publish_status};
use crate::reconcile::Requeue;
use cmi_driver::{Code, Operation};

/// Writes finalizer and cluster id first, then the status. Skips each where it is unchanged.
pub(super) async fn publish(
    infra: &InfraCluster,
    ctx: &Context,
    plan: &Plan,
    zones: &Zones,
    connectivity: Option<&Connectivity>,
) -> Result<(), Error> {
    let namespace = infra.metadata.namespace();
    let name = infra.metadata.name();
    let api: Api<InfraCluster> = Api::namespaced(ctx.client.clone(), namespace);
    let metadata = match plan {
        Plan::Provision { cluster_id, .. } => claim(infra, &api, cluster_id).await?,
        _ => infra.metadata.clone(),
    };
    let now = wall_clock::now();
    let after = status(infra, plan, zones, now);
    let failure =
        new_failure(infra, &after, zones).map(|(reason, message)| (reason.to_owned(), message.to_owned()));
    let (after, transition) = match connectivity {
        Some(connectivity) => report_connectivity(infra, after, zones, connectivity, now),
        None => (after, None),
    };
    publish_status(&api, &metadata, infra.status.as_ref(), &after).await?;
    if let Some(event) = wait_event(infra, plan) {
        ctx.events.record(infra, event).await;
    }
    if let Some((reason, text)) = failure {
        tracing::warn!(
            infra_cluster = format!("{namespace}/{name}"),
            code = reason,
            why = text,
            "cannot list failure domains"
        );
        let event = NewEvent::warning(reason, Operation::ListZones.name(), text);
        ctx.events.record(infra, event).await;
    }
    if let Some(transition) = transition {
        ctx.events.record(infra, event(transition)).await;
    }
    Ok(())
}

/// Returns the event for the start or the end of an outage.
fn event(transition: Transition) -> NewEvent {
    let action = Operation::Probe.name();
    match transition {
        Transition::Lost(message) => NewEvent::warning(Code::Unavailable.name(), action, message),
        Transition::Back => NewEvent::normal(reason::REACHABLE, action, "the driver is reachable again"),
    }
}

/// Writes the finalizer and the cluster id, unless both are there, and returns the object's metadata.
async fn claim(infra: &InfraCluster, api: &Api<InfraCluster>, cluster_id: &str) -> Result<ObjectMeta, Error> {
    let metadata = &infra.metadata;
    let carried = metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotations::CLUSTER_ID));
    let has_finalizer = infra.metadata.has_finalizer(CLUSTER_FINALIZER);
    if has_finalizer && carried.is_some_and(|carried| carried == cluster_id) {
        return Ok(metadata.clone());
    }
    let action = "writing finalizer and cluster id";
    let mut patch = json!({
        "resourceVersion": metadata.resource_version,
        "annotations": {annotations::CLUSTER_ID: cluster_id},
    });
    if !has_finalizer {
        let mut all = finalizers(api, metadata, action).await?;
        all.push(CLUSTER_FINALIZER.to_owned());
        patch["finalizers"] = json!(all);
    }
    let body = json!({"metadata": patch});
    let patched = api
        .patch(metadata.name(), &patch_params(), &Patch::Merge(&body))
        .await;
    Ok(patched.map_err(|error| Error::api(action, error))?.metadata)
}

/// Removes only this provider's finalizer.
pub(super) async fn release(infra: &InfraCluster, ctx: &Context) -> Result<Requeue, Error> {
    let action = "removing the finalizer";
    let metadata = &infra.metadata;
    let api: Api<InfraCluster> = Api::namespaced(ctx.client.clone(), metadata.namespace());
    let mut rest = finalizers(&api, metadata, action).await?;
    rest.retain(|name| name != CLUSTER_FINALIZER);
    let body = json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": rest}});
    let released = patch_metadata(&api, metadata.name(), &body).await;
    match released.map_err(|error| Error::api(action, error)) {
        // The object was deleted with its last finalizer, or by another client.
        Ok(_) | Err(Error::Gone { .. }) => Ok(Requeue::OnChange),
        Err(error) => Err(error),
    }
}

/// Returns the event for a wait that the status does not report yet.
fn wait_event(infra: &InfraCluster, plan: &Plan) -> Option<NewEvent> {
    let (condition, reason, message, action) = match plan {
        Plan::ReportMissingOwner(why) => (READY, reason::WAITING_FOR_OWNER, why, "Reconcile"),
        Plan::Hold { reason, message } => (DELETING, *reason, message, "Delete"),
        Plan::NoOp | Plan::Pause(_) | Plan::AwaitOwner(_) | Plan::Provision { .. } | Plan::Release => {
            return None;
        }
    };
    let before = infra.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let is_said = conditions::get(before, condition).is_some_and(|shown| shown.reason == reason);
    (!is_said).then(|| NewEvent::warning(reason, action, message))
}
