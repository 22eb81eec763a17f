//! The machines that wait.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use futures::TryStreamExt as _;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use management_cluster::ManagementCluster;
use serde_json::json;

/// The bootstrap data of every machine.
pub const BOOTSTRAP: &str = "#cloud-config\nruncmd: [\"kubeadm join\"]\n";
/// How long the slowest run may take.
const DEADLINE: Duration = Duration::from_mins(20);
/// Requests at a time while the machines are made; the API server's limit.
const MAKING: usize = 32;

/// Makes a namespace with a Cluster that is ready, and so many Machines and InfraMachines that wait.
pub async fn create(management: &ManagementCluster, prefix: &str, size: usize) -> Result<String> {
    let namespace = management.namespace(prefix).await?;
    let admin = management.admin_client().await?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": namespace},
        "stringData": {"value": BOOTSTRAP, "format": "cloud-config"},
    });
    management_cluster::apply(&admin, secret).await?;
    let clusters = objects(&admin, &namespace, "Cluster");
    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "bench"},
        "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}},
    });
    clusters
        .create(&PostParams::default(), &serde_json::from_value(cluster)?)
        .await
        .context("making the Cluster")?;
    let status = Patch::Merge(json!({"status": {"initialization": {"infrastructureProvisioned": true}}}));
    clusters
        .patch_status("bench", &PatchParams::default(), &status)
        .await
        .context("marking the Cluster ready")?;
    let (machines, infra) = (
        objects(&admin, &namespace, "Machine"),
        Api::<InfraMachine>::namespaced(admin.clone(), &namespace),
    );
    futures::stream::iter((0..size).map(Ok))
        .try_for_each_concurrent(MAKING, async |index| {
            create_one(&machines, &infra, &format!("m-{index:05}")).await
        })
        .await?;
    Ok(namespace)
}

async fn create_one(machines: &Api<DynamicObject>, infra: &Api<InfraMachine>, name: &str) -> Result<()> {
    let machine = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "bench"}},
        "spec": {
            "clusterName": "bench", "bootstrap": {"dataSecretName": "boot"},
            "infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine",
            "name": name},
        },
    });
    let machine = machines
        .create(&PostParams::default(), &serde_json::from_value(machine)?)
        .await;
    let uid = machine.with_context(|| format!("making Machine {name}"))?.uid();
    let owned = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {
            "name": name, "labels": {"cluster.x-k8s.io/cluster-name": "bench"},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {"driver": "simulated", "providerSpec": {"vmPool": "default", "size": "small"}},
    });
    infra
        .create(&PostParams::default(), &serde_json::from_value(owned)?)
        .await
        .with_context(|| format!("making InfraMachine {name}"))?;
    Ok(())
}

/// Waits until all machines are provisioned, by a watch.
pub async fn provisioned(admin: &Client, namespace: &str, size: usize) -> Result<()> {
    let api = Api::<InfraMachine>::namespaced(admin.clone(), namespace);
    let wait = async {
        let mut changes = std::pin::pin!(watcher(api, watcher::Config::default()).applied_objects());
        let mut done = std::collections::HashSet::new();
        while let Some(machine) = changes.try_next().await.context("watching the machines")? {
            let initialization = machine
                .status
                .as_ref()
                .and_then(|status| status.initialization.as_ref());
            if initialization.is_some_and(|initialization| initialization.provisioned == Some(true)) {
                done.insert(machine.name_any());
            }
            if done.len() == size {
                return Ok(());
            }
        }
        ensure!(
            done.len() == size,
            "only {} of {size} are provisioned",
            done.len()
        );
        Ok(())
    };
    tokio::time::timeout(DEADLINE, wait)
        .await
        .context("the machines were not provisioned in time")?
}

/// Takes the machines away, finalizers and all, so that the next run has the API server for itself.
pub async fn remove(admin: &Client, namespace: &str) -> Result<()> {
    let infra = Api::<PartialObjectMeta<InfraMachine>>::namespaced(admin.clone(), namespace);
    let names: Vec<String> = infra
        .list_metadata(&ListParams::default())
        .await?
        .items
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    let infra = Api::<InfraMachine>::namespaced(admin.clone(), namespace);
    let machines = objects(admin, namespace, "Machine");
    // One by one: a collection of thousands takes longer than the API server gives a request.
    futures::stream::iter(names.into_iter().map(Ok))
        .try_for_each_concurrent(MAKING, async |name| remove_one(&machines, &infra, &name).await)
        .await
}

async fn remove_one(machines: &Api<DynamicObject>, infra: &Api<InfraMachine>, name: &str) -> Result<()> {
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    infra
        .patch_metadata(name, &PatchParams::default(), &free)
        .await
        .with_context(|| format!("removing the finalizers of InfraMachine {name}"))?;
    infra
        .delete(name, &DeleteParams::default())
        .await
        .with_context(|| format!("deleting InfraMachine {name}"))?;
    machines
        .delete(name, &DeleteParams::default())
        .await
        .with_context(|| format!("deleting Machine {name}"))?;
    Ok(())
}

fn objects(admin: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind));
    Api::namespaced_with(admin.clone(), namespace, &resource)
}
