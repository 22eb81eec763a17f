//! Finds the owner of a listed VM among the objects of the API server.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
pub use kube_fleet::NamespacedName;

use super::text_index::TextIndex;
use crate::api::cluster_api::{Cluster, cluster_name};
use crate::api::identity::{VmRecord, VmState};
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations};
use cmi_driver::ListedMachine;

/// A Cluster whose VMs are scanned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// The Cluster.
    pub cluster: NamespacedName,
    /// The Cluster's UID. A Cluster with the same name but another UID is another Cluster.
    pub uid: String,
    /// The Cluster's id at drivers.
    pub cluster_id: String,
}

/// The parts of an InfraMachine that decide which VM it owns. Small, because a read of a whole fleet has one
/// for each machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMachine {
    /// The object.
    pub key: NamespacedName,
    /// The UID, which is the machine's identity unless another identity was recorded.
    pub uid: Box<str>,
    /// The Cluster in its label.
    pub cluster: Option<Arc<str>>,
    /// The recorded cluster id.
    pub cluster_id: Option<Arc<str>>,
    /// The recorded identity, if it is not the UID. It may be a copy, but an owner with a copied identity
    /// deletes nothing.
    pub identity: Option<Box<str>>,
    /// Whether a VM of the machine may exist.
    pub may_have_vm: bool,
    /// The id of its VM. Any other VM of the machine is a duplicate.
    pub provider_id: Option<Box<str>>,
    /// Whether the whole object could be read.
    pub is_readable: bool,
    /// Whether `clusterctl move` is taking the machine away.
    pub is_moving: bool,
}

/// The texts that many machines share. Each is stored once.
#[derive(Debug, Default)]
pub struct CommonTexts(HashSet<Arc<str>>);

impl CommonTexts {
    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.0.insert(Arc::clone(&text));
        text
    }
}

impl LiveMachine {
    /// Reads the relevant parts of an object, also of an object that cannot be parsed in full.
    pub fn of(object: &DeserializeGuard<InfraMachine>, common: &mut CommonTexts) -> Self {
        let meta = object.meta();
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
        let carried = VmRecord::carried_by(meta);
        let record = carried.as_ref().ok().and_then(Option::as_ref);
        let readable = object.0.as_ref().ok();
        Self {
            key: NamespacedName::of(meta),
            uid: meta.uid().into(),
            cluster: cluster_name(meta).map(|name| common.shared(name)),
            cluster_id: record.map(|record| common.shared(&record.cluster)),
            identity: record
                .map(|record| record.machine.tag())
                .filter(|id| *id != meta.uid())
                .map(Box::from),
            may_have_vm: match &carried {
                Ok(record) => record
                    .as_ref()
                    .is_some_and(|record| record.state != VmState::None),
                Err(_) => true,
            },
            provider_id: readable.and_then(|machine| machine.spec.provider_id.as_deref().map(Box::from)),
            is_readable: readable.is_some(),
            is_moving: annotation(annotations::DELETE_FOR_MOVE).is_some(),
        }
    }

    fn has_identity(&self, id: &str) -> bool {
        self.identity.as_deref() == Some(id) || *self.uid == *id
    }

    fn is_of(&self, scope: &Scope) -> bool {
        self.cluster_id.as_deref() == Some(&scope.cluster_id)
            || (self.key.namespace() == scope.cluster.namespace()
                && self.cluster.as_deref() == Some(scope.cluster.name()))
    }

    /// Whether a VM was made for this machine, by the VM's identity, or by its name if the driver does not
    /// report the identity.
    fn is_owner_of(&self, scope: &Scope, vm: &ListedMachine) -> bool {
        match &vm.machine_id {
            Some(id) => self.has_identity(id),
            None => self.key.name() == vm.machine_name && self.may_have_vm && self.is_of(scope),
        }
    }
}

/// The parts of a Cluster and its InfraCluster that decide about its VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveCluster {
    /// The object.
    pub key: NamespacedName,
    /// Its UID.
    pub uid: String,
    /// Every id that drivers may use for the Cluster: the ids recorded in its InfraCluster and InfraMachines,
    /// or else its UID.
    pub ids: BTreeSet<String>,
    /// Why the owners of the Cluster's VMs cannot be decided now: it is paused, or moving to another
    /// management cluster.
    pub frozen: Option<String>,
}

/// The objects of the API server, read after the drivers listed their VMs. The InfraMachines come first, then
/// the objects that may show that these were moved.
#[derive(Clone, Debug, Default)]
pub struct Live {
    machines: Vec<LiveMachine>,
    clusters: BTreeMap<NamespacedName, LiveCluster>,
    /// Whether the InfraMachines cover all namespaces and labels.
    whole: bool,
    by_provider_id: TextIndex,
    by_identity: TextIndex,
    by_name: TextIndex,
    shared: HashMap<String, BTreeSet<NamespacedName>>,
    /// One unreadable machine of each namespace.
    unreadable: HashMap<String, NamespacedName>,
}

