//! The objects of Cluster API's IPAM contract.

use kube::api::{Api, DynamicObject};

use super::World;
use super::fleet::objects;

/// The IPAddressClaims of the namespace.
pub fn claims(world: &World) -> Api<DynamicObject> {
    objects(world, "ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim")
}

/// The IPAddresses of the namespace.
pub fn addresses(world: &World) -> Api<DynamicObject> {
    objects(world, "ipam.cluster.x-k8s.io", "v1beta2", "IPAddress")
}
