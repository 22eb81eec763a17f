//! The state of the cloud: the sum of the events so far. No I/O, no timers; the time is passed in.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::clock::Instant;
use super::subnet::Subnet;
use super::vm::{Condition, Vm, VmId};
use cmi_driver::{Address, tags};

/// Something that changed the cloud.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// A VM was ordered, or planted from the console.
    Ordered(Box<Vm>),
    /// The guest is to stop.
    StopOrdered {
        /// Which VM.
        id: VmId,
        /// From when it is stopped.
        stops_at: Instant,
    },
    /// A VM was restarted.
    Restarted {
        /// Which VM.
        id: VmId,
        /// From when its guest runs again.
        boots_at: Instant,
    },
    /// A VM is to be deleted.
    DeletionOrdered {
        /// Which VM.
        id: VmId,
        /// From when it is gone.
        gone_at: Instant,
    },
    /// The source/destination check was switched.
    SourceDestCheckSet {
        /// Which VM.
        id: VmId,
        /// On or off.
        on: bool,
    },
    /// The labels were replaced.
    LabelsSet {
        /// Which VM.
        id: VmId,
        /// All labels that it has now.
        labels: BTreeMap<String, String>,
    },
    /// The addresses of a VM were replaced.
    AddressesSet {
        /// Which VM.
        id: VmId,
        /// All addresses that it has now.
        addresses: Vec<Address>,
    },
    /// A VM without an identity received one.
    MachineTagSet {
        /// Which VM.
        id: VmId,
        /// The identity of its machine object.
        machine: String,
    },
    /// A VM broke, was locked or was repaired.
    ConditionSet {
        /// Which VM.
        id: VmId,
        /// Its condition now.
        condition: Condition,
    },
    /// The creation of an ordered VM is delayed, or ends now if it was delayed before.
    Deferred {
        /// Which VM.
        id: VmId,
        /// The time when it comes into being.
        until: Instant,
    },
    /// A VM is gone without an order to delete it.
    Vanished {
        /// Which VM.
        id: VmId,
    },
    /// The quota was changed; it replaces that of every configuration. None lifts it.
    QuotaSet {
        /// The most VMs.
        quota: Option<u32>,
    },
    /// The capacity of a pool was changed; it replaces that of every configuration.
    CapacitySet {
        /// The pool.
        pool: String,
        /// The most VMs.
        capacity: u32,
    },
}

/// An event with its time: one line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at: Instant,
    /// The event.
    pub event: Event,
}

/// The cloud at one time.
#[derive(Debug, Default)]
pub struct Cloud {
    vms: HashMap<VmId, Vm>,
    clusters: HashMap<String, HashMap<String, Vec<VmId>>>,
    pools: HashMap<String, PoolUse>,
    departures: BinaryHeap<Reverse<(Instant, VmId)>>,
    gone: HashMap<VmId, Instant>,
    /// VMs that are ordered but do not exist yet.
    deferred: Vec<(Instant, Vm)>,
    quota: Quota,
    mutations: u64,
}

/// The quota of the console.
#[derive(Clone, Copy, Debug, Default)]
enum Quota {
    #[default]
    AsConfigured,
    Lifted,
    Set(u32),
}

/// The used part of a pool.
#[derive(Debug, Default)]
struct PoolUse {
    zones: HashMap<Option<String>, u32>,
    vms: u32,
    capacity: Option<u32>,
    highest: Option<Ipv4Addr>,
    returned: BTreeSet<Ipv4Addr>,
}

impl Cloud {
    /// How many events there were. Reads do not change it (DRV-29, INI-01).
    pub fn mutations(&self) -> u64 {
        self.mutations
    }

    /// A VM that is not gone.
    pub fn vm(&self, id: VmId) -> Option<&Vm> {
        self.vms.get(&id)
    }

    /// Every VM that is not gone, in no order.
    pub fn vms(&self) -> impl Iterator<Item = &Vm> {
        self.vms.values()
    }

    /// Since when a VM is gone that was once there.
    pub fn gone_since(&self, id: VmId) -> Option<Instant> {
        self.gone.get(&id).copied()
    }

    /// Every VM of a cluster.
    pub fn of_cluster(&self, cluster: &str) -> impl Iterator<Item = &Vm> {
        let ids = self
            .clusters
            .get(cluster)
            .into_iter()
            .flat_map(HashMap::values)
            .flatten();
        ids.filter_map(|id| self.vms.get(id))
    }

    /// Every VM of this name in a cluster, with any identity.
    pub fn named(&self, cluster: &str, name: &str) -> impl Iterator<Item = &Vm> {
        let ids = self
            .clusters
            .get(cluster)
            .and_then(|names| names.get(name))
            .into_iter()
            .flatten();
        ids.filter_map(|id| self.vms.get(id))
    }

