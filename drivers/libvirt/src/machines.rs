//! Operations on one host. All of them block, and run as jobs of a connection.
//!
//! A machine is a domain and its volumes. The domain's name contains the machine's name and cluster, and the
//! names of the volumes contain the domain's UUID. A create makes the root file system, the seed and the
//! console, and then the domain. A delete removes the volumes before the domain. Therefore a domain that
//! exists is complete, and a repeated call finds everything that is left.

mod console;
mod guests;
mod make;
mod networks;
mod remove;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cmi_driver::{
    Address, AddressType, Code, HostedId, ListedMachine, Machine, PowerState, Result, Status,
    UpdateMachineRequest, tags,
};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::{Domain, SchedulerInfo};
use virt::error::{Error, ErrorNumber};

use crate::errors::status;
use crate::identity::{MachineKey, Names as _, SCHEME};
use crate::library::{self, State};
use crate::metadata::{self, Record};
use crate::placement::FreeMemory;
use crate::spec::VmSpec;
use guests::RunningGuest;

pub use console::console;
pub use guests::{Guests, Look, Scope};
pub use make::{Created, MachineRequest, create};
pub use remove::{delete, delete_where_it_can_not_be};

/// The kind of metadata that consists of an XML element.
const ELEMENT: i32 = virt_sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed();
const LIVE: u32 = virt_sys::VIR_DOMAIN_AFFECT_LIVE;
const CONFIG: u32 = virt_sys::VIR_DOMAIN_AFFECT_CONFIG;

/// How long a guest without an address counts as booting. After that time it may have no address, or one that
/// its host can't see, such as on a bridge without a guest agent.
const BOOT: SignedDuration = SignedDuration::from_mins(10);

/// The domain of a machine.
#[derive(Debug)]
pub struct Vm {
    domain: Domain,
    /// The domain's metadata.
    pub record: Record,
}

/// The result of the look-up of a machine's domain on a host.
#[derive(Debug)]
pub enum Lookup {
    /// The host has confirmed that no domain exists.
    Nothing,
    /// The machine's domain.
    Ours(Box<Vm>),
    /// Description of a domain that belongs to another machine object, or to no known machine.
    Other(String),
    /// Description of a domain that may be the machine's, or may use its disks, and advice. The domain has
    /// the machine's UUID without its metadata, or its name and metadata with another UUID.
    Doubtful(String),
}

/// The state of a machine on one host.
#[derive(Clone, Debug)]
pub enum Observation {
    /// The host has no domain of the name.
    Nothing,
    /// The machine, and whether it was ever started.
    Ours(Box<Machine>, bool),
    /// The domain of another machine object.
    Other(String),
    /// A domain that may be the machine's.
    Doubtful(String),
}

/// Looks up the domain of a machine.
///
/// # Errors
/// The host did not answer whether the domain exists.
pub fn look(connect: &Connect, key: &MachineKey) -> Result<Lookup> {
    let (domain, has_uuid) = match domain_of(connect, key)? {
        DomainMatch::Nothing => return Ok(Lookup::Nothing),
        DomainMatch::ByUuid(domain) => (domain, true),
        // Another process may have defined the domain after the look-up by UUID.
        DomainMatch::ByName(domain) => {
            let uuid = domain
                .get_uuid()
                .map_err(|error| status("reading the UUID of a domain", error))?;
            (domain, uuid == key.uuid())
        }
    };
    let what = match record(&domain)? {
        DomainMetadata::Gone => return Ok(Lookup::Nothing),
        DomainMetadata::Machine(record) if record.is_of(key) => {
            if has_uuid {
                let record = *record;
                return Ok(Lookup::Ours(Box::new(Vm { domain, record })));
            }
            let what = format!(
                "domain `{}`, a copy of the machine's domain with another UUID: undefine it, or remove its \
                    metadata and rename it",
                key.domain_name()
            );
            return Ok(Lookup::Doubtful(what));
        }
        DomainMetadata::Machine(record) => {
            format!("VM {} of another machine object", record.provider_id)
        }
        DomainMetadata::Nothing => format!("domain `{}` without a machine", key.domain_name()),
    };
    Ok(if has_uuid {
        let what = format!("{what}, with the machine's UUID: restore its metadata, or undefine it");
        Lookup::Doubtful(what)
    } else {
        Lookup::Other(what)
    })
}

