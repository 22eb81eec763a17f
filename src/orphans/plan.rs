//! Whose is a VM that a driver lists, and may it be deleted? Pure, and total.
//!
//! # Why no VM of a living machine is deleted
//!
//! A VM carries the identity `m` of one InfraMachine as a tag. The provider writes `m` into the InfraMachine
//! before it asks the driver for the VM, and never into another object. So the InfraMachine was there before
//! the VM. Now let a driver list the VM, and let the API server answer *afterwards*, with a quorum read, that
//! no InfraMachine carries `m`. Then the InfraMachine is gone: an identity does not come late. What is left
//! are the ways in which an object is missing that was not meant to end:
//!
//! * A **backup** was restored that is older than the object, or the object was **moved** to another
//!   management cluster. Neither shows a deletion that was asked for. [`KeepReason::DeletionUnseen`] keeps
//!   every VM whose InfraMachine this process has not itself seen being deleted, by its user and not by a
//!   move (see [`super::DeletionLog`]). After a restore nothing is deleted but what had been deleted before
//!   it.
//! * A restored backup brings an object **back** whose end this process saw. Then the live read
//!   has it: [`OwnerLookup::Owned`].
//! * The Cluster is **moving**, or was moved: it is paused, marked, or not here at the time of the read. The
//!   Cluster is read after the InfraMachines, so that a move that took these is seen. [`OwnerLookup::Frozen`]
//!   and [`OwnerLookup::Foreign`] forget what was seen, so that counting begins anew. The other management
//!   cluster, where the Cluster lives on, has seen no deletion.
//! * A **half-done create**, one whose providerID is not written yet: its InfraMachine carries `m`.
//! * A **cache that is behind** plays no part: it can say that a VM is owned, which deletes nothing,
//!   and never that it is not.
//! * An object that **can't be read**, is in a **namespace that the provider may not list**, or has **lost
//!   its annotations**: see [`KeepReason::Unreadable`], [`KeepReason::OtherNamespaces`], and
//!   [`KeepReason::NameInUse`] with the providerID and the UID, each of which is enough to own a VM.
//! * A driver that does **not tell tags** proves nothing: [`KeepReason::NoIdentity`],
//!   [`KeepReason::NoCluster`].
//!
//! The call that deletes carries the tag `m`, which the driver compares with the VM's own once more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;

use crate::api::cluster_api::Cluster;
use crate::api::labels::{self, Instance};
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::api::{self, DeserializeGuard};
use crate::identity;
use cmi_driver::ListedMachine;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// Of these metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Cluster whose VMs are looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// The Cluster.
    pub cluster: Key,
    /// Its UID: one that came later under its name is another.
    pub uid: String,
    /// The id that drivers know it by.
    pub cluster_id: String,
}

/// What counts of an InfraMachine for the question whose a VM is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMachine {
    /// The object.
    pub key: Key,
    /// Its UID, which is its identity where nothing else was written down.
    pub uid: String,
    /// The Cluster that it is labelled with.
    pub cluster: Option<String>,
    /// The cluster id that it carries.
    pub cluster_id: Option<String>,
    /// The identity that it carries, its own or copied: to take a copy for an owner deletes nothing.
    pub identity: Option<String>,
    /// Whether a VM of it may exist.
    pub may_have_vm: bool,
    /// Its VM, where that is known.
    pub provider_id: Option<String>,
    /// Whether all of it could be read.
    pub is_readable: bool,
    /// Whether `clusterctl move` is taking it away.
    pub is_moving: bool,
}

