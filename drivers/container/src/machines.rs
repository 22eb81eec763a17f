//! Operations on machines. All of them block.
//!
//! A create makes the folder, which appears as a whole, and starts the container. A delete removes container,
//! interface and lease, then the folder. A repeated call therefore finds all remains of a killed call.

mod make;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use cmi_driver::{
    Address, AddressType, Code, Console, ListedMachine, Machine, PowerState, Result, Status,
    UpdateMachineRequest, tags,
};
use jiff::{SignedDuration, Timestamp};

use crate::config::Config;
use crate::console;
use crate::errors::status;
use crate::identity::{MachineKey, Names as _};
use crate::network::Network;
use crate::programs::Programs;
use crate::record::Record;
use crate::runtime::{CONSOLE_LOG, Container, Runtime};
use crate::spec::MachineSpec;
use crate::state::{self, StateFolder};

/// The file of an administrator's lock on a machine. Its text is the reason.
pub const LOCK: &str = "locked";
/// The limit of inotify instances of a user.
const INOTIFY_INSTANCES: &str = "/proc/sys/fs/inotify/max_user_instances";
/// A limit for a dozen machines with a kubelet. The kernel's default, 128, suffices for two.
const ENOUGH_INSTANCES: u64 = 1024;
/// How long a machine without an address counts as booting. A machine that took longer has none, as on a
/// bridge without a DHCP server.
const BOOT: SignedDuration = SignedDuration::from_mins(10);

/// The machines of a state folder, which this process has locked.
#[derive(Debug)]
pub struct Machines {
    config: Config,
    state: StateFolder,
    programs: Programs,
    /// Held while a machine is placed, so that two machines do not take the same room or address.
    placement: Mutex<()>,
}

/// The result of the look-up of a machine.
#[derive(Debug)]
pub enum Lookup {
    /// No machine has the name.
    Nothing,
    /// The machine.
    Ours(Box<Record>),
    /// The machine of another machine object.
    Other,
}

impl Machines {
    /// Locks the state folder, removes half-made folders, and makes the bridge. `None` while another process
    /// has the folder.
    pub fn open(config: &Config) -> Result<Option<Self>> {
        let state = StateFolder::new(&config.state_dir);
        let Some(lock) = state.lock()? else {
            return Ok(None);
        };
        let machines = Self {
            config: config.clone(),
            state,
            programs: Programs::new(lock),
            placement: Mutex::default(),
        };
        machines.network().ensure()?;
        warn_of_few_inotify_instances();
        Ok(Some(machines))
    }

    /// Removes the bridge and its DHCP server when no machine is left.
    pub fn close(&self) -> Result<()> {
        if self.state.records()?.is_empty() {
            return self.network().remove();
        }
        Ok(())
    }

    /// Whether machines could be made: the state folder is there, and the runtime answers.
    ///
    /// # Errors
    /// FAILED_PRECONDITION with the reason.
    pub fn check(&self) -> Result<()> {
        let checked = self.state.check().and_then(|()| self.runtime().list().map(drop));
        checked.map_err(|status| Status::new(Code::FailedPrecondition, status.message()).with_source(status))
    }

