//! The Clusters of one update, and the objects that belong to them.

use std::collections::HashSet;

use kube::api::ObjectMeta;
use kube_fleet::Change;

use crate::api::cluster_api::{Cluster, cluster_name};
use crate::api::{ObjectMetaExt as _, fingerprint};
use crate::reconcile::caches::cluster_owners;

/// Changed or deleted Clusters. Their objects are enqueued in one pass for all of them.
pub(super) struct ChangedClusters<'a> {
    pub clusters: Vec<&'a Cluster>,
    uids: HashSet<&'a str>,
    /// Namespace and name.
    names: HashSet<(&'a str, &'a str)>,
}

impl<'a> ChangedClusters<'a> {
    pub(super) fn of(changes: &'a [Change<Cluster>]) -> Self {
        let passing = changes.iter().filter(|change| change.passes(cluster_predicate));
        let clusters: Vec<&Cluster> = passing.map(|change| &**change.object()).collect();
        let name = |cluster: &&'a Cluster| {
            let meta = &cluster.metadata;
            Some((meta.namespace.as_deref()?, meta.name.as_deref()?))
        };
        Self {
            uids: clusters.iter().map(|cluster| cluster.metadata.uid()).collect(),
            names: clusters.iter().filter_map(name).collect(),
            clusters,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    pub(super) fn owns(&self, meta: &ObjectMeta) -> bool {
        cluster_owners(meta).any(|owner| self.uids.contains(owner.uid.as_str()))
    }

    pub(super) fn names(&self, namespace: &str, cluster: &str) -> bool {
        self.names.contains(&(namespace, cluster))
    }

    pub(super) fn labels(&self, meta: &ObjectMeta) -> bool {
        cluster_name(meta)
            .zip(meta.namespace.as_deref())
            .is_some_and(|(name, namespace)| self.names.contains(&(namespace, name)))
    }
}

fn cluster_predicate(cluster: &Cluster) -> u64 {
    let deleting = cluster.metadata.deletion_timestamp.is_some();
    let endpoint = cluster.spec.control_plane_endpoint.as_ref();
    fingerprint((
        cluster.is_paused(),
        cluster.infrastructure_is_provisioned(),
        endpoint.map(|endpoint| (&endpoint.host, endpoint.port)),
        deleting,
    ))
}