    /// Every VM of this name in a cluster that was ordered and is not there yet.
    pub fn deferred(&self, cluster: &str, name: &str) -> impl Iterator<Item = &Vm> {
        let vms = self.deferred.iter().map(|(_, vm)| vm);
        vms.filter(move |vm| vm.cluster() == cluster && vm.name == name)
    }

    /// How many VMs there are.
    pub fn total(&self) -> usize {
        self.vms.len()
    }

    /// How many VMs a pool has.
    pub fn taken(&self, pool: &str) -> u32 {
        self.pools.get(pool).map_or(0, |used| used.vms)
    }

    /// How many VMs a pool has in a zone.
    pub fn taken_in_zone(&self, pool: &str, zone: &str) -> u32 {
        let zones = self.pools.get(pool).map(|used| &used.zones);
        zones
            .and_then(|zones| zones.get(&Some(zone.to_owned())))
            .copied()
            .unwrap_or(0)
    }

    /// The quota: the console's if set, else the configured one.
    pub fn quota(&self, configured: Option<u32>) -> Option<u32> {
        match self.quota {
            Quota::AsConfigured => configured,
            Quota::Lifted => None,
            Quota::Set(quota) => Some(quota),
        }
    }

    /// The capacity of a pool: the console's if set, else the configured one.
    pub fn capacity(&self, pool: &str, configured: u32) -> u32 {
        self.pools
            .get(pool)
            .and_then(|used| used.capacity)
            .unwrap_or(configured)
    }

    /// Returns an address that no VM of the pool has, preferably an unused one.
    pub fn free_address(&self, pool: &str, subnet: Subnet) -> Option<Ipv4Addr> {
        let Some(used) = self.pools.get(pool) else {
            return subnet.host(0);
        };
        let next = used
            .highest
            .and_then(|highest| subnet.index(highest))
            .map_or(0, |index| index + 1);
        subnet.host(next).or_else(|| used.returned.first().copied())
    }

    /// Advances the time: VMs come into being or disappear when they are due.
    pub fn advance(&mut self, now: Instant) {
        for (_, vm) in self
            .deferred
            .extract_if(.., |(at, _)| *at <= now)
            .collect::<Vec<_>>()
        {
            self.add(vm);
        }
        while let Some(Reverse((at, id))) = self
            .departures
            .peek()
            .copied()
            .filter(|Reverse((at, _))| *at <= now)
        {
            self.departures.pop();
            if self.vms.get(&id).is_some_and(|vm| vm.gone_at == Some(at)) {
                self.remove(id, at);
            }
        }
    }

    /// Adds an event. Events about a VM that is gone change nothing.
    pub fn apply(&mut self, entry: Entry) {
        self.mutations += 1;
        // In a replayed journal, deletions that were due earlier come first.
        self.advance(entry.at);
        match entry.event {
            Event::Ordered(vm) => self.add(*vm),
            Event::StopOrdered { id, stops_at } => self.change(id, |vm| vm.stops_at = Some(stops_at)),
            Event::Restarted { id, boots_at } => self.change(id, |vm| {
                vm.boots_at = boots_at;
                vm.stops_at = None;
            }),
            Event::DeletionOrdered { id, gone_at } => {
                self.change(id, |vm| vm.gone_at = Some(gone_at));
                self.departures.push(Reverse((gone_at, id)));
            }
            Event::SourceDestCheckSet { id, on } => self.change(id, |vm| vm.source_dest_check = on),
            Event::LabelsSet { id, labels } => self.change(id, |vm| vm.labels = labels),
            Event::AddressesSet { id, addresses } => {
                self.change(id, |vm| vm.set_addresses = Some(addresses));
            }
            Event::MachineTagSet { id, machine } => self.change(id, |vm| {
                vm.tags.insert(tags::MACHINE.to_owned(), machine);
            }),
            Event::ConditionSet { id, condition } => self.change(id, |vm| vm.condition = condition),
            Event::Deferred { id, until } => self.defer(id, until, entry.at),
            Event::Vanished { id } => self.remove(id, entry.at),
            Event::QuotaSet { quota } => self.quota = quota.map_or(Quota::Lifted, Quota::Set),
            Event::CapacitySet { pool, capacity } => {
                self.pools.entry(pool).or_default().capacity = Some(capacity);
            }
        }
    }

    fn defer(&mut self, id: VmId, until: Instant, at: Instant) {
        if let Some((due, _)) = self.deferred.iter_mut().find(|(_, vm)| vm.id == id) {
            *due = until;
            return;
        }
        let vm = self.vms.get(&id).cloned();
        self.remove(id, at);
        self.gone.remove(&id);
        self.deferred.extend(vm.map(|vm| (until, vm)));
    }

