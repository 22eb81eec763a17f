//! Pools of Cluster API's in-cluster IPAM provider.

use anyhow::Result;
use serde_json::{Value, json};

use super::World;

/// The prefix and the gateway of every pool.
pub const NETWORK: (u8, &str) = (20, "10.1.15.1");

/// An entry of `spec.addressesFromPools`.
pub fn pool(name: &str) -> Value {
    json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": name})
}

/// Makes a pool of addresses of [`NETWORK`], and starts the IPAM provider unless it runs.
pub async fn create_pool(world: &World, name: &str, addresses: &[&str]) -> Result<()> {
    world.management.start_ipam_in_cluster().await?;
    let (prefix, gateway) = NETWORK;
    let pool = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1alpha2", "kind": "InClusterIPPool",
        "metadata": {"name": name, "namespace": world.namespace},
        "spec": {"addresses": addresses, "prefix": prefix, "gateway": gateway},
    });
    management_cluster::apply(&world.admin, pool).await.map(drop)
}
