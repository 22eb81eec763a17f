//! Compares the cloud's journal with invariants that must always hold.
//!
//! The code is pure: it receives journal entries and the API server's objects, and returns violations.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cmi_driver::tags;
use cmi_simulated::{Entry, Event, Instant, Vm, VmId};

/// All VMs that ever existed, and the known facts about their machines.
#[derive(Default)]
pub struct Ledger {
    vms: HashMap<VmId, Record>,
    /// Start of the deletion for each InfraMachine that was seen in deletion, by name.
    in_deletion: HashMap<String, Instant>,
    /// Deletions of VMs that are not yet compared with the API server.
    pending: BTreeSet<VmId>,
    /// VMs that were ordered.
    pub creates: usize,
    /// VMs whose create took effect late, or would have without a repeated call.
    pub late: usize,
    /// VMs whose deletion was ordered.
    pub deletes: usize,
    /// Deletions of VMs whose InfraMachine vanished before it was seen in deletion.
    pub unseen: usize,
}

struct Record {
    name: String,
    machine: String,
    provider_id: String,
    deletion: Option<Instant>,
    gone: Option<Instant>,
    /// When the VM appears, if its create takes effect late.
    there_from: Option<Instant>,
}

/// An InfraMachine from the API server.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Start of its deletion, in whole seconds, rounded down.
    pub in_deletion: Option<Instant>,
    /// Whether its status is ready.
    pub ready: bool,
    /// The VM in its status.
    pub provider_id: Option<String>,
}

impl Ledger {
    /// Adds an entry of the journal. Returns a violation, if any.
    pub fn enter(&mut self, entry: &Entry) -> Option<String> {
        match &entry.event {
            Event::Ordered(vm) => self.order(vm, entry.at),
            Event::DeletionOrdered { id, gone_at } => {
                if let Some(vm) = self.vms.get_mut(id)
                    && vm.deletion.is_none()
                {
                    vm.deletion = Some(entry.at);
                    vm.gone = Some(*gone_at);
                    self.deletes += 1;
                    self.pending.insert(*id);
                }
                None
            }
            Event::Vanished { id } => {
                if let Some(vm) = self.vms.get_mut(id) {
                    vm.gone = Some(entry.at);
                }
                None
            }
            Event::StopOrdered { .. }
            | Event::Restarted { .. }
            | Event::SourceDestCheckSet { .. }
            | Event::LabelsSet { .. }
            | Event::AddressesSet { .. }
            | Event::MachineTagSet { .. }
            | Event::ConditionSet { .. }
            | Event::QuotaSet { .. }
            | Event::CapacitySet { .. } => None,
            Event::Deferred { id, until } => {
                if let Some(vm) = self.vms.get_mut(id) {
                    self.late += usize::from(vm.there_from.is_none());
                    vm.there_from = Some(*until);
                }
                None
            }
        }
    }

    /// Each machine has a single VM in its whole life.
    fn order(&mut self, vm: &Vm, at: Instant) -> Option<String> {
        let machine = vm.tags.get(tags::MACHINE).cloned().unwrap_or_default();
        let before = self.vms.values().find(|other| other.machine == machine);
        let broken = before.map(|before| {
            format!(
                "a second VM was made for one machine: {} ({}) at {at:?} has the identity {machine} of {} \
                    ({}), which was deleted at {:?} and gone at {:?}",
                vm.name,
                vm.provider_id(),
                before.name,
                before.provider_id,
                before.deletion,
                before.gone,
            )
        });
        self.creates += 1;
        self.vms.insert(
            vm.id,
            Record {
                name: vm.name.clone(),
                machine,
                provider_id: vm.provider_id(),
                deletion: None,
                gone: None,
                there_from: None,
            },
        );
        broken
    }

    /// Compares the VMs with all existing InfraMachines. Returns violations. `asked` is the time of the
    /// request to the API server; the journal was read after the answer.
    pub fn compare(&mut self, asked: Instant, machines: &[Seen]) -> Vec<String> {
        for machine in machines {
            if let Some(since) = machine.in_deletion {
                self.in_deletion.entry(machine.name.clone()).or_insert(since);
            }
        }
        let mut broken = self.deleted_alive(asked, machines);
        broken.extend(
            machines
                .iter()
                .filter_map(|machine| self.without_vm(asked, machine)),
        );
        broken
    }