impl LiveMachine {
    /// What counts of an object, also of one that can't be read.
    pub fn of(guarded: &DeserializeGuard<InfraMachine>) -> Self {
        let meta = guarded.meta();
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key).cloned();
        let readable = guarded.0.as_ref().ok();
        Self {
            key: Key::of(meta),
            uid: meta.uid.clone().unwrap_or_default(),
            cluster: labelled(meta),
            cluster_id: annotation(labels::CLUSTER_ID),
            identity: annotation(labels::MACHINE_ID)
                .and_then(|carried| carried.rsplit('/').next().map(str::to_owned))
                .filter(|id| !id.is_empty()),
            may_have_vm: readable.is_none_or(|machine| identity::instance(machine) != Instance::None),
            provider_id: readable.and_then(|machine| machine.spec.provider_id.clone()),
            is_readable: readable.is_some(),
            is_moving: annotation(labels::DELETE_FOR_MOVE).is_some(),
        }
    }

    fn is_of(&self, scope: &Scope) -> bool {
        self.cluster_id.as_ref() == Some(&scope.cluster_id)
            || (self.key.namespace == scope.cluster.namespace
                && self.cluster.as_ref() == Some(&scope.cluster.name))
    }

    /// Whether a VM was made for it, by the VM's identity, or by its name where the
    /// driver does not tell that.
    fn is_owner_of(&self, scope: &Scope, vm: &ListedMachine) -> bool {
        match &vm.machine_id {
            Some(id) => self.identity.as_ref() == Some(id) || self.uid == *id,
            None => self.key.name == vm.machine_name && self.may_have_vm && self.is_of(scope),
        }
    }
}

/// The Cluster that an object is labelled with.
pub fn labelled(meta: &ObjectMeta) -> Option<String> {
    meta.labels.as_ref()?.get(labels::CLUSTER_NAME).cloned()
}

/// What counts of a Cluster and its InfraCluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveCluster {
    /// The object.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// Every id that drivers may know it by: what InfraCluster and InfraMachines carry, or else its UID.
    pub ids: BTreeSet<String>,
    /// Why nothing may follow from what is seen of it now: it is paused, or on its way to
    /// another management cluster.
    pub frozen: Option<String>,
}

/// What the API server has, read after the drivers listed their VMs: first the InfraMachines, then what may
/// say that these were moved.
#[derive(Clone, Debug, Default)]
pub struct Live {
    machines: Vec<LiveMachine>,
    clusters: BTreeMap<Key, LiveCluster>,
    /// Whether the InfraMachines are those of all namespaces, and of every label.
    whole: bool,
    by_provider_id: HashMap<String, Vec<usize>>,
    by_identity: HashMap<String, Vec<usize>>,
    by_name: HashMap<String, Vec<usize>>,
    shared: HashMap<String, BTreeSet<Key>>,
}

impl Live {
    /// Puts together what was read.
    pub fn new(
        machines: Vec<LiveMachine>,
        infra_clusters: &[impl AsRef<DeserializeGuard<InfraCluster>>],
        clusters: &[impl AsRef<Cluster>],
        whole: bool,
    ) -> Self {
        let mut live = Self {
            whole,
            ..Self::default()
        };
        let infra: HashMap<Key, &DeserializeGuard<InfraCluster>> = infra_clusters
            .iter()
            .map(|guarded| (Key::of(guarded.as_ref().meta()), guarded.as_ref()))
            .collect();
        let mut members: HashMap<Key, Vec<&LiveMachine>> = HashMap::new();
        for machine in &machines {
            if let Some(name) = &machine.cluster {
                let key = Key {
                    namespace: machine.key.namespace.clone(),
                    name: name.clone(),
                };
                members.entry(key).or_default().push(machine);
            }
        }
        for cluster in clusters {
            let cluster = cluster.as_ref();
            let key = Key::of(&cluster.metadata);
            let carrier = infra_cluster_of(cluster).and_then(|key| infra.get(&key).copied());
            let members = members.get(&key).map_or([].as_slice(), Vec::as_slice);
            let found = live_cluster(cluster, carrier, members);
            for id in &found.ids {
                live.shared.entry(id.clone()).or_default().insert(key.clone());
            }
            live.clusters.insert(key, found);
        }
        for (index, machine) in machines.iter().enumerate() {
            let mut note = |map: fn(&mut Self) -> &mut HashMap<String, Vec<usize>>, value: &str| {
                map(&mut live).entry(value.to_owned()).or_default().push(index);
            };
            if let Some(id) = &machine.provider_id {
                note(|live| &mut live.by_provider_id, id);
            }
            if let Some(id) = &machine.identity {
                note(|live| &mut live.by_identity, id);
            }
            note(|live| &mut live.by_identity, &machine.uid);
            note(|live| &mut live.by_name, &machine.key.name);
        }
        live.machines = machines;
        live
    }

