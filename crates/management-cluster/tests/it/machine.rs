//! Cluster API's core with the stand-ins around it, as a provider's tests rely on it.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};
use management_cluster::{
    ManagementCluster, eventually,
    hollow_kubelet::{Guest, GuestEvent, HollowKubelet},
    stand_in::{self, StandInController},
};
use serde_json::json;

use crate::shared;

const DEADLINE: Duration = Duration::from_mins(2);

/// Infrastructure kinds without a provider; the test writes their status.
fn infrastructure_kind(kind: &str) -> String {
    let singular = kind.to_lowercase();
    format!(
        r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {singular}s.infrastructure.cluster.x-k8s.io
  labels: {{cluster.x-k8s.io/v1beta2: v1}}
spec:
  group: infrastructure.cluster.x-k8s.io
  scope: Namespaced
  names: {{kind: {kind}, listKind: {kind}List, plural: {singular}s, singular: {singular}}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"
    )
}

async fn api(
    cluster: &ManagementCluster,
    namespace: &str,
    version: &str,
    kind: &str,
) -> Result<Api<DynamicObject>> {
    let (group, version) = version.split_once('/').unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Ok(Api::namespaced_with(
        cluster.admin_client().await?,
        namespace,
        &resource,
    ))
}

#[tokio::test]
async fn core_runs_a_machine_from_its_node_to_its_deletion() -> Result<()> {
    let cluster = shared().await?;
    let namespace = cluster.namespace("machine").await?;
    let workload = cluster.workload().await?;
    cluster.apply_yaml(&infrastructure_kind("LoneMachine")).await?;
    stand_in::create_cluster(cluster, &namespace, "one", json!({})).await?;
    let provider_id = format!("lone://{namespace}");
    cluster
        .apply_yaml(&format!(
            r#"
apiVersion: infrastructure.cluster.x-k8s.io/v1
kind: LoneMachine
metadata: {{name: m, namespace: {namespace}}}
spec: {{providerID: "{provider_id}"}}
status: {{initialization: {{provisioned: true}}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {{name: m, namespace: {namespace}, labels: {{cluster.x-k8s.io/cluster-name: one}}}}
spec:
  clusterName: one
  bootstrap: {{dataSecretName: any}}
  infrastructureRef: {{apiGroup: infrastructure.cluster.x-k8s.io, kind: LoneMachine, name: m}}
"#
        ))
        .await?;
    let guest = Guest {
        provider_id,
        node_name: format!("node-of-{namespace}"),
        user_data: workload.bootstrap_data()?.into_bytes(),
        addresses: Vec::new(),
    };
    let node = guest.node_name.clone();
    let _kubelet = HollowKubelet::start(stream::iter([GuestEvent::Booted(guest)]).chain(stream::pending()));
    let machines = api(cluster, &namespace, "cluster.x-k8s.io/v1beta2", "Machine").await?;
    eventually(DEADLINE, "the phase Running of the Machine", async || {
        let status = machines.get("m").await?.data["status"].clone();
        ensure!(
            status["phase"] == "Running" && status["nodeRef"]["name"] == node.as_str(),
            "{status:#}"
        );
        Ok(())
    })
    .await?;
    machines.delete("m", &DeleteParams::default()).await?;
    let nodes: Api<Node> = Api::all(workload.admin_client().await?);
    eventually(DEADLINE, "the end of the Machine", async || {
        let machine = machines.get_opt("m").await?;
        ensure!(
            machine.is_none(),
            "{:#}",
            machine.map(|machine| machine.data).unwrap_or_default()
        );
        Ok(())
    })
    .await?;
    // Only with a control plane that is managed elsewhere does core delete the Node.
    assert!(nodes.get_opt(&node).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_cluster_with_a_topology_gets_a_control_plane() -> Result<()> {
    let cluster = shared().await?;
    let namespace = cluster.namespace("topology").await?;
    let _controller = StandInController::start(cluster).await?;
    stand_in::connect_workload(cluster, &namespace, "one").await?;
    cluster.apply_yaml(&infrastructure_kind("LoneCluster")).await?;
    cluster
        .apply_yaml(&infrastructure_kind("LoneClusterTemplate"))
        .await?;
    cluster
        .apply_yaml(&format!(
            r"
apiVersion: infrastructure.cluster.x-k8s.io/v1
kind: LoneClusterTemplate
metadata: {{name: t, namespace: {namespace}}}
spec: {{template: {{spec: {{}}}}}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: StandInControlPlaneTemplate
metadata: {{name: t, namespace: {namespace}}}
spec: {{template: {{spec: {{}}}}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {{name: class, namespace: {namespace}}}
spec:
  infrastructure:
    templateRef: {{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: LoneClusterTemplate, name: t}}
  controlPlane:
    templateRef:
      apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
      kind: StandInControlPlaneTemplate
      name: t
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {{name: one, namespace: {namespace}}}
spec: {{topology: {{classRef: {{name: class}}, version: v1.36.0}}}}
"
        ))
        .await?;
    let infrastructure = api(
        cluster,
        &namespace,
        "infrastructure.cluster.x-k8s.io/v1",
        "LoneCluster",
    )
    .await?;
    let clusters = api(cluster, &namespace, "cluster.x-k8s.io/v1beta2", "Cluster").await?;
    let name = eventually(DEADLINE, "the infrastructure of the Cluster", async || {
        let spec = clusters.get("one").await?.data["spec"].clone();
        let name = spec["infrastructureRef"]["name"].as_str().map(str::to_owned);
        name.ok_or_else(|| anyhow::anyhow!("{spec:#}"))
    })
    .await?;
    let provisioned = Patch::Merge(json!({"status": {"initialization": {"provisioned": true}}}));
    infrastructure
        .patch(&name, &PatchParams::default(), &provisioned)
        .await?;
    eventually(DEADLINE, "the control plane of the Cluster", async || {
        let status = clusters.get("one").await?.data["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let is_true = |name| {
            conditions
                .iter()
                .any(|condition| condition["type"] == name && condition["status"] == "True")
        };
        ensure!(
            is_true("ControlPlaneInitialized") && is_true("ControlPlaneAvailable"),
            "{status:#}"
        );
        Ok(())
    })
    .await
}