    fn runtime(&self) -> Runtime<'_> {
        Runtime {
            program: &self.config.runtime,
            state: &self.state,
            programs: &self.programs,
        }
    }

    fn network(&self) -> Network<'_> {
        Network {
            bridge: &self.config.bridge,
            state: &self.state,
            programs: &self.programs,
        }
    }

    fn folder(&self, key: &MachineKey) -> PathBuf {
        self.state.machine(&key.folder_name())
    }

    /// Looks for a machine.
    ///
    /// # Errors
    /// When the state folder is away, or the record can't be read.
    pub fn look(&self, key: &MachineKey) -> Result<Lookup> {
        self.state.check()?;
        Ok(match Record::read(&self.folder(key))? {
            None => Lookup::Nothing,
            Some(record) if record.key() == *key => Lookup::Ours(Box::new(record)),
            Some(_) => Lookup::Other,
        })
    }

    /// Returns the record of a machine that has to exist.
    ///
    /// # Errors
    /// NOT_FOUND when the machine does not exist, or belongs to another machine object.
    pub fn find(&self, key: &MachineKey) -> Result<Record> {
        match self.look(key)? {
            Lookup::Ours(record) => Ok(*record),
            Lookup::Nothing | Lookup::Other => Err(key.not_found()),
        }
    }

    /// Reads the console of a machine.
    ///
    /// # Errors
    /// Those of [`Machines::find`], and when the log cannot be read.
    pub fn console(&self, key: &MachineKey) -> Result<Console> {
        self.find(key)?;
        console::read(&self.folder(key).join(CONSOLE_LOG))
    }

    /// Lists the machines of a cluster.
    ///
    /// # Errors
    /// When a record can't be read: the list is never partial.
    pub fn list(&self, cluster: &str) -> Result<Vec<ListedMachine>> {
        self.state.check()?;
        let containers = self.runtime().list()?;
        let records = self.state.records()?;
        for container in containers {
            let is_its = |record: &Record| record.key().uuid().to_string() == container;
            if !records.iter().any(is_its) {
                tracing::warn!(container, "a container has no machine folder");
            }
        }
        let records = records.into_iter().filter(|record| record.cluster == cluster);
        records.map(|record| self.listed(record)).collect()
    }

    fn listed(&self, record: Record) -> Result<ListedMachine> {
        let Machine {
            provider_id,
            addresses,
            power_state,
            ..
        } = self.describe(&record)?;
        Ok(ListedMachine {
            cluster_id: Some(record.cluster),
            machine_id: Some(record.identity).filter(|identity| !identity.is_empty()),
            created_at: Some(record.created_at),
            addresses,
            power_state,
            ..ListedMachine::new(provider_id, record.name)
        })
    }

    /// Returns the machine as the driver contract reports it.
    pub fn describe(&self, record: &Record) -> Result<Machine> {
        let key = record.key();
        let container = self.runtime().state(key.uuid())?;
        let found = match container {
            Container::Running(pid) => self.network().addresses(pid)?,
            Container::Nothing | Container::Created | Container::Stopped => Vec::new(),
        };
        let mut machine = Machine::new(key.machine_id(&record.host).provider_id()?, key.hostname());
        machine.failure_domain = Some(record.host.clone());
        machine.power_state = Some(power_state(container, record, !found.is_empty()));
        machine.addresses = found
            .into_iter()
            .map(|address| (AddressType::InternalIP, address))
            // The name comes after the addresses that say more: users are shown the first one.
            .chain([(AddressType::Hostname, key.hostname())])
            .map(|(kind, address)| Address { kind, address })
            .collect();
        Ok(machine)
    }

    /// Starts a machine that is off.
    pub fn start(&self, record: Record) -> Result<Record> {
        self.ensure_changeable(&record)?;
        let (key, runtime) = (record.key(), self.runtime());
        let folder = self.folder(&key);
        match runtime.state(key.uuid())? {
            Container::Running(_) => {}
            Container::Nothing => self.boot(&record)?,
            Container::Created | Container::Stopped => {
                runtime.delete(key.uuid(), &folder)?;
                self.network().detach(&key)?;
                self.boot(&record)?;
            }
        }
        let record = Record {
            started_at: Some(Timestamp::now()),
            ..record
        };
        record.write(&folder)?;
        Ok(record)
    }

    /// The interface comes before the first program, which configures it.
    fn boot(&self, record: &Record) -> Result<()> {
        let (key, runtime, network) = (record.key(), self.runtime(), self.network());
        network.ensure()?;
        let pid = runtime.create(record, &self.folder(&key))?;
        network.attach(&key, pid)?;
        runtime.start(key.uuid())
    }

    /// Starts a machine that was made and never started.
    pub fn initialize(&self, key: &MachineKey) -> Result<Machine> {
        let record = self.find(key)?;
        if record.started_at.is_some() {
            return self.describe(&record);
        }
        match self.start(record.clone()) {
            Ok(started) => self.describe(&started),
            Err(status) if status.code() == Code::Aborted => Err(status),
            Err(status) => {
                let what = format!(
                    "machine `{}` could not be started: {}",
                    key.name,
                    status.message()
                );
                let machine = self.describe(&record)?;
                Err(Status::new(Code::Uninitialized, what)
                    .with_machine(machine)
                    .with_source(status))
            }
        }
    }

    /// Ends the machine, if it is on, and starts it again.
    ///
    /// # Errors
    /// FAILED_PRECONDITION when the machine is off and cannot be started for lack of room, otherwise the
    /// errors of [`Self::start`].
    pub fn restart(&self, key: &MachineKey) -> Result<()> {
        let record = self.find(key)?;
        self.ensure_changeable(&record)?;
        self.runtime().delete(key.uuid(), &self.folder(key))?;
        self.network().detach(key)?;
        self.start(record).map(drop).map_err(restart_failure)
    }

    /// Asks a machine to power off.
    pub fn shut_down(&self, key: &MachineKey) -> Result<()> {
        let record = self.find(key)?;
        if self.is_off(key)? {
            return Ok(());
        }
        self.ensure_not_locked(&record)?;
        match self.runtime().power_off(key.uuid()) {
            // The machine stopped before the signal.
            Err(_) if self.is_off(key)? => Ok(()),
            asked => asked,
        }
    }

    /// Whether the machine is off.
    pub fn is_off(&self, key: &MachineKey) -> Result<bool> {
        let container = self.runtime().state(key.uuid())?;
        Ok(!matches!(container, Container::Running(_)))
    }

    /// Applies the fields of the spec that can change while the machine lives: tags and size.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the size does not exist, RESOURCE_EXHAUSTED when the host has no room for it,
    /// FAILED_PRECONDITION when the machine is locked.
    pub fn update(&self, key: &MachineKey, spec: &MachineSpec, request: &UpdateMachineRequest) -> Result<()> {
        let before = self.find(key)?;
        self.ensure_not_locked(&before)?;
        let last = MachineSpec::read(&request.last_applied_provider_spec)?;
        let last = tags::own(&last.tags);
        let mut record = before.clone();
        let wanted = tags::own(&spec.tags);
        record
            .tags
            .retain(|tag, _| wanted.contains_key(tag) || !last.contains_key(tag));
        record.tags.extend(wanted);
        if spec.size != record.size {
            self.resize(&mut record, spec)?;
        }
        if record == before {
            return Ok(());
        }
        record.write(&self.folder(key))
    }

    fn resize(&self, record: &mut Record, spec: &MachineSpec) -> Result<()> {
        let size = spec.size_within(&self.config)?;
        let _placement = self.placing();
        let needed = size.memory_mib.saturating_sub(record.memory_mib);
        self.check_room(&self.state.records()?, &record.host, needed)?;
        let id = record.key().uuid();
        if let Container::Running(_) = self.runtime().state(id)? {
            self.runtime().resize(id, size)?;
        }
        (record.cpus, record.memory_mib) = (size.cpus, size.memory_mib);
        record.size.clone_from(&spec.size);
        Ok(())
    }

    /// Removes the machine with everything that was made for it. There may be nothing left, or only a part.
    pub fn delete(&self, key: &MachineKey) -> Result<()> {
        let (folder, scratch) = (self.folder(key), self.state.scratch(&key.folder_name()));
        match self.look(key)? {
            Lookup::Other => return Ok(()),
            Lookup::Nothing => {}
            Lookup::Ours(record) => {
                self.ensure_not_locked(&record)?;
                let deleting = Record {
                    deleting: true,
                    ..*record
                };
                match deleting.write(&folder) {
                    // The deletion makes room on a full disk.
                    Err(full) if full.code() == Code::ResourceExhausted => {}
                    marked => marked?,
                }
            }
        }
        self.runtime().delete(key.uuid(), &folder)?;
        self.network().detach(key)?;
        self.network().release(key)?;
        state::remove(&scratch)?;
        match fs::rename(&folder, &scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(status(&format!("removing {}", folder.display()), error))
            }
            _ => state::remove(&scratch),
        }
    }

    fn ensure_changeable(&self, record: &Record) -> Result<()> {
        if record.deleting {
            let what = format!("machine `{}` is being deleted", record.name);
            return Err(Status::new(Code::Aborted, what));
        }
        self.ensure_not_locked(record)
    }

    /// Returns FAILED_PRECONDITION where an administrator has locked the machine.
    fn ensure_not_locked(&self, record: &Record) -> Result<()> {
        let file = self.folder(&record.key()).join(LOCK);
        match fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(status(&format!("reading {}", file.display()), error)),
            Ok(reason) => {
                let (name, file) = (&record.name, file.display());
                let what = format!("machine `{name}` is locked by {file}: {}", reason.trim());
                Err(Status::new(Code::FailedPrecondition, what))
            }
        }
    }
}

