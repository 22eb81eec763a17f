//! Labels of Cluster API that the provider honours.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label of pods: how Cluster API drains them.
pub const DRAIN: &str = "cluster.x-k8s.io/drain";
/// The values of [`DRAIN`] for pods that Cluster API does not evict. Compared without regard to case.
pub const NOT_DRAINED: [&str; 3] = ["skip", "wait-completed", "waitcompleted"];

/// Label of every object that belongs to a Cluster: the Cluster's name.
pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Label of control-plane Machines.
pub const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
/// Label that `--watch-filter` selects by.
pub const WATCH_FILTER: &str = "cluster.x-k8s.io/watch-filter";

/// The value of [`WATCH_FILTER`].
pub fn watch_filter(metadata: &ObjectMeta) -> Option<&str> {
    Some(metadata.labels.as_ref()?.get(WATCH_FILTER)?)
}

/// Label of the IPAddressClaims of this provider, without a value. The provider watches no others.
pub const ADDRESS_CLAIM: &str = "infrastructure.capcmi.io/inframachine";

/// Label of an object without an owning Cluster, any value: `clusterctl move` moves the object anyway.
pub const MOVE: &str = "clusterctl.cluster.x-k8s.io/move";