impl Live {
    /// Indexes the objects.
    pub fn new(
        mut machines: Vec<LiveMachine>,
        infra_clusters: &[impl AsRef<DeserializeGuard<InfraCluster>>],
        clusters: &[impl AsRef<Cluster>],
        whole: bool,
    ) -> Self {
        let mut live = Self {
            whole,
            ..Self::default()
        };
        let infra: HashMap<NamespacedName, &DeserializeGuard<InfraCluster>> = infra_clusters
            .iter()
            .map(|object| (NamespacedName::of(object.as_ref().meta()), object.as_ref()))
            .collect();
        let mut members: HashMap<NamespacedName, Vec<&LiveMachine>> = HashMap::new();
        for machine in &machines {
            if let Some(name) = &machine.cluster {
                let key = NamespacedName::new(machine.key.namespace(), name);
                members.entry(key).or_default().push(machine);
            }
        }
        for cluster in clusters {
            let cluster = cluster.as_ref();
            let key = NamespacedName::of(&cluster.metadata);
            let carrier = infra_cluster_of(cluster).and_then(|key| infra.get(&key).copied());
            let members = members.get(&key).map_or([].as_slice(), Vec::as_slice);
            let found = live_cluster(cluster, carrier, members);
            for id in &found.ids {
                live.shared.entry(id.clone()).or_default().insert(key.clone());
            }
            live.clusters.insert(key, found);
        }
        for machine in machines.iter().filter(|machine| !machine.is_readable) {
            let namespace = machine.key.namespace().to_owned();
            live.unreadable
                .entry(namespace)
                .or_insert_with(|| machine.key.clone());
        }
        machines.shrink_to_fit();
        live.by_provider_id = TextIndex::new(&machines, |machine| [machine.provider_id.as_deref(), None]);
        live.by_identity = TextIndex::new(&machines, |machine| {
            [machine.identity.as_deref(), Some(&machine.uid)]
        });
        live.by_name = TextIndex::new(&machines, |machine| [Some(machine.key.name()), None]);
        live.machines = machines;
        live
    }

    /// Whether the machines cover all namespaces and labels.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The Cluster of a scope, if it has the same UID and the id that the VMs carry.
    fn cluster(&self, scope: &Scope) -> Option<&LiveCluster> {
        let cluster = self.clusters.get(&scope.cluster)?;
        (cluster.uid == scope.uid && cluster.ids.contains(&scope.cluster_id)).then_some(cluster)
    }

    fn at<'a>(&'a self, index: &'a TextIndex, text: &str) -> impl Iterator<Item = &'a LiveMachine> + use<'a> {
        index.places(text).map(|place| &self.machines[place])
    }

    /// The machine that records this provider id; the first one if there are several.
    fn of_provider_id(&self, id: &str) -> Option<&LiveMachine> {
        self.at(&self.by_provider_id, id)
            .find(|machine| machine.provider_id.as_deref() == Some(id))
    }

    /// A machine of the Cluster with the name that the VM was made for.
    pub fn namesake(&self, scope: &Scope, vm: &ListedMachine) -> Option<&NamespacedName> {
        let name = &vm.machine_name;
        self.at(&self.by_name, name)
            .find(|machine| machine.key.name() == name && machine.is_of(scope) && !name.is_empty())
            .map(|machine| &machine.key)
    }

    /// An unreadable machine in the namespace of the Cluster.
    pub fn unreadable(&self, scope: &Scope) -> Option<&NamespacedName> {
        self.unreadable.get(scope.cluster.namespace())
    }

    /// Another Cluster with the same cluster id.
    pub fn sharing(&self, scope: &Scope) -> Option<&NamespacedName> {
        let mut all = self.shared.get(&scope.cluster_id).into_iter().flatten();
        all.find(|key| **key != scope.cluster)
    }

    /// The machines that a VM was made for, usually one.
    fn owners<'a>(
        &'a self,
        scope: &'a Scope,
        vm: &'a ListedMachine,
    ) -> impl Iterator<Item = &'a LiveMachine> {
        let candidates = match &vm.machine_id {
            Some(id) => self.at(&self.by_identity, id),
            None => self.at(&self.by_name, &vm.machine_name),
        };
        candidates.filter(|machine| machine.is_owner_of(scope, vm))
    }
}