    /// Whether the machines are all that there are.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The Cluster of a scope, if it still is the one that it was, with the id that the VMs carry.
    fn cluster(&self, scope: &Scope) -> Option<&LiveCluster> {
        let cluster = self.clusters.get(&scope.cluster)?;
        (cluster.uid == scope.uid && cluster.ids.contains(&scope.cluster_id)).then_some(cluster)
    }

    fn found<'a>(
        &'a self,
        map: &'a HashMap<String, Vec<usize>>,
        value: &str,
    ) -> impl Iterator<Item = &'a LiveMachine> {
        map.get(value)
            .into_iter()
            .flatten()
            .map(|index| &self.machines[*index])
    }

    /// The machines that a VM was made for: one, as a rule.
    fn owners<'a>(
        &'a self,
        scope: &'a Scope,
        vm: &'a ListedMachine,
    ) -> impl Iterator<Item = &'a LiveMachine> {
        let candidates = match &vm.machine_id {
            Some(id) => self.found(&self.by_identity, id),
            None => self.found(&self.by_name, &vm.machine_name),
        };
        candidates.filter(|machine| machine.is_owner_of(scope, vm))
    }
}

/// The InfraCluster that a Cluster names, if it is one of ours.
pub fn infra_cluster_of(cluster: &Cluster) -> Option<Key> {
    let reference = cluster.spec.infrastructure_ref.as_ref()?;
    (reference.api_group == api::GROUP && reference.kind == "InfraCluster").then(|| Key {
        namespace: cluster.metadata.namespace.clone().unwrap_or_default(),
        name: reference.name.clone(),
    })
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
    let uid = cluster.metadata.uid.clone().unwrap_or_default();
    let mut ids: BTreeSet<String> = members
        .iter()
        .filter_map(|member| member.cluster_id.clone())
        .collect();
    ids.extend(notes.get(labels::CLUSTER_ID).cloned());
    if ids.is_empty() {
        ids.insert(uid.clone());
    }
    let is_marked = |all: &BTreeMap<String, String>| {
        all.contains_key(labels::DELETE_FOR_MOVE) || all.contains_key(labels::BLOCK_MOVE)
    };
    let moving = members.iter().find(|member| member.is_moving);
    let frozen = if cluster.is_paused() {
        Some("the Cluster is paused".to_owned())
    } else if notes.contains_key(labels::PAUSED) {
        Some("its InfraCluster is paused".to_owned())
    } else if is_marked(&own) || is_marked(&notes) {
        Some("it is being moved to another management cluster".to_owned())
    } else {
        moving.map(|member| format!("InfraMachine {} is being moved", member.key))
    };
    LiveCluster {
        key: Key::of(&cluster.metadata),
        uid,
        ids,
        frozen,
    }
}

/// What the API server says of a VM at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerLookup {
    /// An InfraMachine has it.
    Owned(Key),
    /// It is of a Cluster that this management cluster does not have.
    Foreign,
    /// Nothing may be concluded now.
    Frozen(String),
    /// An InfraMachine has another VM, and this is a second one.
    Duplicate(Key),
    /// No InfraMachine has it.
    Unowned,
}

