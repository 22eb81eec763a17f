//! Cluster API's in-cluster IPAM provider, which allocates the addresses of pools that are objects.

use anyhow::{Result, bail};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use serde_json::json;

use crate::{
    ManagementCluster,
    eventually::eventually,
    manager::{Place, START_DEADLINE},
    process::Process,
    programs::ManagerProgram,
    release::Release,
};

const RELEASE: Release = Release {
    name: "ipam-in-cluster",
    namespace: "capi-ipam-in-cluster-system",
    service_account: "capi-ipam-in-cluster-controller-manager",
    aggregated_role: None,
};

/// See [`ManagementCluster::start_ipam_in_cluster`].
pub(crate) async fn start(management: &ManagementCluster) -> Result<Process> {
    let program = ManagerProgram::ipam_in_cluster(management.programs()).await?;
    let command = |place: &Place| place.command(&program.manager, "--health-probe-bind-address");
    let process = RELEASE
        .start(management, &program.components, None, command)
        .await?;
    wait_until_in_effect(&management.admin_client().await?).await?;
    Ok(process)
}

/// It is ready before it serves its webhooks, and the API server applies a registration some time after it
/// was written.
async fn wait_until_in_effect(client: &Client) -> Result<()> {
    let kind = GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1alpha2", "InClusterIPPool");
    let resource = ApiResource::from_gvk(&kind);
    let pools = Api::<DynamicObject>::default_namespaced_with(client.clone(), &resource);
    let empty = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1alpha2", "kind": "InClusterIPPool",
        "metadata": {"name": "webhook-probe"}, "spec": {"addresses": [], "prefix": 24},
    });
    let empty: DynamicObject = serde_json::from_value(empty)?;
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let what = "the effect of the webhooks of the in-cluster IPAM provider";
    eventually(START_DEADLINE, what, async || {
        match pools.create(&parameters, &empty).await {
            Err(kube::Error::Api(status)) if status.message.contains("admission webhook") => Ok(()),
            answer => bail!("a pool without addresses is not refused: {answer:?}"),
        }
    })
    .await
}