/// The domain that may be a machine's, and how it was found.
enum DomainMatch {
    Nothing,
    ByUuid(Domain),
    ByName(Domain),
}

/// Finds the domain that may be a machine's. Does not read its metadata.
fn domain_of(connect: &Connect, key: &MachineKey) -> Result<DomainMatch> {
    let (name, uuid) = (key.domain_name(), key.uuid().to_string());
    let failed = |error| status(&format!("looking for domain `{name}`"), error);
    // The look-up by UUID comes first: an administrator may have renamed the domain, and its volumes are
    // still in use.
    let by_uuid = or_none(Domain::lookup_by_uuid_string(connect, &uuid)).map_err(failed)?;
    if let Some(domain) = by_uuid {
        return Ok(DomainMatch::ByUuid(domain));
    }
    let by_name = or_none(Domain::lookup_by_name(connect, &name)).map_err(failed)?;
    Ok(by_name.map_or(DomainMatch::Nothing, DomainMatch::ByName))
}

/// Maps the host's answer that there is no such domain to `None`.
fn or_none(found: std::result::Result<Domain, Error>) -> std::result::Result<Option<Domain>, Error> {
    match found {
        Err(error) if error.code() == ErrorNumber::NoDomain => Ok(None),
        found => found.map(Some),
    }
}

/// Looks up a machine, and reads its state.
///
/// # Errors
/// The host did not answer.
pub fn see(connect: &Connect, guests: &Guests, key: &MachineKey) -> Result<Observation> {
    Ok(match look(connect, key)? {
        Lookup::Nothing => Observation::Nothing,
        Lookup::Other(what) => Observation::Other(what),
        Lookup::Doubtful(what) => Observation::Doubtful(what),
        Lookup::Ours(vm) => {
            let machine = vm.describe(&Look::new(connect, guests, Scope::Machine))?;
            let started = vm.record.started || machine.power_state.is_some_and(is_up);
            Observation::Ours(Box::new(machine), started)
        }
    })
}

/// Returns the domain of a machine that must exist.
///
/// # Errors
/// NOT_FOUND when the domain does not exist or belongs to another machine object; FAILED_PRECONDITION when it
/// may be this machine's.
pub fn find(connect: &Connect, key: &MachineKey) -> Result<Vm> {
    match look(connect, key)? {
        Lookup::Ours(vm) => Ok(*vm),
        Lookup::Nothing | Lookup::Other(_) => Err(key.not_found()),
        Lookup::Doubtful(what) => Err(doubtful(key, &what)),
    }
}

/// The error for a domain that may be a machine's. NOT_FOUND would lead to a second VM.
pub fn doubtful(key: &MachineKey, what: &str) -> Status {
    let what = format!("machine `{}` may have a VM: there is {what}", key.name);
    Status::new(Code::FailedPrecondition, what)
}

/// Known copies of machines' domains: each is logged once.
#[derive(Debug, Default)]
pub struct Copies(Mutex<HashSet<Uuid>>);

impl Copies {
    /// Whether a domain is a copy of the machine in its metadata, as `virt-clone` makes them.
    fn contains(&self, uuid: Uuid, record: &Record) -> bool {
        if uuid == record.key().uuid() {
            return false;
        }
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.insert(uuid) {
            tracing::warn!(
                domain = %uuid,
                machine = record.name,
                vm = record.provider_id,
                "ignoring a domain with the metadata of another one: remove the metadata from the copy"
            );
        }
        true
    }
}