/// Whose a VM is. `siblings` are all VMs of the scope that were listed with it: two of them for a machine
/// that does not say yet which one is its own are both in doubt.
pub fn owner_of(scope: &Scope, vm: &ListedMachine, siblings: &[ListedMachine], live: &Live) -> OwnerLookup {
    if let Some(machine) = live.found(&live.by_provider_id, vm.provider_id.as_str()).next() {
        return OwnerLookup::Owned(machine.key.clone());
    }
    let is_of_another = vm.cluster_id.as_ref().is_some_and(|id| *id != scope.cluster_id);
    let Some(cluster) = live.cluster(scope).filter(|_| !is_of_another) else {
        return OwnerLookup::Foreign;
    };
    let owner = live.owners(scope, vm).next();
    let is_only = |owner: &LiveMachine| {
        let of_owner = |other: &&ListedMachine| owner.is_owner_of(scope, other);
        owner.provider_id.is_none() && siblings.iter().filter(of_owner).count() <= 1
    };
    match (owner, &cluster.frozen) {
        (Some(owner), _) if is_only(owner) => OwnerLookup::Owned(owner.key.clone()),
        (_, Some(why)) => OwnerLookup::Frozen(why.clone()),
        (Some(owner), None) => OwnerLookup::Duplicate(owner.key.clone()),
        (None, None) => OwnerLookup::Unowned,
    }
}

/// Why an orphan is reported and not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// Deleting was not asked for.
    ReportOnly,
    /// The driver does not tell which machine object the VM was made for.
    NoIdentity,
    /// The driver does not tell which cluster the VM was made for.
    NoCluster,
    /// The back end has lost the name, without which the VM can't be deleted.
    NoName,
    /// It is not old enough.
    TooYoung {
        /// How old it has to be.
        least: Duration,
    },
    /// This process has not seen the deletion of its InfraMachine.
    DeletionUnseen,
    /// A machine of the same name lives in its Cluster.
    NameInUse(Key),
    /// An InfraMachine in the Cluster's namespace can't be read: it may be the owner.
    Unreadable(Key),
    /// The owner may be in a namespace that the provider does not see.
    OtherNamespaces,
    /// Another Cluster has the same id.
    SharedClusterId(Key),
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReportOnly => f.write_str("the provider runs with --orphans=report"),
            Self::NoIdentity => f.write_str("the driver does not tell the VM's tag capcmi.io/machine"),
            Self::NoCluster => f.write_str("the driver does not tell the VM's tag kubernetes.io/cluster"),
            Self::NoName => f.write_str("the back end has lost the VM's name"),
            Self::TooYoung { least } => write!(f, "it is younger than {} s", least.as_secs()),
            Self::DeletionUnseen => f.write_str(
                "this process has not seen the deletion of its InfraMachine while identities were guarded, and it may be missing \
                 because a backup was restored",
            ),
            Self::NameInUse(key) => write!(f, "InfraMachine {key} has its name"),
            Self::Unreadable(key) => write!(f, "InfraMachine {key} can't be read and may be its owner"),
            Self::OtherNamespaces => {
                f.write_str("the provider may not list the InfraMachines of all namespaces")
            }
            Self::SharedClusterId(key) => write!(f, "Cluster {key} has the same cluster id"),
        }
    }
}

/// What limits the deletion of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletionPolicy {
    /// Whether orphans are deleted at all.
    pub delete: bool,
    /// How far apart two sightings have to be: the longer of the interval and the
    /// driver's consistency window.
    pub gap: Duration,
    /// How old an orphan has to be.
    pub min_age: Duration,
}

/// What time it is.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// When the list was asked for, by the clock that only goes forward.
    pub asked: Instant,
    /// The same by the calendar.
    pub now: Timestamp,
}

/// Since when a VM is known to be unowned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// When the first list that had it was asked for.
    pub first: Instant,
    /// The same by the calendar.
    pub since: Timestamp,
    /// Whether a later one had it, too.
    pub is_confirmed: bool,
}

