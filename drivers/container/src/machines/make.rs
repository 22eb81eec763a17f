//! Creates machines.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::{MutexGuard, PoisonError};

use cmi_driver::{Code, Machine, Result, SecretValue, Status, tags};
use jiff::Timestamp;
use uuid::Uuid;

use super::{Lookup, Machines};
use crate::errors::status;
use crate::identity::{MachineKey, Names as _};
use crate::layers::Layers;
use crate::record::Record;
use crate::seed;
use crate::spec::{MachineSpec, Wanted};
use crate::state;

impl Machines {
    /// Creates the machine, or adopts the existing machine.
    ///
    /// # Errors
    /// ALREADY_EXISTS when the machine exists and was made from another spec, or belongs to another machine
    /// object; otherwise the errors of programs and state folder.
    pub fn create(
        &self,
        key: &MachineKey,
        spec: &MachineSpec,
        user_data: Option<&SecretValue>,
    ) -> Result<Machine> {
        let record = match self.look(key)? {
            Lookup::Ours(record) => self.adopt(*record, spec)?,
            Lookup::Other => {
                let what = format!(
                    "machine `{}` of cluster `{}` exists for another machine object",
                    key.name, key.cluster
                );
                return Err(Status::new(Code::AlreadyExists, what));
            }
            Lookup::Nothing => {
                let made = self.make(key, spec, user_data);
                self.start(made.map_err(|error| self.unmade(key, error))?)?
            }
        };
        self.describe(&record)
    }

    fn adopt(&self, record: Record, spec: &MachineSpec) -> Result<Record> {
        if record.deleting {
            let what = format!("machine `{}` is being deleted", record.name);
            return Err(Status::new(Code::Aborted, what));
        }
        if let Some(field) = record.difference(spec) {
            let what = format!(
                "machine `{}` exists with another /{field} than the provider spec",
                record.name
            );
            return Err(Status::new(Code::AlreadyExists, what));
        }
        match record.started_at {
            Some(_) => Ok(record),
            None => self.start(record),
        }
    }

    /// Makes the folder of the machine, which appears with its record.
    fn make(&self, key: &MachineKey, spec: &MachineSpec, user_data: Option<&SecretValue>) -> Result<Record> {
        let wanted = spec.within(&self.config)?;
        let scratch = self.state.scratch(&key.folder_name());
        state::remove(&scratch)?;
        let layers = Layers::new(&scratch);
        layers.make(&self.programs, wanted.image)?;
        let _placement = self.placing();
        let record = Record {
            name: key.name.clone(),
            cluster: key.cluster.clone(),
            identity: key.identity.clone(),
            created_at: Timestamp::now(),
            started_at: None,
            deleting: false,
            vm_pool: spec.vm_pool.clone(),
            host: self.place(key.uuid(), spec, &wanted)?,
            image: wanted.image_name.to_owned(),
            image_folder: wanted.image.to_owned(),
            address: spec.address,
            size: spec.size.clone(),
            cpus: wanted.size.cpus,
            memory_mib: wanted.size.memory_mib,
            tags: tags::own(&spec.tags),
        };
        let user_data = user_data.map_or([].as_slice(), SecretValue::expose);
        seed::write(&layers.upper(), &record, self.config.bridge.address, user_data)?;
        record.write(&scratch)?;
        fs::rename(&scratch, self.folder(key))
            .map_err(|error| status("making the machine's folder", error))?;
        Ok(record)
    }

    /// Removes the half-made folder of a machine, and marks the call as one without side effects.
    fn unmade(&self, key: &MachineKey, error: Status) -> Status {
        match state::remove(&self.state.scratch(&key.folder_name())) {
            Ok(()) => error.with_no_side_effects(),
            Err(left) => {
                tracing::warn!(
                    machine = key.name,
                    error = left.message(),
                    "a half-made folder is left"
                );
                error
            }
        }
    }

    pub(super) fn placing(&self) -> MutexGuard<'_, ()> {
        self.placement.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the host of a new machine: of the hosts with room, the host with the fewest machines.
    fn place(&self, machine: Uuid, spec: &MachineSpec, wanted: &Wanted<'_>) -> Result<String> {
        let records = self.state.records()?;
        if let Some(address) = spec.address {
            check_free(address, &records)?;
        }
        let mut hosts = wanted.hosts.clone();
        let machines = |host: &str| records.iter().filter(|record| record.host == host).count();
        hosts.sort_by_key(|host| (machines(host), Uuid::new_v5(&machine, host.as_bytes())));
        let mut refused = None;
        for host in hosts {
            match self.check_room(&records, host, wanted.size.memory_mib) {
                Ok(()) => return Ok(host.to_owned()),
                Err(full) => refused = Some(full),
            }
        }
        Err(refused.unwrap_or_else(|| Status::new(Code::FailedPrecondition, "the pool has no host")))
    }

    /// Checks that a host has this much memory that no machine has.
    pub(super) fn check_room(&self, records: &[Record], host: &str, needed: u64) -> Result<()> {
        let Some(all) = self.config.hosts.get(host).and_then(|host| host.memory_mib) else {
            return Ok(());
        };
        let taken = records.iter().filter(|record| record.host == host);
        let free = all.saturating_sub(taken.map(|record| record.memory_mib).sum());
        if needed <= free {
            return Ok(());
        }
        let what = format!("host `{host}` has {free} MiB of memory for machines, and {needed} are needed");
        Err(Status::new(Code::ResourceExhausted, what))
    }
}

fn check_free(address: Ipv4Addr, records: &[Record]) -> Result<()> {
    match records.iter().find(|record| record.address == Some(address)) {
        None => Ok(()),
        Some(other) => {
            let what = format!(
                "the provider spec's /address {address} belongs to machine `{}`",
                other.name
            );
            Err(Status::new(Code::FailedPrecondition, what))
        }
    }
}