/// Lists the machines of a cluster with their addresses and power states, without copies.
///
/// # Errors
/// The metadata of a domain can't be read: the list is never partial.
pub fn list(
    connect: &Connect,
    host: &str,
    cluster: &str,
    copies: &Copies,
    guests: &Guests,
) -> Result<Vec<ListedMachine>> {
    let domains = library::domains(connect).map_err(|error| status("listing the domains", error))?;
    let look = Look::new(connect, guests, Scope::List);
    let (mut listed, mut running) = (Vec::new(), HashSet::new());
    for (domain, state) in domains {
        let DomainMetadata::Machine(record) = record(&domain)? else {
            continue;
        };
        let uuid = domain
            .get_uuid()
            .map_err(|error| status("reading the UUID of a domain", error))?;
        if power_state(state) == PowerState::Running {
            running.insert(uuid);
        }
        if record.cluster != cluster || copies.contains(uuid, &record) {
            continue;
        }
        let vm = Vm {
            domain,
            record: *record,
        };
        let machine = vm.describe_in(state, &look)?;
        let record = vm.record;
        listed.push(ListedMachine {
            cluster_id: Some(record.cluster),
            machine_id: Some(record.identity).filter(|identity| !identity.is_empty()),
            created_at: Some(record.created_at),
            addresses: machine.addresses,
            power_state: machine.power_state,
            ..ListedMachine::new(machine.provider_id, record.name)
        });
    }
    guests.keep(host, &running);
    Ok(listed)
}

/// Reads the memory of the host that belongs to no domain. Domains that are off count too.
///
/// # Errors
/// The host did not answer.
pub fn memory(connect: &Connect, reserved_mib: u64) -> Result<FreeMemory> {
    let failed = |error| status("reading the memory of the host", error);
    let asked_at = Instant::now();
    let total = connect.get_node_info().map_err(failed)?.memory;
    let (mut taken, mut domains) = (0, HashSet::new());
    for domain in connect.list_all_domains(0).map_err(failed)? {
        match (domain.get_info(), domain.get_uuid()) {
            (Ok(info), Ok(uuid)) => {
                taken += info.max_mem;
                domains.insert(uuid);
            }
            (Err(error), _) | (_, Err(error)) if error.code() == ErrorNumber::NoDomain => {}
            (Err(error), _) | (_, Err(error)) => return Err(failed(error)),
        }
    }
    Ok(FreeMemory {
        free_mib: (total / 1024)
            .saturating_sub(taken / 1024)
            .saturating_sub(reserved_mib),
        domains,
        asked_at,
    })
}

/// The driver's metadata of a domain.
enum DomainMetadata {
    Machine(Box<Record>),
    /// The domain belongs to no machine.
    Nothing,
    /// The domain no longer exists.
    Gone,
}

fn record(domain: &Domain) -> Result<DomainMetadata> {
    match domain.get_metadata(ELEMENT, Some(metadata::NAMESPACE), 0) {
        Ok(element) => Record::parse(&element).map(|record| DomainMetadata::Machine(Box::new(record))),
        Err(error) if error.code() == ErrorNumber::NoDomainMetadata => Ok(DomainMetadata::Nothing),
        Err(error) if error.code() == ErrorNumber::NoDomain => Ok(DomainMetadata::Gone),
        Err(error) => Err(status("reading the metadata of a domain", error)),
    }
}

impl Vm {
    /// Returns the machine as the driver contract reports it.
    ///
    /// # Errors
    /// The ProviderID in the metadata is invalid, or the host did not answer.
    pub fn describe(&self, look: &Look<'_>) -> Result<Machine> {
        self.describe_in(self.state()?, look)
    }

    fn state(&self) -> Result<State> {
        let state = self.domain.get_state();
        state.map_err(|error| status("reading the state of a domain", error))
    }