/// The VMs of one scope and driver that are known to be unowned, by provider id.
pub type Sightings = HashMap<String, Sighting>;

/// What becomes of a listed VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An InfraMachine has it.
    Owned(Key),
    /// It is of a Cluster that this management cluster does not have: it is left alone,
    /// and nothing is said of it.
    Foreign,
    /// Nothing may be concluded now.
    Frozen(String),
    /// It has no owner, and was seen so only once, or not for long enough.
    SeenOnce,
    /// It is the second VM of a machine. It is never deleted.
    Duplicate(Key),
    /// It has no owner. Without a reason to keep it, it may be deleted.
    Orphan(Vec<KeepReason>),
}

/// What becomes of every VM of a scope. `observed_deletion` says of an identity whether this process saw the
/// deletion of its InfraMachine.
///
/// A VM that is not listed any more is forgotten where the lists show that it `is_gone`: one that is in a
/// list which failed is not.
pub fn judge(
    scope: &Scope,
    vms: &[ListedMachine],
    is_gone: impl Fn(&str) -> bool,
    live: &Live,
    observed_deletion: impl Fn(&str) -> bool,
    sightings: &mut Sightings,
    (policy, clock): (DeletionPolicy, Clock),
) -> Vec<Finding> {
    let listed: HashSet<_> = vms.iter().map(|vm| vm.provider_id.as_str()).collect();
    sightings.retain(|id, _| listed.contains(id.as_str()) || !is_gone(id));
    vms.iter()
        .map(|vm| {
            let id = vm.provider_id.as_str();
            let (owner, keep_reasons) = (owner_of(scope, vm, vms, live), |sighting| {
                keep_reasons(scope, vm, live, &observed_deletion, sighting, (policy, clock))
            });
            let unowned = match owner {
                OwnerLookup::Owned(key) => Err(Finding::Owned(key)),
                OwnerLookup::Foreign => Err(Finding::Foreign),
                OwnerLookup::Frozen(why) => Err(Finding::Frozen(why)),
                OwnerLookup::Duplicate(key) => Ok(Some(key)),
                OwnerLookup::Unowned => Ok(None),
            };
            let duplicate = match unowned {
                Ok(duplicate) => duplicate,
                Err(finding) => {
                    sightings.remove(id);
                    return finding;
                }
            };
            let sighting = sight(sightings, id, policy.gap, clock);
            match duplicate {
                _ if !sighting.is_confirmed => Finding::SeenOnce,
                Some(key) => Finding::Duplicate(key),
                None => Finding::Orphan(keep_reasons(sighting)),
            }
        })
        .collect()
}

/// Counts a sighting.
fn sight(sightings: &mut Sightings, id: &str, gap: Duration, clock: Clock) -> Sighting {
    let sighting = sightings.entry(id.to_owned()).or_insert(Sighting {
        first: clock.asked,
        since: clock.now,
        is_confirmed: false,
    });
    let passed = clock.asked.saturating_duration_since(sighting.first);
    sighting.is_confirmed |= passed > Duration::ZERO && passed >= gap;
    *sighting
}

/// Whether an orphan may still be deleted, by what the API server says immediately before.
pub fn may_still_be_deleted(
    scope: &Scope,
    vm: &ListedMachine,
    siblings: &[ListedMachine],
    live: &Live,
    observed_deletion: impl Fn(&str) -> bool,
    sighting: Sighting,
    at: (DeletionPolicy, Clock),
) -> bool {
    owner_of(scope, vm, siblings, live) == OwnerLookup::Unowned
        && sighting.is_confirmed
        && keep_reasons(scope, vm, live, &observed_deletion, sighting, at).is_empty()
}

