//! Programs, permissions and Clusters.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use management_cluster::{AGGREGATED_ROLE, CLUSTER_API_VERSION, KUBERNETES_VERSION, eventually, stand_in};
use serde_json::json;

use crate::shared;

const DEADLINE: Duration = Duration::from_mins(4);

#[tokio::test]
async fn the_programs_run_and_say_which_release_they_are() -> Result<()> {
    let started = Instant::now();
    let cluster = shared().await?;
    eprintln!("started in {:?}", started.elapsed());
    assert_eq!(
        cluster
            .admin_client()
            .await?
            .apiserver_version()
            .await?
            .git_version,
        KUBERNETES_VERSION
    );
    let clusterctl = cluster.clusterctl().args(["version", "-o", "short"]).output()?;
    assert_eq!(String::from_utf8(clusterctl.stdout)?.trim(), CLUSTER_API_VERSION);
    let kubectl = cluster
        .kubectl()
        .args(["get", "namespace", "capi-system", "-o", "name"])
        .output()?;
    assert_eq!(String::from_utf8(kubectl.stdout)?.trim(), "namespace/capi-system");
    Ok(())
}

#[tokio::test]
async fn a_labelled_role_is_merged_into_the_role_of_core() -> Result<()> {
    let cluster = shared().await?;
    cluster
        .apply_yaml(
            r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: merged, labels: {cluster.x-k8s.io/aggregate-to-manager: "true"}}
rules: [{apiGroups: [merged.test], resources: [things], verbs: [get]}]
"#,
        )
        .await?;
    let roles: Api<ClusterRole> = Api::all(cluster.admin_client().await?);
    eventually(DEADLINE, "the rule in the aggregated role", async || {
        let aggregated = roles.get(AGGREGATED_ROLE).await?.rules.unwrap_or_default();
        let merged = aggregated.iter().any(|rule| {
            rule.api_groups
                .iter()
                .flatten()
                .any(|group| group == "merged.test")
        });
        ensure!(merged, "{} other rules", aggregated.len());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_cluster_with_a_stand_in_control_plane_is_initialized() -> Result<()> {
    let cluster = shared().await?;
    let namespace = cluster.namespace("initialized").await?;
    stand_in::create_cluster(cluster, &namespace, "one", json!({})).await?;
    let kind = GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster");
    let resource = ApiResource::from_gvk(&kind);
    let clusters: Api<DynamicObject> =
        Api::namespaced_with(cluster.admin_client().await?, &namespace, &resource);
    eventually(DEADLINE, "the conditions of the Cluster", async || {
        let status = clusters.get("one").await?.data["status"].clone();
        let is_true = |name: &str| {
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition["type"] == name && condition["status"] == "True")
        };
        // The second one holds when core reaches the workload cluster through the kubeconfig Secret.
        ensure!(
            is_true("ControlPlaneInitialized") && is_true("RemoteConnectionProbe"),
            "{status:#}"
        );
        Ok(())
    })
    .await
}