    /// Returns the machine, with its domain in this state.
    fn describe_in(&self, state: State, look: &Look<'_>) -> Result<Machine> {
        let (record, key) = (&self.record, self.record.key());
        let id = HostedId::parse(SCHEME, &record.provider_id).map_err(|error| {
            let what = format!(
                "the metadata of a domain has the invalid ProviderID `{}`",
                record.provider_id
            );
            Status::new(Code::Internal, what).with_source(error)
        })?;
        let mut machine = Machine::new(id.provider_id()?, key.hostname());
        let power_state = power_state(state);
        machine.failure_domain = Some(record.host.clone());
        if power_state == PowerState::Running {
            let guest = RunningGuest {
                domain: &self.domain,
                uuid: key.uuid(),
                may_answer: state.0 == virt_sys::VIR_DOMAIN_RUNNING,
                given: record.static_addresses(),
            };
            let found = look.addresses(&record.host, &guest, &record.macs()).into_iter();
            machine.addresses.extend(found.map(|address| Address {
                kind: AddressType::InternalIP,
                address: address.to_string(),
            }));
        }
        // Users see the first address, so the name comes last.
        machine.addresses.push(Address {
            kind: AddressType::Hostname,
            address: key.hostname(),
        });
        let since = record.started_at.unwrap_or(record.created_at);
        let may_boot = Timestamp::now().duration_since(since) < BOOT;
        machine.power_state = Some(if may_boot {
            unless_it_boots(power_state, &machine.addresses)
        } else {
            power_state
        });
        Ok(machine)
    }

    fn is_active(&self) -> Result<bool> {
        self.domain
            .is_active()
            .map_err(|error| status("reading the state of a domain", error))
    }

    /// Whether the domain continues to exist when it is off.
    fn is_persistent(&self) -> Result<bool> {
        self.domain
            .is_persistent()
            .map_err(|error| status("reading the state of a domain", error))
    }

    /// Returns the flags for a change of both the running domain and its definition, as far as each exists.
    fn affected(&self) -> Result<u32> {
        let live = if self.is_active()? { LIVE } else { 0 };
        let config = if self.is_persistent()? { CONFIG } else { 0 };
        Ok(live | config)
    }

    fn ensure_not_being_deleted(&self) -> Result<()> {
        if !self.record.deleting {
            return Ok(());
        }
        let what = format!("VM {} is being deleted", self.record.provider_id);
        Err(Status::new(Code::Aborted, what))
    }

    /// Returns FAILED_PRECONDITION if an administrator has locked the domain.
    fn ensure_not_locked(&self) -> Result<()> {
        let lock = self
            .domain
            .get_metadata(ELEMENT, Some(metadata::LOCK_NAMESPACE), 0);
        match lock {
            Ok(element) => Err(Status::new(
                Code::FailedPrecondition,
                format!(
                    "VM {} is locked on its host: {}",
                    self.record.provider_id,
                    metadata::lock_reason(&element)
                ),
            )),
            // The next operation reports that the domain no longer exists.
            Err(error) if [ErrorNumber::NoDomainMetadata, ErrorNumber::NoDomain].contains(&error.code()) => {
                Ok(())
            }
            Err(error) => Err(status("checking whether a domain is locked", error)),
        }
    }

    /// Changes the running domain and its definition.
    ///
    /// # Errors
    /// ABORTED when the guest started or stopped during the call. A restarted libvirtd also stops a guest
    /// that it can't control. Otherwise the error of the host.
    fn change<T>(
        &self,
        doing: &str,
        change: impl FnOnce(u32) -> std::result::Result<T, Error>,
    ) -> Result<()> {
        let affected = self.affected()?;
        let Err(error) = change(affected) else {
            return Ok(());
        };
        let is_refused = error.code() == ErrorNumber::OperationInvalid;
        let status = status(doing, error);
        if is_refused && self.affected().is_ok_and(|now| now != affected) {
            return Err(Status::new(Code::Aborted, status.message()).with_source(status));
        }
        Err(self.with_stuck_start_hint(status))
    }

