//! Cluster API's core, as far as this provider meets it: owners, contract fields and deletions.
//!
//! Core's own behaviour is not tested here: `tests/suite` runs the real one.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const FINALIZER: &str = "machine.cluster.x-k8s.io";
const PAUSED: &str = "cluster.x-k8s.io/paused";
const INTERVAL: Duration = Duration::from_millis(100);

/// A stand-in for core that runs until it is dropped.
pub struct Core(JoinHandle<()>);

impl Core {
    /// Starts it.
    pub fn start(client: Client) -> Self {
        Self(tokio::spawn(async move {
            loop {
                if let Err(error) = round(&client).await {
                    // Another client has written in between: the next round sees it.
                    tracing::debug!("{error:#}");
                }
                tokio::time::sleep(INTERVAL).await;
            }
        }))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn round(client: &Client) -> Result<()> {
    for kind in ["Cluster", "Machine"] {
        let all = api(client, None, "cluster.x-k8s.io/v1beta2", kind)
            .list(&ListParams::default())
            .await?;
        let live = all
            .items
            .iter()
            .filter(|object| !object.annotations().contains_key(PAUSED));
        try_join_all(live.map(|object| reconcile(client, kind, object))).await?;
    }
    Ok(())
}

async fn reconcile(client: &Client, kind: &str, object: &DynamicObject) -> Result<()> {
    let namespace = object.namespace().context("no namespace")?;
    let reference = &object.data["spec"]["infrastructureRef"];
    let Some(infra_kind) = reference["kind"].as_str() else {
        return Ok(());
    };
    let infra = api(
        client,
        Some(&namespace),
        "infrastructure.capcmi.io/v1alpha1",
        infra_kind,
    );
    let name = reference["name"].as_str().unwrap_or_default();
    let found = infra.get_opt(name).await?;
    let own = api(client, Some(&namespace), "cluster.x-k8s.io/v1beta2", kind);
    let has_finalizer = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if object.metadata.deletion_timestamp.is_some() {
        match found {
            Some(infra_object) if infra_object.metadata.deletion_timestamp.is_none() => {
                infra.delete(name, &DeleteParams::default()).await?;
            }
            None if has_finalizer => {
                patch(&own, object, json!({"metadata": {"finalizers": null}})).await?;
            }
            Some(_) | None => {}
        }
        return Ok(());
    }
    if !has_finalizer {
        patch(&own, object, json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
    }
    let Some(found) = found else {
        return Ok(());
    };
    let uid = object.metadata.uid.as_deref();
    if !found
        .owner_references()
        .iter()
        .any(|owner| Some(owner.uid.as_str()) == uid)
    {
        let cluster = match kind {
            "Cluster" => object.metadata.name.as_deref(),
            _ => object.data["spec"]["clusterName"].as_str(),
        };
        let owner = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": object.name_any(), "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        });
        let labels = json!({"cluster.x-k8s.io/cluster-name": cluster});
        let metadata = json!({"metadata": {"ownerReferences": [owner], "labels": labels}});
        patch(&infra, &found, metadata).await?;
        return Ok(());
    }
    if found.data["status"]["initialization"]["provisioned"] == true {
        let status = json!({"status": {
            "initialization": {"infrastructureProvisioned": true},
            "addresses": found.data["status"]["addresses"],
        }});
        own.patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await?;
        if kind == "Machine" {
            let id = json!({"spec": {"providerID": found.data["spec"]["providerID"]}});
            own.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(id))
                .await?;
        }
    }
    Ok(())
}

async fn patch(api: &Api<DynamicObject>, object: &DynamicObject, mut patch: Value) -> Result<()> {
    patch["metadata"]["resourceVersion"] = json!(object.resource_version());
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

fn api(client: &Client, namespace: Option<&str>, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}
