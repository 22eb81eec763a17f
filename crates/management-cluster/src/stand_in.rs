//! The control plane of a Cluster, without machines: a stand-in object with the status of a managed control
//! plane.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::TryStreamExt;
use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{ManagementCluster, apply::apply};

/// API group of the stand-in; core may handle everything in it by its own permissions.
pub const GROUP: &str = "controlplane.cluster.x-k8s.io";
/// Kind of the stand-in. `StandInControlPlaneTemplate` is for cluster classes.
pub const KIND: &str = "StandInControlPlane";

/// The definitions of both kinds; a management cluster has them from its start.
pub(crate) const DEFINITIONS: &str = include_str!("../manifests/stand-in-control-plane.yaml");

const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Creates the Cluster `name` with a control plane that is initialized and the workload cluster behind it,
/// and returns it. `spec` is merged into the Cluster's spec (`{"infrastructureRef": …}`; may be empty).
///
/// # Errors
/// When the API server refuses one of the objects.
pub async fn create_cluster(
    management: &ManagementCluster,
    namespace: &str,
    name: &str,
    spec: Value,
) -> Result<DynamicObject> {
    let control_plane = create_control_plane(management, namespace, name).await?;
    let mut cluster_spec = json!({"controlPlaneRef": control_plane});
    if let (Some(fields), Value::Object(more)) = (cluster_spec.as_object_mut(), spec) {
        fields.extend(more);
    }
    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": cluster_spec,
    });
    apply(&management.admin_client().await?, cluster).await
}

/// Creates the control plane object of the Cluster `name`, initialized and with the workload cluster behind
/// it. Returns the value of `spec.controlPlaneRef`. Must be called before the Cluster is created.
///
/// # Errors
/// When the API server refuses one of the objects.
pub async fn create_control_plane(
    management: &ManagementCluster,
    namespace: &str,
    name: &str,
) -> Result<Value> {
    let client = management.admin_client().await?;
    connect_workload(management, namespace, name).await?;
    let control_plane = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"), "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
    });
    mark_initialized(&client, &apply(&client, control_plane).await?).await?;
    Ok(json!({"apiGroup": GROUP, "kind": KIND, "name": name}))
}

/// Creates the kubeconfig Secret that core reads to reach the workload cluster of the Cluster `name`. Must be
/// called before the Cluster is created; [`create_cluster`] does it itself.
///
/// # Errors
/// When the workload cluster does not start, or when the API server refuses the Secret.
pub async fn connect_workload(management: &ManagementCluster, namespace: &str, name: &str) -> Result<()> {
    let secret = management.workload().await?.kubeconfig_secret(namespace, name);
    let secrets = Api::namespaced(management.admin_client().await?, namespace);
    let created = secrets.create(&PostParams::default(), &secret).await;
    created
        .map(drop)
        .with_context(|| format!("creating the kubeconfig Secret of Cluster {namespace}/{name}"))
}

/// Sets the status of a stand-in control plane: initialized, available, managed elsewhere, and at the version
/// and number of replicas of its spec. Does nothing if the status is set already.
///
/// # Errors
/// When the API server refuses the status.
pub async fn mark_initialized(client: &Client, control_plane: &DynamicObject) -> Result<()> {
    let spec = &control_plane.data["spec"];
    let mut status = json!({
        "initialization": {"controlPlaneInitialized": true},
        "externalManagedControlPlane": true,
    });
    if let Some(version) = spec.get("version") {
        status["version"] = version.clone();
    }
    if let Some(replicas) = spec.get("replicas") {
        for field in [
            "replicas",
            "readyReplicas",
            "availableReplicas",
            "upToDateReplicas",
        ] {
            status[field] = replicas.clone();
        }
    }
    let said = &control_plane.data["status"];
    let is_said = status
        .as_object()
        .is_some_and(|fields| fields.iter().all(|(name, value)| &said[name] == value));
    if is_said {
        return Ok(());
    }
    status["conditions"] = json!([{
        "type": "Available", "status": "True", "reason": "Available", "message": "",
        "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    }]);
    let namespace = control_plane.namespace().unwrap_or_default();
    let name = control_plane.name_any();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource());
    let marked = api
        .patch_status(
            &name,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": status})),
        )
        .await;
    marked
        .map(drop)
        .with_context(|| format!("marking control plane {namespace}/{name} initialized"))
}

fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(GROUP, "v1alpha1", KIND),
        "standincontrolplanes",
    )
}

/// Marks every stand-in control plane initialized, as its controller would, as long as this value lives and
/// the runtime that it was made in runs. For Clusters with a topology, whose control planes core creates.
#[derive(Debug)]
pub struct StandInController {
    task: JoinHandle<()>,
}

impl StandInController {
    /// Starts the controller in the current runtime.
    ///
    /// # Errors
    /// When no client can be made.
    pub async fn start(management: &ManagementCluster) -> Result<Self> {
        let client = management.admin_client().await?;
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = mark_all(&client).await {
                    tracing::warn!("marking stand-in control planes, beginning anew: {error:#}");
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        });
        Ok(Self { task })
    }
}

impl Drop for StandInController {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn mark_all(client: &Client) -> Result<()> {
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource());
    let mut control_planes = std::pin::pin!(watcher(api, watcher::Config::default()).applied_objects());
    while let Some(control_plane) = control_planes.try_next().await? {
        mark_initialized(client, &control_plane).await?;
    }
    Ok(())
}