    /// Replaces the domain's metadata.
    fn note(&mut self, record: Record) -> Result<()> {
        let element = record.to_element()?;
        self.change("writing the metadata of a domain", |affected| {
            self.domain.set_metadata(
                ELEMENT,
                Some(&element),
                Some(metadata::PREFIX),
                Some(metadata::NAMESPACE),
                affected,
            )
        })?;
        self.record = record;
        Ok(())
    }

    /// Adds advice to an error while libvirt is starting the domain. The start may last forever: if libvirtd
    /// is killed right before it starts QEMU, the new libvirtd keeps the domain locked.
    fn with_stuck_start_hint(&self, status: Status) -> Status {
        let starts = i32::try_from(virt_sys::VIR_DOMAIN_PAUSED_STARTING_UP);
        let is_starting = self.domain.get_state().is_ok_and(|(state, reason)| {
            state == virt_sys::VIR_DOMAIN_PAUSED && starts.is_ok_and(|starts| starts == reason)
        });
        if status.code() != Code::Aborted || !is_starting {
            return status;
        }
        let what = format!(
            "{}: libvirt is starting the VM; if the start never ends, see \
                docs/back-ends/libvirt-operations.md#a-start-that-never-ends",
            status.message()
        );
        status.with_message(what)
    }

    /// Starts the domain unless it runs, and records the start in its metadata.
    ///
    /// # Errors
    /// ABORTED while it is being deleted; FAILED_PRECONDITION when it is locked; otherwise the error of the
    /// host.
    pub fn start(&mut self) -> Result<()> {
        self.ensure_not_being_deleted()?;
        self.ensure_not_locked()?;
        if !self.record.started {
            self.enable_autostart()?;
        }
        match self.domain.create() {
            Ok(_) => {}
            Err(error) if is_running_already(&error) && self.is_active()? => {
                if self.record.started {
                    return Ok(());
                }
            }
            Err(error) => return Err(status("starting the domain", error)),
        }
        if self.record.started {
            if let Err(error) = self.note_another_start() {
                // After an error the caller would restart the guest again. Without the record, the uptime of
                // the guest is only too long.
                tracing::warn!(domain = self.record.name, %error, "cannot record the start of a domain");
            }
            return Ok(());
        }
        let record = Record {
            started: true,
            started_at: Some(Timestamp::now()),
            ..self.record.clone()
        };
        self.note(record)
    }

    /// Makes the domain start with its host. This is part of the first start, which is repeated until it is
    /// recorded. After the definition would be too early: no call would make up for an interruption there.
    fn enable_autostart(&self) -> Result<()> {
        match self.domain.set_autostart(true) {
            Ok(_) => Ok(()),
            // A domain without a definition no longer exists when it is off.
            Err(_) if !self.is_persistent()? => Ok(()),
            Err(error) => Err(status("enabling the autostart of the domain", error)),
        }
    }

    /// Records the time of the start in the domain's current metadata, since another process may have changed
    /// it.
    fn note_another_start(&mut self) -> Result<()> {
        let DomainMetadata::Machine(record) = record(&self.domain)? else {
            return Ok(());
        };
        self.note(Record {
            started_at: Some(Timestamp::now()),
            ..*record
        })
    }

    /// Whether the guest is off.
    ///
    /// # Errors
    /// The host did not answer.
    pub fn is_off(&self) -> Result<bool> {
        Ok(!self.is_active()?)
    }

    /// Asks the guest to shut down, by its agent or else by the power button.
    ///
    /// # Errors
    /// FAILED_PRECONDITION when the domain is locked; otherwise the error of the host.
    pub fn shut_down(&self) -> Result<()> {
        if self.is_off()? {
            return Ok(());
        }
        self.ensure_not_locked()?;
        library::bound_agent(&self.domain);
        match self.domain.shutdown() {
            Ok(_) => Ok(()),
            // libvirt refuses the request from the end of the guest on, before the end of its QEMU.
            Err(_) if power_state(self.state()?) == PowerState::Stopping || self.is_off()? => Ok(()),
            Err(error) => Err(status("asking the guest to shut down", error)),
        }
    }

