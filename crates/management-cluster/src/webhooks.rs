//! Registration of core's admission webhooks, until the API server acts by it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
    core::GroupVersionKind,
    discovery::pinned_kind,
};
use serde_json::{Value, json};

use crate::{apply::apply, eventually::eventually};

const DEADLINE: Duration = Duration::from_mins(4);

/// Registers the webhooks and returns when they are called. The API server takes note of a registration some
/// time after it was written; a test that writes in between would miss defaults.
pub(crate) async fn register(client: &Client, registrations: Vec<Value>) -> Result<()> {
    for registration in registrations {
        apply(client, registration)
            .await
            .context("registering the webhooks of core")?;
    }
    wait_until_in_effect(client, true).await
}

/// Removes the registrations and returns when the webhooks are no longer called.
pub(crate) async fn unregister(client: &Client, registrations: Vec<Value>) -> Result<()> {
    for registration in registrations {
        remove(client, registration)
            .await
            .context("removing the webhooks of core")?;
    }
    wait_until_in_effect(client, false).await
}

async fn remove(client: &Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let gvk = GroupVersionKind::try_from(&object.types.unwrap_or_default())?;
    let (resource, _) = pinned_kind(client, &gvk).await?;
    let name = object.metadata.name.unwrap_or_default();
    let objects = Api::<DynamicObject>::all_with(client.clone(), &resource);
    objects.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

/// The mutating and the validating webhooks are registered by different objects, so each is checked
/// separately.
async fn wait_until_in_effect(client: &Client, expected: bool) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Machine"));
    let machines = Api::<DynamicObject>::default_namespaced_with(client.clone(), &resource);
    eventually(DEADLINE, "the effect of core's webhooks", async || {
        let mutating = is_defaulted(&machines).await?;
        ensure!(mutating == expected, "mutating webhooks are called: {mutating}");
        let validating = is_validated(&machines).await?;
        ensure!(
            validating == expected,
            "validating webhooks are called: {validating}"
        );
        Ok(())
    })
    .await
}

/// Whether a Machine gets the default that only the mutating webhook gives.
async fn is_defaulted(machines: &Api<DynamicObject>) -> Result<bool> {
    let machine = dry_run(machines, "v1.0.0").await?;
    Ok(!machine.data["spec"]["deletion"]["nodeDeletionTimeoutSeconds"].is_null())
}

/// Whether a Machine is refused for a version that only the validating webhook objects to.
async fn is_validated(machines: &Api<DynamicObject>) -> Result<bool> {
    match dry_run(machines, "not-a-version").await {
        Ok(_) => Ok(false),
        Err(kube::Error::Api(status)) if status.message.contains("admission webhook") => Ok(true),
        Err(error) => Err(error.into()),
    }
}

async fn dry_run(machines: &Api<DynamicObject>, version: &str) -> kube::Result<DynamicObject> {
    let machine = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "webhook-probe"},
        "spec": {
            "clusterName": "webhook-probe", "version": version,
            "bootstrap": {"dataSecretName": "webhook-probe"},
            "infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "WebhookProbe",
                "name": "webhook-probe",
            },
        },
    });
    let machine = serde_json::from_value(machine).map_err(kube::Error::SerdeError)?;
    machines
        .create(
            &PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            &machine,
        )
        .await
}
