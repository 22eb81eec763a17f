//! The caches of all watched kinds, and values derived from them. The reconcilers share them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
#[cfg(test)]
use kube_fleet::store;
use kube_fleet::{Entry, Store};
use parking_lot::Mutex;

use crate::api::cluster_api::{self, Cluster, Machine, cluster_name};
use crate::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineTemplate};
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations};
use crate::telemetry::metrics::MachinePhase;

/// A machine of the cache.
pub type CachedMachine = Entry<DeserializeGuard<InfraMachine>>;

/// The facts of an InfraMachine that scans read. Machines of one Cluster in the same state share them.
#[allow(clippy::struct_excessive_bools)] // facts that have nothing to do with each other
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InfraMachineFacts {
    /// The Cluster in its label.
    pub cluster: Option<Box<str>>,
    /// The cluster id that was written for it, not copied from another object.
    pub own_cluster_id: Option<Box<str>>,
    /// The driver that made its VM, or was about to.
    pub used_driver: Option<Box<str>>,
    /// The driver that its spec names.
    pub named_driver: Option<Box<str>>,
    /// The driver that it is counted under.
    pub shown_driver: Box<str>,
    /// Its phase. `None` where the object can't be read: then only its Cluster is known.
    pub phase: Option<MachinePhase>,
    /// The reason of its phase.
    pub reason: Box<str>,
    /// Whether its VM was found to be gone.
    pub has_vanished: bool,
    /// Whether its VM was handed to Cluster API.
    pub is_provisioned: bool,
    /// Whether the provider removes a taint from its Node.
    pub has_taint: bool,
    /// Whether its status shows that its Node is missing.
    pub shows_missing_node: bool,
    /// Whether it requests a drain of its Machine's volumes, or reports one.
    pub requests_drain: bool,
}

/// The facts of a Machine that scans read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MachineFacts {
    /// Its Cluster.
    pub cluster: Box<str>,
    /// Whether its Node is healthy, if it has one.
    pub node_is_healthy: Option<bool>,
    /// Whether Cluster API waits for this provider to drain its volumes.
    pub has_drain_hook: bool,
}

/// Read-only caches of all watched kinds, without managed fields.
#[derive(Clone)]
pub struct Caches {
    /// Machines of Cluster API.
    pub machines: Store<Machine>,
    /// Clusters of Cluster API.
    pub clusters: Store<Cluster>,
    /// Our machines.
    pub infra_machines: Store<DeserializeGuard<InfraMachine>>,
    /// Our templates.
    pub infra_machine_templates: Store<DeserializeGuard<InfraMachineTemplate>>,
    /// Our clusters.
    pub infra_clusters: Store<DeserializeGuard<InfraCluster>>,
}

impl Caches {
    /// Returns the existing Clusters that own an object.
    pub fn owning_clusters(&self, meta: &ObjectMeta) -> impl Iterator<Item = Arc<Cluster>> {
        let namespace = meta.namespace();
        cluster_owners(meta).filter_map(move |reference| {
            let key = ObjectRef::new(&reference.name).within(namespace);
            let cluster = self.clusters.get(&key)?;
            (cluster.metadata.uid.as_deref() == Some(reference.uid.as_str())).then_some(cluster)
        })
    }

    /// Returns the Machine that owns an object as its controller, if it exists.
    pub fn owner_machine(&self, meta: &ObjectMeta) -> Option<Arc<Machine>> {
        let owner = machine_owner(meta)?;
        let key = ObjectRef::new(&owner.name).within(meta.namespace.as_deref()?);
        let found = self.machines.get(&key)?;
        // A Machine with the same name but another UID is not the owner.
        (found.metadata.uid.as_deref() == Some(owner.uid.as_str())).then_some(found)
    }

    /// Returns the Clusters that a template is for: its owners, and the Cluster in its label.
    pub fn clusters_of_template(&self, meta: &ObjectMeta) -> Vec<Arc<Cluster>> {
        self.owning_clusters(meta)
            .chain(self.labelled_cluster(meta))
            .collect()
    }