    /// A VM may be deleted only when its InfraMachine is in deletion. Deletions after `asked` are compared
    /// with a later answer.
    fn deleted_alive(&mut self, asked: Instant, machines: &[Seen]) -> Vec<String> {
        let alive: BTreeMap<&str, &Seen> = machines
            .iter()
            .filter(|machine| machine.in_deletion.is_none())
            .map(|machine| (machine.name.as_str(), machine))
            .collect();
        let mut broken = Vec::new();
        for id in std::mem::take(&mut self.pending) {
            let Some(vm) = self.vms.get(&id) else { continue };
            if vm.deletion.is_some_and(|at| at >= asked) {
                self.pending.insert(id);
                continue;
            }
            let early = match (alive.get(vm.name.as_str()), self.in_deletion.get(&vm.name)) {
                (Some(_), _) => Some("lives".to_owned()),
                (None, Some(since)) if vm.deletion.is_some_and(|at| *since > at) => {
                    Some(format!("was in deletion only from {since:?} on"))
                }
                (None, Some(_)) => None,
                (None, None) => {
                    self.unseen += 1;
                    None
                }
            };
            broken.extend(early.map(|how| {
                format!(
                    "the VM {} was deleted at {:?}, and its InfraMachine {} {how}",
                    vm.provider_id, vm.deletion, vm.name
                )
            }));
        }
        broken
    }