/// The InfraCluster that a Cluster names, if it has this provider's kind.
pub fn infra_cluster_of(cluster: &Cluster) -> Option<NamespacedName> {
    let reference = cluster.spec.infrastructure_ref.as_ref()?;
    reference
        .is_to::<InfraCluster>()
        .then(|| NamespacedName::new(cluster.metadata.namespace(), &reference.name))
}

fn live_cluster(
    cluster: &Cluster,
    carrier: Option<&DeserializeGuard<InfraCluster>>,
    members: &[&LiveMachine],
) -> LiveCluster {
    let annotations = |meta: &ObjectMeta| meta.annotations.clone().unwrap_or_default();
    let own = annotations(&cluster.metadata);
    let notes = carrier
        .map(|carrier| annotations(carrier.meta()))
        .unwrap_or_default();
    let uid = cluster.metadata.uid().to_owned();
    let mut ids: BTreeSet<String> = members
        .iter()
        .filter_map(|member| member.cluster_id.as_deref().map(str::to_owned))
        .collect();
    ids.extend(notes.get(annotations::CLUSTER_ID).cloned());
    if ids.is_empty() {
        ids.insert(uid.clone());
    }
    let is_marked = |all: &BTreeMap<String, String>| {
        all.contains_key(annotations::DELETE_FOR_MOVE) || all.contains_key(annotations::BLOCK_MOVE)
    };
    let moving = members.iter().find(|member| member.is_moving);
    let frozen = if cluster.is_paused() {
        Some("the Cluster is paused".to_owned())
    } else if notes.contains_key(annotations::PAUSED) {
        Some("its InfraCluster is paused".to_owned())
    } else if is_marked(&own) || is_marked(&notes) {
        Some("it is being moved to another management cluster".to_owned())
    } else {
        moving.map(|member| format!("InfraMachine {} is being moved", member.key))
    };
    LiveCluster {
        key: NamespacedName::of(&cluster.metadata),
        uid,
        ids,
        frozen,
    }
}

/// The owner of a VM at the time of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerLookup {
    /// An InfraMachine owns the VM.
    Owned(NamespacedName),
    /// The VM's Cluster is not in this management cluster.
    Foreign,
    /// The owner cannot be decided now, for this reason.
    Frozen(String),
    /// An InfraMachine has another VM, and this is a duplicate.
    Duplicate(NamespacedName),
    /// No InfraMachine owns the VM.
    Unowned,
}

/// The VMs of a scope in the same lists.
#[derive(Debug)]
pub struct Siblings<'a> {
    vms: &'a [ListedMachine],
    by_identity: TextIndex,
    by_name: TextIndex,
}

impl<'a> Siblings<'a> {
    /// Indexes all listed VMs.
    pub fn new(vms: &'a [ListedMachine]) -> Self {
        Self {
            vms,
            by_identity: TextIndex::new(vms, |vm| [vm.machine_id.as_deref(), None]),
            by_name: TextIndex::new(vms, |vm| [Some(&vm.machine_name), None]),
        }
    }

    /// The number of VMs that were made for a machine.
    fn count_of(&self, owner: &LiveMachine, scope: &Scope) -> usize {
        let identities = [owner.identity.as_deref(), Some(&*owner.uid)];
        let identified = identities.into_iter().flatten();
        let identified = identified.flat_map(|id| self.by_identity.places(id));
        let named = self.by_name.places(owner.key.name());
        let places: BTreeSet<_> = identified.chain(named).collect();
        let made = places
            .iter()
            .filter(|place| owner.is_owner_of(scope, &self.vms[**place]));
        made.count()
    }
}

/// Finds the owner of a VM. `siblings` are all listed VMs of the scope. If a machine does not record its VM
/// yet, two VMs of the machine are both in doubt.
pub fn owner_of(scope: &Scope, vm: &ListedMachine, siblings: &Siblings<'_>, live: &Live) -> OwnerLookup {
    if let Some(machine) = live.of_provider_id(vm.provider_id.as_str()) {
        return OwnerLookup::Owned(machine.key.clone());
    }
    let is_of_another = vm.cluster_id.as_ref().is_some_and(|id| *id != scope.cluster_id);
    let Some(cluster) = live.cluster(scope).filter(|_| !is_of_another) else {
        return OwnerLookup::Foreign;
    };
    let owner = live.owners(scope, vm).next();
    let is_only = |owner: &LiveMachine| owner.provider_id.is_none() && siblings.count_of(owner, scope) <= 1;
    match (owner, &cluster.frozen) {
        (Some(owner), _) if is_only(owner) => OwnerLookup::Owned(owner.key.clone()),
        (_, Some(why)) => OwnerLookup::Frozen(why.clone()),
        (Some(owner), None) => OwnerLookup::Duplicate(owner.key.clone()),
        (None, None) => OwnerLookup::Unowned,
    }
}
