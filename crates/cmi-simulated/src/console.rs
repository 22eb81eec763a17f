//! The cloud's console: changes to the cloud from outside the driver.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::clock::{Clock, Instant, WallClock};
use super::cloud::{Cloud, Event};
use super::journal::{Decision, Journal, JournalError};
use super::vm::{Condition, UserData, Vm, VmId};
use cmi_driver::{Address, Status, tags};

/// Changes the cloud from outside the driver, in this process or, through the state file, in another process.
#[derive(Clone)]
pub struct CloudConsole {
    journal: Journal,
}

/// A VM that was not ordered through the driver.
#[derive(Clone, Debug)]
pub struct PlantedVm {
    /// Its name; empty when the cloud has lost it (DRV-36).
    pub name: String,
    /// All its tags: they name the machine that it belongs to.
    pub tags: BTreeMap<String, String>,
    /// The pool that it takes a place of; it has no address.
    pub pool: String,
    /// Its size; empty if the configuration lacks it.
    pub size: String,
    /// Its root file system, GB.
    pub root_fs_gb: u32,
    /// The zone that it is in.
    pub zone: Option<String>,
    /// The bootstrap data.
    pub user_data: Vec<u8>,
}

impl PlantedVm {
    /// A VM of pool `default` with the tags of a cluster and a machine object.
    pub fn new(cluster: &str, name: &str, machine: &str) -> Self {
        let tags = [
            (tags::CLUSTER, cluster),
            (tags::ROLE, "node"),
            (tags::MACHINE, machine),
        ];
        Self {
            name: name.to_owned(),
            tags: tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            pool: "default".to_owned(),
            size: String::new(),
            root_fs_gb: 0,
            zone: None,
            user_data: Vec::new(),
        }
    }
}

impl CloudConsole {
    /// Opens the console of a cloud, and creates its state file if missing.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn open(state_file: &Path) -> Result<Self, JournalError> {
        Ok(Self::of(Journal::open(state_file, Arc::new(WallClock))?))
    }

    /// As [`CloudConsole::open`], for a cloud that follows `clock`.
    ///
    /// # Errors
    /// When the file can't be used.
    pub fn open_at(state_file: &Path, clock: Arc<dyn Clock>) -> Result<Self, JournalError> {
        Ok(Self::of(Journal::open(state_file, clock)?))
    }

    pub(super) fn of(journal: Journal) -> Self {
        Self { journal }
    }

    /// Passes the current cloud to `question`.
    ///
    /// # Errors
    /// The state file cannot be read.
    pub fn look<T>(&self, question: impl FnOnce(&Cloud, Instant) -> T) -> Result<T, JournalError> {
        self.journal.read(question)
    }

    /// The VMs that are not gone, by name.
    ///
    /// # Errors
    /// When the state file can't be read.
    pub fn vms(&self) -> Result<Vec<Vm>, JournalError> {
        let mut vms: Vec<_> = self.look(|cloud, _| cloud.vms().cloned().collect())?;
        vms.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Ok(vms)
    }

    /// How many events have changed the cloud; reads do not (DRV-29, INI-01).
    ///
    /// # Errors
    /// When the state file can't be read.
    pub fn mutations(&self) -> Result<u64, JournalError> {
        self.look(|cloud, _| cloud.mutations())
    }

    /// Adds a running VM, and returns its provider id. Ignores quota and capacity.
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn plant(&self, planted: PlantedVm) -> Result<String, Status> {
        self.journal.change(|_, now| {
            let vm = Vm {
                id: VmId::unique(),
                name: planted.name,
                tags: planted.tags,
                labels: BTreeMap::new(),
                pool: planted.pool,
                size: planted.size,
                root_fs_gb: planted.root_fs_gb,
                zone: planted.zone,
                address: None,
                address_from: None,
                static_addresses: Vec::new(),
                set_addresses: None,
                source_dest_check: true,
                user_data: UserData::from(planted.user_data.as_slice()),
                user_data_format: None,
                ordered_at: Instant::from_millis(0),
                boots_at: now,
                stops_at: None,
                gone_at: None,
                condition: Condition::Sound,
            };
            let answer = vm.provider_id();
            Ok(Decision {
                events: vec![Event::Ordered(Box::new(vm))],
                answer,
            })
        })
    }

    /// Removes a VM immediately, without an order to delete it.
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn vanish(&self, id: VmId) -> Result<(), Status> {
        self.happen(Event::Vanished { id })
    }

    /// Breaks, locks or repairs a VM (DRV-CR-09, DRV-DE-09, DRV-GS-09).
    ///
    /// # Errors
    /// When the state file can't be written.
    pub fn set_condition(&self, id: VmId, condition: Condition) -> Result<(), Status> {
        self.happen(Event::ConditionSet { id, condition })
    }

    /// Sets the source/destination check, which undoes or replaces a VM's initialization (INI-23).
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn set_source_dest_check(&self, id: VmId, on: bool) -> Result<(), Status> {
        self.happen(Event::SourceDestCheckSet { id, on })
    }

    /// Replaces the addresses that the driver reports for a VM.
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn set_addresses(&self, id: VmId, addresses: Vec<Address>) -> Result<(), Status> {
        self.happen(Event::AddressesSet { id, addresses })
    }

    /// Switches a VM on or off immediately, without the driver.
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn switch(&self, id: VmId, on: bool) -> Result<(), Status> {
        self.journal.change(|_, now| {
            let event = if on {
                Event::Restarted { id, boots_at: now }
            } else {
                Event::StopOrdered { id, stops_at: now }
            };
            Ok(Decision {
                events: vec![event],
                answer: (),
            })
        })
    }

    /// Overrides the configured quota of VMs; `None` lifts it.
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn set_quota(&self, quota: Option<u32>) -> Result<(), Status> {
        self.happen(Event::QuotaSet { quota })
    }

    /// Overrides the configured capacity of a pool; 0 makes it full.
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn set_capacity(&self, pool: &str, capacity: u32) -> Result<(), Status> {
        self.happen(Event::CapacitySet {
            pool: pool.to_owned(),
            capacity,
        })
    }

    fn happen(&self, event: Event) -> Result<(), Status> {
        self.journal.change(|_, _| {
            Ok(Decision {
                events: vec![event],
                answer: (),
            })
        })
    }
}