    /// Switches the VM off and on again. Unlike a reset, this also ends a QEMU that hangs. `ordered` becomes
    /// true before the request to the host.
    ///
    /// # Errors
    /// ABORTED while the domain is being deleted; FAILED_PRECONDITION when it is locked or does not start
    /// again; otherwise the error of the host.
    pub fn restart(&mut self, ordered: &AtomicBool) -> Result<()> {
        self.ensure_not_being_deleted()?;
        self.ensure_not_locked()?;
        ordered.store(true, Ordering::SeqCst);
        self.destroy()?;
        self.start().map_err(restart_failure)
    }

    /// Ends the domain's QEMU, if it runs.
    fn destroy(&self) -> Result<()> {
        match self.domain.destroy() {
            Ok(()) => Ok(()),
            Err(error) if error.code() == ErrorNumber::NoDomain => Ok(()),
            Err(_) if self.is_off()? => Ok(()),
            Err(error) => Err(status("switching off the domain", error)),
        }
    }

    /// Applies the hot-updatable fields of the spec. Compares them with the domain's state, because an
    /// earlier update may have failed half-way.
    ///
    /// # Errors
    /// OUT_OF_RANGE and INVALID_ARGUMENT, before any change, when the VM can't have these values.
    /// FAILED_PRECONDITION when the domain is locked. Otherwise the error of the host.
    pub fn update(&mut self, spec: &VmSpec, request: &UpdateMachineRequest) -> Result<()> {
        self.ensure_not_locked()?;
        let last: VmSpec = request.last_applied_provider_spec.decode()?;
        let most = self
            .domain
            .get_max_memory()
            .map_err(|error| status("reading the memory of the guest", error))?;
        spec.check_hot(most / 1024)?;
        if spec.cpu_shares.is_none() && last.cpu_shares.is_some() {
            let what =
                "the provider spec's /cpuShares can't be removed while the VM lives: set another value";
            return Err(Status::new(Code::InvalidArgument, what));
        }
        self.update_memory(spec.memory_mib.map_or(most, |mib| mib * 1024))?;
        self.update_shares(spec)?;
        let mut tags = self.record.tags.clone();
        let (wanted, before) = (tags::own(&spec.tags), tags::own(&last.tags));
        tags.retain(|tag, _| wanted.contains_key(tag) || !before.contains_key(tag));
        tags.extend(wanted);
        if tags == self.record.tags {
            return Ok(());
        }
        let record = Record {
            tags,
            ..self.record.clone()
        };
        self.note(record)
    }

    /// Reads the definition for the next start. libvirt changes the running domain first, so a changed
    /// definition shows that both have changed. The guest's actual memory follows later, or never while it
    /// boots.
    fn configured(&self) -> Result<Configured> {
        let xml = self
            .domain
            .get_xml_desc(virt_sys::VIR_DOMAIN_XML_INACTIVE)
            .map_err(|error| status("reading the definition of a domain", error))?;
        Configured::parse(&xml)
    }

    /// Sets the memory, in KiB.
    fn update_memory(&self, wanted: u64) -> Result<()> {
        if self.configured()?.current_memory == wanted {
            return Ok(());
        }
        self.change("changing the memory of the guest", |affected| {
            self.domain.set_memory_flags(wanted, affected)
        })
    }

    fn update_shares(&self, spec: &VmSpec) -> Result<()> {
        let Some(shares) = spec.cpu_shares else {
            return Ok(());
        };
        if self.configured()?.cputune.and_then(|tuning| tuning.shares) == Some(shares) {
            return Ok(());
        }
        let wanted = SchedulerInfo {
            cpu_shares: Some(shares),
            ..SchedulerInfo::default()
        };
        self.change("changing the CPU shares of the domain", |affected| {
            self.domain.set_scheduler_parameters_flags(&wanted, affected)
        })
    }
}

