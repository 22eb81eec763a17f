//! Cluster API's core, as far as this provider meets it: owners, contract fields, Nodes, pre-drain hooks and
//! deletions.
//!
//! Core's own behaviour is not tested here: `tests/suite` runs the real one.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use fake_apiserver::FakeApiServer;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Node;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const FINALIZER: &str = "machine.cluster.x-k8s.io";
const PAUSED: &str = "cluster.x-k8s.io/paused";
const PRE_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";
const INTERVAL: Duration = Duration::from_millis(100);

/// A stand-in for core that runs until it is dropped.
pub struct Core(JoinHandle<()>);

impl Core {
    /// Starts it.
    pub fn start(management: &FakeApiServer, workload: &FakeApiServer) -> Self {
        let (client, nodes) = (management.client("core"), Api::all(workload.client("core")));
        let (management, workload) = (management.clone(), workload.clone());
        Self(tokio::spawn(async move {
            loop {
                let now = (management.version(), workload.version());
                if let Err(error) = round(&client, &nodes).await {
                    // Another client has written in between: the next round sees it.
                    tracing::debug!("{error:#}");
                    tokio::time::sleep(INTERVAL).await;
                    continue;
                }
                tokio::time::sleep(INTERVAL).await;
                // A round that finds everything as the last one left it would do nothing.
                tokio::select! {
                    () = management.written_after(now.0) => {}
                    () = workload.written_after(now.1) => {}
                }
            }
        }))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn round(client: &Client, nodes: &Api<Node>) -> Result<()> {
    let known = nodes.list(&ListParams::default()).await?.items;
    let mut paused = BTreeSet::new();
    for kind in ["Cluster", "Machine"] {
        let all = api(client, None, "cluster.x-k8s.io/v1beta2", kind)
            .list(&ListParams::default())
            .await?;
        let cluster_of = |object: &DynamicObject| {
            let name = match kind {
                "Cluster" => object.metadata.name.clone(),
                _ => object.data["spec"]["clusterName"].as_str().map(str::to_owned),
            };
            (object.metadata.namespace.clone(), name)
        };
        if kind == "Cluster" {
            let by_spec = all
                .items
                .iter()
                .filter(|cluster| cluster.data["spec"]["paused"] == true);
            paused.extend(by_spec.map(cluster_of));
        }
        let live = all.items.iter().filter(|object| {
            !object.annotations().contains_key(PAUSED) && !paused.contains(&cluster_of(object))
        });
        try_join_all(live.map(|object| reconcile(client, nodes, &known, kind, object))).await?;
    }
    Ok(())
}

async fn reconcile(
    client: &Client,
    nodes: &Api<Node>,
    known: &[Node],
    kind: &str,
    object: &DynamicObject,
) -> Result<()> {
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
        if object
            .annotations()
            .keys()
            .any(|key| key.starts_with(PRE_DRAIN_HOOK))
        {
            return wait_for_hook(&own, object).await;
        }
        match found {
            Some(infra_object) if infra_object.metadata.deletion_timestamp.is_none() => {
                infra.delete(name, &DeleteParams::default()).await?;
            }
            None if has_finalizer => {
                if let Some(node) = object.data["status"]["nodeRef"]["name"].as_str() {
                    // It may be gone.
                    let _gone = nodes.delete(node, &DeleteParams::default()).await;
                }
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
            report_node(&own, object, known).await?;
        }
    }
    Ok(())
}

/// Reports that a deletion waits for a pre-drain hook, and since when.
async fn wait_for_hook(own: &Api<DynamicObject>, machine: &DynamicObject) -> Result<()> {
    if !machine.data["status"]["deletion"]["waitForPreDrainHookStartTime"].is_null() {
        return Ok(());
    }
    let since = capcmi::api::wall_clock::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let condition = json!({
        "type": "Deleting", "status": "True", "reason": "WaitingForPreDrainHook", "message": "",
        "lastTransitionTime": since,
    });
    let status = json!({"status": {
        "deletion": {"waitForPreDrainHookStartTime": since}, "conditions": [condition],
    }});
    own.patch_status(
        &machine.name_any(),
        &PatchParams::default(),
        &Patch::Merge(status),
    )
    .await?;
    Ok(())
}

/// Names the Node with the providerID of a Machine, and reports whether it is ready.
async fn report_node(own: &Api<DynamicObject>, machine: &DynamicObject, known: &[Node]) -> Result<()> {
    let id = machine.data["spec"]["providerID"].as_str();
    let has_id =
        |node: &&Node| id.is_some() && node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == id;
    let node = known.iter().find(has_id);
    let name = node.map(|node| json!(node.name_any()));
    let Some(name) = name.or_else(|| machine.data["status"]["nodeRef"].get("name").cloned()) else {
        return Ok(());
    };
    let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"));
    let (status, reason) = match ready {
        Some(ready) => (ready.status.as_str(), "NodeReported"),
        None => ("False", "NodeDeleted"),
    };
    let healthy = json!({"type": "NodeHealthy", "status": status, "reason": reason, "message": ""});
    let status = json!({"status": {"nodeRef": {"name": name}, "conditions": [healthy]}});
    own.patch_status(
        &machine.name_any(),
        &PatchParams::default(),
        &Patch::Merge(status),
    )
    .await?;
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
