//! What is watched, and what is derived from it. Shared by the reconcilers.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kube::runtime::reflector::{ObjectRef, Store};

use crate::api::cluster_api::{Cluster, Machine};
use crate::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineTemplate};
use crate::api::{self, Guarded, labels};

/// Read-only caches of all that is watched, without managed fields.
#[derive(Clone)]
pub struct Caches {
    /// Machines of Cluster API.
    pub machines: Store<Machine>,
    /// Clusters of Cluster API.
    pub clusters: Store<Cluster>,
    /// Our machines.
    pub infra_machines: Store<Guarded<InfraMachine>>,
    /// Our templates.
    pub infra_machine_templates: Store<Guarded<InfraMachineTemplate>>,
    /// Our clusters.
    pub infra_clusters: Store<Guarded<InfraCluster>>,
}

/// The ids that drivers know Clusters by.
///
/// # Guarantees
/// Unique per Cluster, shared by all its machines, and stable over a move, where UIDs change: the id that the InfraCluster
/// or a sibling machine already carries wins over one derived from the Cluster's UID.
pub struct ClusterIds {
    infra_machines: Store<Guarded<InfraMachine>>,
    infra_clusters: Store<Guarded<InfraCluster>>,
    found: Mutex<HashMap<String, String>>,
}

impl ClusterIds {
    /// Looks into these caches, which must have been filled before the first use.
    pub fn new(caches: &Caches) -> Self {
        Self {
            infra_machines: caches.infra_machines.clone(),
            infra_clusters: caches.infra_clusters.clone(),
            found: Mutex::default(),
        }
    }

    /// The id of a Cluster; `None` for one that the API server has not given a UID.
    pub fn of(&self, cluster: &Cluster) -> Option<String> {
        let uid = cluster.metadata.uid.clone()?;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let id = found.entry(uid.clone()).or_insert_with(|| {
            self.of_infra_cluster(cluster)
                .or_else(|| self.of_sibling(cluster))
                .unwrap_or(uid)
        });
        Some(id.clone())
    }

    fn of_infra_cluster(&self, cluster: &Cluster) -> Option<String> {
        let reference = cluster.spec.infrastructure_ref.as_ref()?;
        if reference.api_group != api::GROUP || reference.kind != "InfraCluster" {
            return None;
        }
        let namespace = cluster.metadata.namespace.as_deref()?;
        let found = self
            .infra_clusters
            .get(&ObjectRef::new(&reference.name).within(namespace))?;
        found
            .0
            .as_ref()
            .ok()?
            .metadata
            .annotations
            .as_ref()?
            .get(labels::CLUSTER_ID)
            .cloned()
    }

    fn of_sibling(&self, cluster: &Cluster) -> Option<String> {
        let sibling = self.infra_machines.find(|guarded| {
            guarded.0.as_ref().is_ok_and(|machine| {
                machine.metadata.namespace == cluster.metadata.namespace
                    && machine
                        .metadata
                        .labels
                        .as_ref()
                        .and_then(|all| all.get(labels::CLUSTER_NAME))
                        == cluster.metadata.name.as_ref()
                    && carries_its_own_id(machine)
            })
        })?;
        sibling
            .0
            .as_ref()
            .ok()?
            .metadata
            .annotations
            .as_ref()?
            .get(labels::CLUSTER_ID)
            .cloned()
    }
}

/// Whether the machine's annotations were written for it, rather than copied from another.
fn carries_its_own_id(machine: &InfraMachine) -> bool {
    let (Some(annotations), Some(namespace), Some(name)) = (
        &machine.metadata.annotations,
        &machine.metadata.namespace,
        &machine.metadata.name,
    ) else {
        return false;
    };
    annotations.contains_key(labels::CLUSTER_ID)
        && annotations
            .get(labels::MACHINE_ID)
            .is_some_and(|id| id.starts_with(&format!("{namespace}/{name}/")))
}