/// The part of a domain's definition that can be changed while it runs.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configured {
    /// In KiB: libvirt converts other units.
    current_memory: u64,
    cputune: Option<CpuTuning>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct CpuTuning {
    shares: Option<u64>,
}

impl Configured {
    fn parse(xml: &str) -> Result<Self> {
        quick_xml::de::from_str(xml).map_err(|error| {
            Status::new(Code::Internal, "cannot parse libvirt's definition of a domain").with_source(error)
        })
    }
}

/// Whether a domain in this state was started. After a failed start, a domain is stopped or failed.
const fn is_up(state: PowerState) -> bool {
    matches!(
        state,
        PowerState::Starting | PowerState::Running | PowerState::Stopping
    )
}

/// Reports a running guest without a known address as starting: callers query a starting VM again, but not a
/// running one.
fn unless_it_boots(state: PowerState, addresses: &[Address]) -> PowerState {
    let has_address = addresses
        .iter()
        .any(|address| address.kind == AddressType::InternalIP);
    if state == PowerState::Running && !has_address {
        return PowerState::Starting;
    }
    state
}

fn is_running_already(error: &Error) -> bool {
    error.code() == ErrorNumber::OperationInvalid
}

/// Maps the failure to start a VM after it was switched off. Some codes mean that nothing was changed, but
/// the VM is off now. They become FAILED_PRECONDITION, and the machine is replaced.
fn restart_failure(status: Status) -> Status {
    match status.code() {
        Code::ResourceExhausted | Code::PermissionDenied | Code::Unauthenticated => {
            let what = format!("the VM is off, and does not start again: {}", status.message());
            Status::new(Code::FailedPrecondition, what).with_source(status)
        }
        _ => status,
    }
}

