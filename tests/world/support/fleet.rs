//! Objects of any kind.

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};

use super::World;

/// Objects of a kind in the namespace of the case.
pub fn objects(world: &World, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(world.admin.clone(), &world.namespace, &resource)
}