    /// A ready machine that is not in deletion must have the VM in its status.
    fn without_vm(&self, asked: Instant, machine: &Seen) -> Option<String> {
        if !machine.ready || machine.in_deletion.is_some() {
            return None;
        }
        let name = &machine.name;
        let Some(provider_id) = &machine.provider_id else {
            return Some(format!("InfraMachine {name} is ready and has no providerID"));
        };
        let Some(vm) = self.vms.values().find(|vm| vm.provider_id == *provider_id) else {
            return Some(format!(
                "InfraMachine {name} is ready with {provider_id}, which there never was"
            ));
        };
        if vm.name != *name {
            return Some(format!(
                "InfraMachine {name} is ready with {provider_id}, the VM of {}",
                vm.name
            ));
        }
        if let Some(from) = vm.there_from.filter(|from| *from > asked) {
            return Some(format!(
                "InfraMachine {name} is ready at {asked:?}, and its VM {provider_id} is there only from \
                    {from:?} on"
            ));
        }
        let gone = vm.gone.filter(|gone| *gone < asked)?;
        Some(format!(
            "InfraMachine {name} is ready at {asked:?}, and its VM {provider_id} is gone since {gone:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cmi_simulated::CloudConsole;

    use super::*;

    const fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// A VM of this machine, created with a cloud's console.
    fn vm(name: &str, machine: &str) -> Vm {
        let folder = tempfile::tempdir().expect("a folder");
        let console = CloudConsole::open(&folder.path().join("cloud")).expect("a cloud");
        console
            .plant(cmi_simulated::PlantedVm {
                tags: BTreeMap::from([(tags::MACHINE.to_owned(), machine.to_owned())]),
                ..cmi_simulated::PlantedVm::new("c", name, machine)
            })
            .expect("a VM");
        console.vms().expect("the VMs").remove(0)
    }

    fn ordered(vm: &Vm, millis: u64) -> Entry {
        Entry {
            at: at(millis),
            event: Event::Ordered(Box::new(vm.clone())),
        }
    }

    fn deleted(vm: &Vm, millis: u64) -> Entry {
        Entry {
            at: at(millis),
            event: Event::DeletionOrdered {
                id: vm.id,
                gone_at: at(millis + 10),
            },
        }
    }

    fn seen(vm: &Vm) -> Seen {
        Seen {
            name: vm.name.clone(),
            in_deletion: None,
            ready: true,
            provider_id: Some(vm.provider_id()),
        }
    }

    #[test]
    fn a_second_vm_of_one_machine_is_reported_also_after_the_first() {
        let mut ledger = Ledger::default();
        let (first, second, other) = (vm("a", "1"), vm("a", "1"), vm("a", "2"));
        assert_eq!(ledger.enter(&ordered(&first, 1)), None);
        assert_eq!(ledger.enter(&ordered(&other, 1)), None);
        assert_eq!(ledger.enter(&deleted(&first, 2)), None);
        let reported = ledger
            .enter(&ordered(&second, 90))
            .expect("a second VM is reported");
        assert!(
            reported.starts_with("a second VM was made for one machine: a "),
            "{reported}"
        );
        assert_eq!((ledger.creates, ledger.deletes), (3, 1));
    }

    #[test]
    fn a_vm_that_is_deleted_before_its_machine_is_reported() {
        for (in_deletion, reported) in [(None, true), (Some(at(2000)), true), (Some(at(1000)), false)] {
            let (mut ledger, vm) = (Ledger::default(), vm("a", "1"));
            ledger.enter(&ordered(&vm, 1));
            ledger.enter(&deleted(&vm, 1500));
            let machine = Seen {
                in_deletion,
                ready: false,
                ..seen(&vm)
            };
            let broken = ledger.compare(at(1501), &[machine]);
            assert_eq!(!broken.is_empty(), reported, "{in_deletion:?}: {broken:?}");
        }
    }

    #[test]
    fn a_vm_that_is_deleted_after_the_answer_is_explained_by_the_next_one() {
        let (mut ledger, vm) = (Ledger::default(), vm("a", "1"));
        ledger.enter(&ordered(&vm, 1));
        ledger.enter(&deleted(&vm, 1500));
        assert_eq!(ledger.compare(at(1500), &[seen(&vm)]), Vec::<String>::new());
        assert_eq!(ledger.compare(at(1501), &[seen(&vm)]).len(), 1);
    }

    #[test]
    fn a_deletion_that_was_seen_counts_after_the_machine_is_gone() {
        let (mut ledger, vm) = (Ledger::default(), vm("a", "1"));
        ledger.enter(&ordered(&vm, 1));
        let machine = Seen {
            in_deletion: Some(at(1000)),
            ..seen(&vm)
        };
        assert_eq!(ledger.compare(at(1100), &[machine]), Vec::<String>::new());
        ledger.enter(&deleted(&vm, 900));
        assert_eq!(ledger.compare(at(1200), &[]).len(), 1);
        assert_eq!(ledger.unseen, 0);
    }

    #[test]
    fn a_ready_machine_without_its_vm_is_reported() {
        let (mut ledger, mine, other) = (Ledger::default(), vm("a", "1"), vm("b", "2"));
        assert_eq!(ledger.compare(at(1), &[seen(&mine)]).len(), 1, "its VM never was");
        ledger.enter(&ordered(&mine, 1));
        ledger.enter(&ordered(&other, 1));
        assert_eq!(ledger.compare(at(2), &[seen(&mine)]), Vec::<String>::new());
        let without = Seen {
            provider_id: None,
            ..seen(&mine)
        };
        assert_eq!(ledger.compare(at(2), &[without]).len(), 1, "it names none");
        let stolen = Seen {
            provider_id: Some(other.provider_id()),
            ..seen(&mine)
        };
        assert_eq!(ledger.compare(at(2), &[stolen]).len(), 1, "it names another's");
        let defer = |millis, until| Entry {
            at: at(millis),
            event: Event::Deferred {
                id: mine.id,
                until: at(until),
            },
        };
        ledger.enter(&defer(2, 9));
        assert_eq!(
            ledger.compare(at(3), &[seen(&mine)]).len(),
            1,
            "its VM is not there yet"
        );
        ledger.enter(&defer(3, 3));
        assert_eq!(ledger.compare(at(3), &[seen(&mine)]), Vec::<String>::new());
        assert_eq!(ledger.late, 1);
        ledger.enter(&Entry {
            at: at(5),
            event: Event::Vanished { id: mine.id },
        });
        assert_eq!(ledger.compare(at(4), &[seen(&mine)]), Vec::<String>::new());
        assert_eq!(ledger.compare(at(6), &[seen(&mine)]).len(), 1, "its VM is gone");
    }
}