/// All machines share the limit of root. containerd starts without its CRI plugin when it is reached.
fn warn_of_few_inotify_instances() {
    let limit = fs::read_to_string(INOTIFY_INSTANCES)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    if limit.is_some_and(|limit: u64| limit < ENOUGH_INSTANCES) {
        tracing::warn!(
            limit,
            enough = ENOUGH_INSTANCES,
            "few machines with a kubelet can run: raise the sysctl fs.inotify.max_user_instances"
        );
    }
}

/// Maps the failure to start a machine that was restarted. RESOURCE_EXHAUSTED would say that nothing was
/// restarted, but the machine is off: with FAILED_PRECONDITION, the machine is replaced.
fn restart_failure(status: Status) -> Status {
    match status.code() {
        Code::ResourceExhausted => {
            let what = format!("the machine is off, and cannot be started: {}", status.message());
            Status::new(Code::FailedPrecondition, what).with_source(status)
        }
        _ => status,
    }
}

/// Reports a machine without an address as starting: callers ask again after a machine that is starting, and
/// not after one that runs.
fn power_state(container: Container, record: &Record, has_address: bool) -> PowerState {
    let since = record.started_at.unwrap_or(record.created_at);
    let may_boot = Timestamp::now().duration_since(since) < BOOT;
    match container {
        Container::Running(_) if !has_address && may_boot => PowerState::Starting,
        Container::Running(_) => PowerState::Running,
        Container::Nothing | Container::Created | Container::Stopped => PowerState::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn a_machine_that_is_off_after_a_restart_is_replaced() {
        for (code, expected) in [
            (Code::ResourceExhausted, Code::FailedPrecondition),
            (Code::Unavailable, Code::Unavailable),
            (Code::Unknown, Code::Unknown),
        ] {
            assert_eq!(restart_failure(Status::new(code, "words")).code(), expected);
        }
    }

    #[test]
    fn a_machine_is_starting_until_it_has_an_address() {
        let now = Record {
            started_at: Some(Timestamp::now()),
            ..record()
        };
        for (container, record, has_address, expected) in [
            (Container::Running(1), &now, false, PowerState::Starting),
            (Container::Running(1), &now, true, PowerState::Running),
            (Container::Running(1), &record(), false, PowerState::Running),
            (Container::Created, &now, false, PowerState::Stopped),
            (Container::Stopped, &now, true, PowerState::Stopped),
            (Container::Nothing, &now, false, PowerState::Stopped),
        ] {
            let state = power_state(container, record, has_address);
            assert_eq!(state, expected, "{container:?} {has_address}");
        }
    }
}