    fn change(&mut self, id: VmId, change: impl FnOnce(&mut Vm)) {
        if let Some(vm) = self.vms.get_mut(&id) {
            change(vm);
        }
    }

    fn add(&mut self, vm: Vm) {
        let names = self.clusters.entry(vm.cluster().to_owned()).or_default();
        names.entry(vm.name.clone()).or_default().push(vm.id);
        let used = self.pools.entry(vm.pool.clone()).or_default();
        used.vms += 1;
        *used.zones.entry(vm.zone.clone()).or_default() += 1;
        if let Some(address) = vm.address {
            used.highest = used.highest.max(Some(address));
            used.returned.remove(&address);
        }
        self.vms.insert(vm.id, vm);
    }

    fn remove(&mut self, id: VmId, at: Instant) {
        let Some(vm) = self.vms.remove(&id) else { return };
        if let Some(names) = self.clusters.get_mut(vm.cluster())
            && let Some(ids) = names.get_mut(&vm.name)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                names.remove(&vm.name);
            }
        }
        if let Some(used) = self.pools.get_mut(&vm.pool) {
            used.vms = used.vms.saturating_sub(1);
            used.returned.extend(vm.address);
            if let Some(in_zone) = used.zones.get_mut(&vm.zone) {
                *in_zone = in_zone.saturating_sub(1);
            }
        }
        self.gone.insert(id, at);
    }
}

#[cfg(test)]
mod tests {
    use super::super::vm::tests::vm;
    use super::*;

    fn at(millis: u64, event: Event) -> Entry {
        Entry {
            at: Instant::from_millis(millis),
            event,
        }
    }

    #[test]
    fn a_vm_that_is_to_be_deleted_is_there_until_its_time_has_come() {
        let (mut cloud, vm) = (Cloud::default(), vm("a"));
        cloud.apply(at(0, Event::Ordered(Box::new(vm.clone()))));
        cloud.apply(at(
            10,
            Event::DeletionOrdered {
                id: vm.id,
                gone_at: Instant::from_millis(50),
            },
        ));
        cloud.advance(Instant::from_millis(49));
        assert_eq!(cloud.named("c", "a").count(), 1);
        cloud.advance(Instant::from_millis(50));
        assert_eq!((cloud.named("c", "a").count(), cloud.taken("default")), (0, 0));
        assert_eq!(cloud.gone_since(vm.id), Some(Instant::from_millis(50)));
    }

    #[test]
    fn a_deferred_vm_appears_at_its_time_also_in_a_later_replay() {
        let vm = vm("a");
        let until = Instant::from_millis(50);
        let mut cloud = Cloud::default();
        cloud.apply(at(0, Event::Ordered(Box::new(vm.clone()))));
        cloud.apply(at(0, Event::Deferred { id: vm.id, until }));
        cloud.advance(Instant::from_millis(49));
        assert_eq!((cloud.total(), cloud.gone_since(vm.id)), (0, None));
        cloud.apply(at(
            60,
            Event::DeletionOrdered {
                id: vm.id,
                gone_at: Instant::from_millis(70),
            },
        ));
        assert_eq!(cloud.named("c", "a").count(), 1);
        cloud.advance(Instant::from_millis(70));
        assert_eq!(cloud.total(), 0);
    }

    #[test]
    fn an_address_is_used_again_only_when_the_subnet_has_no_fresh_one() {
        let subnet: Subnet = "10.0.0.0/29".parse().unwrap();
        let mut cloud = Cloud::default();
        let order = |cloud: &mut Cloud| {
            let mut vm = vm("a");
            vm.address = cloud.free_address("default", subnet);
            let answer = (vm.id, vm.address);
            cloud.apply(at(0, Event::Ordered(Box::new(vm))));
            answer
        };
        let (first, address) = order(&mut cloud);
        cloud.apply(at(1, Event::Vanished { id: first }));
        let fresh: BTreeSet<_> = (0..4).map(|_| order(&mut cloud).1).collect();
        assert!(fresh.len() == 4 && !fresh.contains(&address));
        assert_eq!(order(&mut cloud).1, address);
        assert_eq!(cloud.free_address("default", subnet), None);
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        for event in [
            Event::Ordered(Box::new(vm("a"))),
            Event::QuotaSet { quota: None },
            Event::Vanished { id: VmId::unique() },
        ] {
            let entry = at(7, event);
            let written = serde_json::to_string(&entry).unwrap();
            assert_eq!(
                serde_json::from_str::<Entry>(&written).unwrap(),
                entry,
                "{written}"
            );
        }
    }
}