    /// Returns the Cluster in an object's label, if it exists.
    pub fn labelled_cluster(&self, meta: &ObjectMeta) -> Option<Arc<Cluster>> {
        self.cluster(meta.namespace.as_deref()?, cluster_name(meta)?)
    }

    /// Returns the Cluster of this name, if it exists.
    pub fn cluster(&self, namespace: &str, name: &str) -> Option<Arc<Cluster>> {
        self.clusters.get(&ObjectRef::new(name).within(namespace))
    }

    /// Returns the InfraCluster of a Cluster, if it exists and is of this provider.
    pub fn infra_cluster_of(&self, cluster: &Cluster) -> Option<Arc<DeserializeGuard<InfraCluster>>> {
        let name = InfraCluster::name_in(cluster)?;
        let namespace = cluster.metadata.namespace.as_deref()?;
        self.infra_clusters.get(&ObjectRef::new(name).within(namespace))
    }

    /// Returns the Clusters of a namespace that refer to an InfraCluster of this provider.
    pub fn clusters_with_infra(&self, namespace: &str) -> Vec<Arc<Cluster>> {
        let beside = self.clusters.select(|entry| entry.key().namespace() == namespace);
        let mut clusters: Vec<_> = beside.iter().filter_map(Entry::object).collect();
        clusters.retain(|cluster| InfraCluster::name_in(cluster).is_some());
        clusters
    }

    /// Returns the InfraMachine with the name of this object.
    pub fn infra_machine(&self, meta: &ObjectMeta) -> Option<Arc<DeserializeGuard<InfraMachine>>> {
        self.infra_machines
            .get(&ObjectRef::new(meta.name()).within(meta.namespace()))
    }

    /// Returns the name of another InfraMachine, in any namespace, with this providerID.
    pub fn other_with_provider_id(&self, machine: &InfraMachine, provider_id: &str) -> Option<String> {
        let number = self.infra_machines.number(provider_id);
        let others = self
            .infra_machines
            .select(|other| other.external_id() == Some(number));
        others.iter().find_map(|entry| {
            let object = entry.object()?;
            let other = object.0.as_ref().ok()?;
            let is_same = other.spec.provider_id.as_deref() == Some(provider_id);
            let is_other = is_same && other.metadata.uid != machine.metadata.uid;
            is_other.then(|| format!("{}/{}", entry.key().namespace(), entry.key().name()))
        })
    }

    /// Counts the machines of the Clusters that own an InfraCluster or are in its label. The Clusters need
    /// not exist.
    pub fn count_machines_of(&self, infra: &ObjectMeta) -> usize {
        let owners = cluster_owners(infra).map(|owner| owner.name.as_str());
        let names: BTreeSet<_> = owners.chain(cluster_name(infra)).collect();
        self.infra_machines.scan(|all| {
            let labelled = all.filter(|entry| {
                let cluster = entry.facts().cluster.as_deref();
                entry.key().namespace() == infra.namespace()
                    && cluster.is_some_and(|name| names.contains(name))
            });
            labelled.count()
        })
    }

    /// Returns the names of the drivers that made the machines of a Cluster.
    pub fn drivers_of(&self, cluster: &Cluster) -> BTreeSet<String> {
        self.infra_machines.scan(|all| {
            let labelled = all.filter(|entry| is_labelled(entry, cluster));
            let drivers: BTreeSet<_> = labelled
                .filter_map(|entry| entry.facts().used_driver.as_deref())
                .collect();
            drivers.into_iter().map(str::to_owned).collect()
        })
    }
}

/// Whether a machine's label names this Cluster, in the same namespace.
fn is_labelled(entry: &CachedMachine, cluster: &Cluster) -> bool {
    let meta = &cluster.metadata;
    entry.facts().cluster.as_deref() == meta.name.as_deref() && entry.key().namespace() == meta.namespace()
}

