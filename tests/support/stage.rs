//! A Cluster that Cluster API keeps its hands off: only the provider and the case write, so that the provider
//! does the same in every run.

use anyhow::{Context, Result};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::fleet::objects;
use super::{ByHand, World};

/// A Cluster whose infrastructure is up, and bootstrap data. Cluster and Machines are paused for Cluster API,
/// by the annotation that concerns the object alone: the provider does not look at it there.
pub struct Stage {
    /// The id that drivers know the Cluster by.
    pub cluster_id: String,
    cluster: String,
    world: World,
}

impl Stage {
    /// Sets up the Cluster `c`.
    pub async fn set(world: &World) -> Result<Self> {
        Self::named(world, "c").await
    }

    /// Sets up a Cluster of this name.
    pub async fn named(world: &World, name: &str) -> Result<Self> {
        let paused = json!({"cluster.x-k8s.io/paused": ""});
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": world.namespace},
            "stringData": {"value": "#cloud-config", "format": "cloud-config"},
        });
        management_cluster::apply(&world.admin, secret).await?;
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": name, "namespace": world.namespace, "annotations": paused},
            "spec": {"infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster",
            "name": name}},
        });
        let cluster = management_cluster::apply(&world.admin, cluster).await?;
        let up = Patch::Merge(json!({"status": {"initialization": {"infrastructureProvisioned": true}}}));
        objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster")
            .patch_status(name, &PatchParams::default(), &up)
            .await
            .context("provisioning the Cluster")?;
        Ok(Self {
            cluster_id: cluster.metadata.uid.context("the Cluster has no UID")?,
            cluster: name.to_owned(),
            world: world.clone(),
        })
    }

    /// A machine of the Cluster, whose guest gets its time to shut down. Nothing is made yet.
    pub fn machine(&self, name: &str) -> ByHand {
        ByHand::new(&self.world, &self.cluster, name)
            .controlled_by_the_case()
            .infra("/spec/providerSpec/labels", json!({"round": "0"}))
            .infra("/spec/shutdownTimeoutSeconds", json!(null))
    }
}
