//! Objects of any kind, and the Nodes that Machines report.

use anyhow::Result;
use capcmi::api::wall_clock;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::json;

use super::{ByHand, World};

/// Objects of a kind in the namespace of the case.
pub fn objects(world: &World, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(world.admin.clone(), &world.namespace, &resource)
}

/// Reports on a Machine, as Cluster API does, whether its Node is healthy.
pub async fn node_is(world: &World, name: &str, healthy: &str) -> Result<()> {
    let now = wall_clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = json!({"status": {"nodeRef": {"name": name}, "conditions": [{
        "type": "NodeHealthy", "status": healthy, "reason": "Test", "message": "",
        "lastTransitionTime": now,
    }]}});
    objects(world, "cluster.x-k8s.io", "v1beta2", "Machine")
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// Reports, as Cluster API does, that the Node of a machine was found and is healthy. It has the name of the
/// machine.
pub async fn found(world: &World, machine: &ByHand) -> Result<()> {
    node_is(world, &machine.name, "True").await
}