/// Returns the owner reference to the Machine that controls an object, in any API version. The Machine need
/// not exist.
pub fn machine_owner(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        owner.controller == Some(true) && owner.kind == "Machine" && group == cluster_api::GROUP
    })
}

/// Returns the owner references to Clusters. The Clusters need not exist.
pub fn cluster_owners(meta: &ObjectMeta) -> impl Iterator<Item = &OwnerReference> {
    meta.owner_references.iter().flatten().filter(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        owner.kind == "Cluster" && group == cluster_api::GROUP
    })
}

#[cfg(test)]
impl Caches {
    /// Returns caches that stay empty.
    pub fn empty() -> Self {
        Self {
            machines: store().0,
            clusters: store().0,
            infra_machines: store().0,
            infra_machine_templates: store().0,
            infra_clusters: store().0,
        }
    }
}

/// The ids of Clusters at drivers.
///
/// # Guarantees
/// An id is unique per Cluster and shared by all its machines. It is stable over a move, where UIDs change:
/// the id that the InfraCluster or a sibling machine already carries wins over an id derived from the
/// Cluster's UID.
pub struct ClusterIds {
    infra_machines: Store<DeserializeGuard<InfraMachine>>,
    infra_clusters: Store<DeserializeGuard<InfraCluster>>,
    found: Mutex<HashMap<String, String>>,
}

/// The InfraCluster of a Cluster, which may carry the id.
enum Carrier {
    /// The Cluster names no InfraCluster of this provider.
    None,
    /// The Cluster names an InfraCluster that is not in the cache, which may be behind.
    NotSeen,
    /// The InfraCluster that the Cluster names.
    Seen(Arc<DeserializeGuard<InfraCluster>>),
}

impl ClusterIds {
    /// Returns ids that are read from these caches, which must be filled before the first use.
    pub fn new(caches: &Caches) -> Self {
        Self {
            infra_machines: caches.infra_machines.clone(),
            infra_clusters: caches.infra_clusters.clone(),
            found: Mutex::default(),
        }
    }

    /// Returns the id of a Cluster; `None` before the API server has given it a UID.
    ///
    /// The id is kept once found. An id from the Cluster's UID is kept only after the InfraCluster was seen,
    /// which may carry another.
    pub fn of(&self, cluster: &Cluster) -> Option<String> {
        let uid = cluster.metadata.uid.clone()?;
        if let Some(id) = self.found.lock().get(&uid) {
            return Some(id.clone());
        }
        let carrier = self.carrier(cluster);
        let written = match &carrier {
            Carrier::Seen(infra) => annotated(infra),
            Carrier::NotSeen | Carrier::None => None,
        };
        let written = written.or_else(|| self.of_sibling(cluster));
        if written.is_none() && matches!(carrier, Carrier::NotSeen) {
            return Some(uid);
        }
        let id = written.unwrap_or_else(|| uid.clone());
        Some(self.found.lock().entry(uid).or_insert(id).clone())
    }

    /// Forgets all Clusters whose UID no longer exists.
    pub fn forget_all_but(&self, is_there: impl Fn(&str) -> bool) {
        self.found.lock().retain(|uid, _| is_there(uid));
    }

    fn carrier(&self, cluster: &Cluster) -> Carrier {
        let (Some(reference), Some(namespace)) = (
            cluster.spec.infrastructure_ref.as_ref(),
            cluster.metadata.namespace.as_deref(),
        ) else {
            return Carrier::None;
        };
        if !reference.is_to::<InfraCluster>() {
            return Carrier::None;
        }
        self.infra_clusters
            .get(&ObjectRef::new(&reference.name).within(namespace))
            .map_or(Carrier::NotSeen, Carrier::Seen)
    }