/// What one look says of a VM: an orphan with what would keep it from being deleted, whatever was
/// seen before and is asked for.
pub fn at_a_glance(scope: &Scope, vm: &ListedMachine, siblings: &[ListedMachine], live: &Live) -> Finding {
    match owner_of(scope, vm, siblings, live) {
        OwnerLookup::Owned(key) => Finding::Owned(key),
        OwnerLookup::Foreign => Finding::Foreign,
        OwnerLookup::Frozen(why) => Finding::Frozen(why),
        OwnerLookup::Duplicate(key) => Finding::Duplicate(key),
        OwnerLookup::Unowned => {
            let policy = DeletionPolicy {
                delete: true,
                gap: Duration::ZERO,
                min_age: Duration::ZERO,
            };
            let clock = Clock {
                asked: Instant::now(),
                now: Timestamp::now(),
            };
            let sighting = Sighting {
                first: clock.asked,
                since: clock.now,
                is_confirmed: true,
            };
            Finding::Orphan(keep_reasons(
                scope,
                vm,
                live,
                &|_| true,
                sighting,
                (policy, clock),
            ))
        }
    }
}

/// What keeps a VM without an owner from being deleted: all that does, so that a person sees it at once.
fn keep_reasons(
    scope: &Scope,
    vm: &ListedMachine,
    live: &Live,
    observed_deletion: &impl Fn(&str) -> bool,
    sighting: Sighting,
    (policy, clock): (DeletionPolicy, Clock),
) -> Vec<KeepReason> {
    let when = |keep_reasons: bool, keep_reason: KeepReason| keep_reasons.then_some(keep_reason);
    let namesake = live
        .found(&live.by_name, &vm.machine_name)
        .find(|machine| machine.is_of(scope) && !vm.machine_name.is_empty());
    let unreadable = live
        .machines
        .iter()
        .find(|machine| !machine.is_readable && machine.key.namespace == scope.cluster.namespace);
    let mut others = live.shared.get(&scope.cluster_id).into_iter().flatten();
    let shared = others.find(|key| **key != scope.cluster);
    [
        when(!policy.delete, KeepReason::ReportOnly),
        match &vm.machine_id {
            None => Some(KeepReason::NoIdentity),
            Some(id) => when(!observed_deletion(id), KeepReason::DeletionUnseen),
        },
        when(vm.cluster_id.is_none(), KeepReason::NoCluster),
        when(vm.machine_name.is_empty(), KeepReason::NoName),
        when(
            age(vm, sighting, clock) < policy.min_age,
            KeepReason::TooYoung {
                least: policy.min_age,
            },
        ),
        namesake.map(|machine| KeepReason::NameInUse(machine.key.clone())),
        unreadable.map(|machine| KeepReason::Unreadable(machine.key.clone())),
        when(!live.whole, KeepReason::OtherNamespaces),
        shared.map(|key| KeepReason::SharedClusterId(key.clone())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// How old a VM is: by the back end's clock, or else for as long as it is known to be unowned.
fn age(vm: &ListedMachine, sighting: Sighting, clock: Clock) -> Duration {
    match vm.created_at {
        Some(made) => Duration::try_from(clock.now.duration_since(made)).unwrap_or_default(),
        None => clock.asked.saturating_duration_since(sighting.first),
    }
}

/// Each VM once, though several lists of a scope may have it. Where two lists tell different things
/// of it, nothing is proven.
pub fn each_once(vms: impl IntoIterator<Item = ListedMachine>) -> Vec<ListedMachine> {
    let mut found: BTreeMap<_, ListedMachine> = BTreeMap::new();
    for vm in vms {
        match found.get_mut(&vm.provider_id) {
            None => {
                found.insert(vm.provider_id.clone(), vm);
            }
            Some(known) if *known == vm => {}
            Some(known) => {
                if known.machine_name != vm.machine_name {
                    known.machine_name.clear();
                }
                if known.machine_id != vm.machine_id {
                    known.machine_id = None;
                }
                if known.cluster_id != vm.cluster_id {
                    known.cluster_id = None;
                }
                known.created_at = known.created_at.max(vm.created_at);
            }
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests;
