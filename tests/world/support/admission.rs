//! The admission policies, as an administrator sees them. The API server in memory does not enforce them.

use anyhow::Result;
use capcmi::admission::UNCONFIRMED;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::json;

use super::World;

/// The bindings of the policies.
pub fn bindings(world: &World) -> Api<DynamicObject> {
    cluster_scoped(
        world,
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    )
}

/// Removes the binding of a policy, which is then not in force.
pub async fn remove_binding(world: &World, policy: &str) -> Result<()> {
    bindings(world).delete(policy, &DeleteParams::default()).await?;
    Ok(())
}

/// Confirms that no identity was forged while this policy was not in force.
pub async fn confirm_identities(world: &World, policy: &str) -> Result<()> {
    let confirmed = Patch::Merge(json!({"metadata": {"annotations": {UNCONFIRMED: null}}}));
    cluster_scoped(world, "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
        .patch(policy, &PatchParams::default(), &confirmed)
        .await?;
    Ok(())
}

fn cluster_scoped(world: &World, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    Api::all_with(
        world.admin.clone(),
        &ApiResource::from_gvk_with_plural(&kind, plural),
    )
}