    fn of_sibling(&self, cluster: &Cluster) -> Option<String> {
        self.infra_machines.scan(|all| {
            let mut labelled = all.filter(|entry| is_labelled(entry, cluster));
            labelled.find_map(|entry| entry.facts().own_cluster_id.as_deref().map(str::to_owned))
        })
    }
}

/// Returns the cluster id in an object's annotations, even if its spec can't be read.
fn annotated<K: Resource>(object: &DeserializeGuard<K>) -> Option<String> {
    object
        .meta()
        .annotations
        .as_ref()?
        .get(annotations::CLUSTER_ID)
        .cloned()
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use kube_fleet::Writer;

    use super::*;
    use crate::api::cluster_api::{ClusterSpec, ObjectReference};
    use crate::api::labels;
    use crate::api::v1alpha1::InfraClusterSpec;

    fn caches() -> (Caches, Writer<DeserializeGuard<InfraCluster>>) {
        let (infra_clusters, writer) = store();
        let caches = Caches {
            infra_clusters,
            ..Caches::empty()
        };
        (caches, writer)
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::new("c", ClusterSpec::default());
        cluster.metadata.namespace = Some("ns".to_owned());
        cluster.metadata.uid = Some("u-1".to_owned());
        cluster.spec.infrastructure_ref = Some(ObjectReference {
            api_group: crate::api::GROUP.to_owned(),
            kind: "InfraCluster".to_owned(),
            name: "c".to_owned(),
        });
        cluster
    }

    fn infra_cluster(id: Option<&str>) -> DeserializeGuard<InfraCluster> {
        let mut infra = InfraCluster::new("c", InfraClusterSpec::default());
        infra.metadata.namespace = Some("ns".to_owned());
        infra.metadata.annotations =
            id.map(|id| [(annotations::CLUSTER_ID.to_owned(), id.to_owned())].into());
        DeserializeGuard(Ok(infra))
    }

    /// An owner with the same name may have been deleted.
    #[test]
    fn a_template_belongs_to_its_owning_and_its_labelled_clusters() {
        let (mut caches, _writer) = caches();
        let (clusters, mut writer) = store();
        caches.clusters = clusters;
        writer.apply_watcher_event(&Event::Apply(cluster()));
        let owned_by = |uid: &str, kind: &str| ObjectMeta {
            namespace: Some("ns".to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "cluster.x-k8s.io/v1beta2".to_owned(),
                kind: kind.to_owned(),
                name: "c".to_owned(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        };
        let labelled = |name: &str, namespace: &str| ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: Some([(labels::CLUSTER_NAME.to_owned(), name.to_owned())].into()),
            ..ObjectMeta::default()
        };
        for (meta, clusters) in [
            (owned_by("u-1", "Cluster"), 1),
            (owned_by("u-0", "Cluster"), 0),
            (owned_by("u-1", "ClusterClass"), 0),
            (labelled("c", "ns"), 1),
            (labelled("c", "other"), 0),
            (labelled("d", "ns"), 0),
        ] {
            assert_eq!(caches.clusters_of_template(&meta).len(), clusters, "{meta:?}");
        }
    }

    /// After a move the Cluster may be seen before the InfraCluster that carries its id.
    #[test]
    fn an_id_is_not_settled_before_the_object_that_may_carry_it_is_seen() {
        let (caches, mut writer) = caches();
        let ids = ClusterIds::new(&caches);
        assert_eq!(ids.of(&cluster()).as_deref(), Some("u-1"));
        writer.apply_watcher_event(&Event::Apply(infra_cluster(Some("moved"))));
        assert_eq!(ids.of(&cluster()).as_deref(), Some("moved"));
        writer.apply_watcher_event(&Event::Apply(infra_cluster(None)));
        assert_eq!(
            ids.of(&cluster()).as_deref(),
            Some("moved"),
            "what was found is kept"
        );
        ids.forget_all_but(|_| false);
        assert_eq!(
            ids.of(&cluster()).as_deref(),
            Some("u-1"),
            "of a Cluster that is gone nothing is"
        );
    }
}