fn power_state((state, reason): State) -> PowerState {
    let is_one_of = |reasons: &[virt_sys::virDomainPausedReason]| {
        reasons.iter().any(|known| i32::try_from(*known) == Ok(reason))
    };
    // QEMU pauses a guest that can't write to its disk, usually because its storage pool is full.
    let stuck = [
        virt_sys::VIR_DOMAIN_PAUSED_IOERROR,
        virt_sys::VIR_DOMAIN_PAUSED_WATCHDOG,
        virt_sys::VIR_DOMAIN_PAUSED_CRASHED,
    ];
    match state {
        virt_sys::VIR_DOMAIN_SHUTDOWN => PowerState::Stopping,
        // Nothing restarts such a domain automatically.
        virt_sys::VIR_DOMAIN_CRASHED => PowerState::Failed,
        virt_sys::VIR_DOMAIN_SHUTOFF if is_one_of(&[virt_sys::VIR_DOMAIN_SHUTOFF_CRASHED]) => {
            PowerState::Failed
        }
        virt_sys::VIR_DOMAIN_PAUSED if is_one_of(&stuck) => PowerState::Failed,
        // Also after a failed start, which may succeed later.
        virt_sys::VIR_DOMAIN_SHUTOFF => PowerState::Stopped,
        _ => PowerState::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_with_another_uuid_than_its_machines_is_a_copy() {
        let (copies, record) = (Copies::default(), crate::metadata::tests::record());
        assert!(!copies.contains(record.key().uuid(), &record));
        for _ in 0..2 {
            assert!(copies.contains(Uuid::from_u128(1), &record));
        }
        assert_eq!(copies.0.lock().unwrap().len(), 1, "it is logged once");
    }

    #[test]
    fn a_crashed_guest_has_failed_and_a_switched_off_guest_is_stopped() {
        for (state, reason, expected) in [
            (virt_sys::VIR_DOMAIN_RUNNING, 1, PowerState::Running),
            (virt_sys::VIR_DOMAIN_SHUTDOWN, 1, PowerState::Stopping),
            (virt_sys::VIR_DOMAIN_CRASHED, 1, PowerState::Failed),
            (virt_sys::VIR_DOMAIN_SHUTOFF, 3, PowerState::Failed),
            (virt_sys::VIR_DOMAIN_SHUTOFF, 6, PowerState::Stopped),
            (virt_sys::VIR_DOMAIN_SHUTOFF, 1, PowerState::Stopped),
            (virt_sys::VIR_DOMAIN_SHUTOFF, 2, PowerState::Stopped),
        ] {
            assert_eq!(power_state((state, reason)), expected, "{state} {reason}");
        }
    }

    #[test]
    fn a_guest_paused_by_an_error_has_failed_and_one_paused_by_a_user_runs() {
        for (reason, expected) in [
            (virt_sys::VIR_DOMAIN_PAUSED_USER, PowerState::Running),
            (virt_sys::VIR_DOMAIN_PAUSED_STARTING_UP, PowerState::Running),
            (virt_sys::VIR_DOMAIN_PAUSED_IOERROR, PowerState::Failed),
            (virt_sys::VIR_DOMAIN_PAUSED_WATCHDOG, PowerState::Failed),
            (virt_sys::VIR_DOMAIN_PAUSED_CRASHED, PowerState::Failed),
        ] {
            let paused = power_state((virt_sys::VIR_DOMAIN_PAUSED, reason.cast_signed()));
            assert_eq!(paused, expected, "{reason}");
        }
    }

    /// INI-22
    #[test]
    fn a_vm_whose_start_failed_was_not_started() {
        for (state, expected) in [
            (PowerState::Starting, true),
            (PowerState::Running, true),
            (PowerState::Stopping, true),
            (PowerState::Stopped, false),
            (PowerState::Failed, false),
        ] {
            assert_eq!(is_up(state), expected, "{state:?}");
        }
    }

    #[test]
    fn a_vm_is_starting_until_it_has_an_address() {
        let address = |kind| Address {
            kind,
            address: "a".to_owned(),
        };
        let both = [address(AddressType::Hostname), address(AddressType::InternalIP)];
        for (state, addresses, expected) in [
            (PowerState::Running, &both[..1], PowerState::Starting),
            (PowerState::Running, &both, PowerState::Running),
            (PowerState::Stopping, &both[..1], PowerState::Stopping),
            (PowerState::Stopped, &both[..1], PowerState::Stopped),
            (PowerState::Failed, &both[..1], PowerState::Failed),
        ] {
            assert_eq!(unless_it_boots(state, addresses), expected, "{state:?}");
        }
    }

    #[test]
    fn a_definition_is_read_with_and_without_shares() {
        for (tuning, shares) in [("", None), ("<cputune><shares>512</shares></cputune>", Some(512))] {
            let xml = format!(
                "<domain type='qemu' id='3'><name>a</name><memory unit='KiB'>131072</memory>\
                 <currentMemory unit='KiB'>102400</currentMemory>{tuning}<devices/></domain>"
            );
            let read = Configured::parse(&xml).unwrap();
            assert_eq!(read.current_memory, 102_400);
            assert_eq!(read.cputune.and_then(|tuning| tuning.shares), shares);
        }
        assert_eq!(Configured::parse("<domain/>").unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn a_vm_that_is_off_and_can_not_be_switched_on_was_not_left_alone() {
        for (code, expected) in [
            (Code::ResourceExhausted, Code::FailedPrecondition),
            (Code::PermissionDenied, Code::FailedPrecondition),
            (Code::Unauthenticated, Code::FailedPrecondition),
            (Code::FailedPrecondition, Code::FailedPrecondition),
            (Code::Aborted, Code::Aborted),
            (Code::Internal, Code::Internal),
        ] {
            assert_eq!(restart_failure(Status::new(code, "words")).code(), expected);
        }
    }
}
