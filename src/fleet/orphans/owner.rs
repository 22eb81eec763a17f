//! Finds the owner of a VM that a driver lists, by what the API server has.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;

use super::text_index::TextIndex;
use crate::api::cluster_api::{Cluster, cluster_name};
use crate::api::identity::{VmRecord, VmState};
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations};
pub use crate::reconcile::caches::NamespacedName;
use cmi_driver::ListedMachine;

/// A Cluster whose VMs are scanned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// The Cluster.
    pub cluster: NamespacedName,
    /// The Cluster's UID: a later Cluster of the same name is another.
    pub uid: String,
    /// The id that drivers know the Cluster by.
    pub cluster_id: String,
}

/// The parts of an InfraMachine that decide which VM it owns. Small: a read of a whole fleet has one for each
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMachine {
    /// The object.
    pub key: NamespacedName,
    /// The UID, which is the machine's identity where nothing else was written down.
    pub uid: Box<str>,
    /// The Cluster that it is labelled with.
    pub cluster: Option<Arc<str>>,
    /// The cluster id that it carries.
    pub cluster_id: Option<Arc<str>>,
    /// The identity that the machine carries, where that is not its UID: its own or a copy, since to take a
    /// copy for an owner deletes nothing.
    pub identity: Option<Box<str>>,
    /// Whether a VM of the machine may exist.
    pub may_have_vm: bool,
    /// The id of its VM: any other VM of the machine is a second one.
    pub provider_id: Option<Box<str>>,
    /// Whether the whole object could be read.
    pub is_readable: bool,
    /// Whether `clusterctl move` is taking the machine away.
    pub is_moving: bool,
}

/// The texts that many machines have in common: each is kept once.
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
    /// Reads the parts that count of an object, also of one that can't be parsed as a whole.
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

    /// Whether a VM was made for this machine, by the VM's identity, or by its name where the driver does not
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
    /// Every id that drivers may know the Cluster by: those that its InfraCluster and InfraMachines carry, or
    /// else its UID.
    pub ids: BTreeSet<String>,
    /// Why nothing may be concluded about the Cluster's VMs now: it is paused, or on its way to another
    /// management cluster.
    pub frozen: Option<String>,
}

/// The objects of the API server, read after the drivers listed their VMs: first the InfraMachines, then the
/// objects that may say that these were moved.
#[derive(Clone, Debug, Default)]
pub struct Live {
    machines: Vec<LiveMachine>,
    clusters: BTreeMap<NamespacedName, LiveCluster>,
    /// Whether the InfraMachines are those of all namespaces, and of every label.
    whole: bool,
    by_provider_id: TextIndex,
    by_identity: TextIndex,
    by_name: TextIndex,
    shared: HashMap<String, BTreeSet<NamespacedName>>,
    /// One machine that can't be read, by namespace.
    unreadable: HashMap<String, NamespacedName>,
}

impl Live {
    /// Puts together what was read.
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

    /// Whether the machines are all that there are.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The Cluster of a scope, if it is still the same one, with the id that the VMs carry.
    fn cluster(&self, scope: &Scope) -> Option<&LiveCluster> {
        let cluster = self.clusters.get(&scope.cluster)?;
        (cluster.uid == scope.uid && cluster.ids.contains(&scope.cluster_id)).then_some(cluster)
    }

    fn at<'a>(&'a self, index: &'a TextIndex, text: &str) -> impl Iterator<Item = &'a LiveMachine> + use<'a> {
        index.places(text).map(|place| &self.machines[place])
    }

    /// The machine that records this provider id, or the first of several.
    fn of_provider_id(&self, id: &str) -> Option<&LiveMachine> {
        self.at(&self.by_provider_id, id)
            .find(|machine| machine.provider_id.as_deref() == Some(id))
    }

    /// A machine of the Cluster that has the name that the VM was made for.
    pub fn namesake(&self, scope: &Scope, vm: &ListedMachine) -> Option<&NamespacedName> {
        let name = &vm.machine_name;
        self.at(&self.by_name, name)
            .find(|machine| machine.key.name() == name && machine.is_of(scope) && !name.is_empty())
            .map(|machine| &machine.key)
    }

    /// A machine in the namespace of the Cluster that can't be read.
    pub fn unreadable(&self, scope: &Scope) -> Option<&NamespacedName> {
        self.unreadable.get(scope.cluster.namespace())
    }

    /// Another Cluster with the same cluster id.
    pub fn sharing(&self, scope: &Scope) -> Option<&NamespacedName> {
        let mut all = self.shared.get(&scope.cluster_id).into_iter().flatten();
        all.find(|key| **key != scope.cluster)
    }

    /// The machines that a VM was made for: one, as a rule.
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

/// The InfraCluster that a Cluster names, if it is one of ours.
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

/// The owner of a VM at one moment, by what the API server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerLookup {
    /// An InfraMachine owns the VM.
    Owned(NamespacedName),
    /// The VM is of a Cluster that this management cluster does not have.
    Foreign,
    /// Nothing may be concluded now; the text says why.
    Frozen(String),
    /// An InfraMachine has another VM, and this is a second one.
    Duplicate(NamespacedName),
    /// No InfraMachine owns the VM.
    Unowned,
}

/// The VMs of a scope that were listed together.
#[derive(Debug)]
pub struct Siblings<'a> {
    vms: &'a [ListedMachine],
    by_identity: TextIndex,
    by_name: TextIndex,
}

impl<'a> Siblings<'a> {
    /// Indexes all VMs that were listed.
    pub fn new(vms: &'a [ListedMachine]) -> Self {
        Self {
            vms,
            by_identity: TextIndex::new(vms, |vm| [vm.machine_id.as_deref(), None]),
            by_name: TextIndex::new(vms, |vm| [Some(&vm.machine_name), None]),
        }
    }

    /// How many of the VMs were made for a machine.
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

/// Finds the owner of a VM. `siblings` are all VMs of the scope that were listed with it: where a machine
/// does not say yet which VM is its own, two VMs of it are both in doubt.
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
