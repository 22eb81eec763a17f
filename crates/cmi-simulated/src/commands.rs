//! The cloud's decisions about requests: from the state and the time to events and an answer.

use super::clock::Instant;
use super::cloud::{Cloud, Event};
use super::config::SimulatedConfig;
use super::journal::Decision;
use super::spec::{self, VmSpec, Wanted};
use super::vm::{Condition, UserData, Vm, VmId};
use cmi_driver::{Code, Machine, Operation, Result, Status, tags};
use std::collections::BTreeMap;
use std::time::Duration;

/// Selects a VM. Name, cluster and identity have to fit, so another machine's VM is never touched (DRV-20,
/// DRV-28). A caller that names no identity selects the VM with its id, even if the VM has an identity by
/// now. Without an id, it selects the VM without an identity.
#[derive(Clone, Debug)]
pub struct VmSelector {
    /// The machine's name.
    pub name: String,
    /// The cluster id.
    pub cluster: String,
    /// The identity of the machine object.
    pub machine: String,
    /// The VM that the caller thinks it is.
    pub id: Option<VmId>,
}

/// The inputs of a create in addition to the spec.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// The user data.
    pub user_data: UserData,
    /// Its format, if the caller gave one.
    pub format: Option<String>,
}

impl VmSelector {
    fn vms<'a>(&'a self, cloud: &'a Cloud) -> impl Iterator<Item = &'a Vm> {
        cloud
            .named(&self.cluster, &self.name)
            .filter(|vm| vm.machine() == self.machine || self.machine.is_empty() && self.id == Some(vm.id))
    }

    /// Returns the VM to update. A VM without an identity gets the caller's.
    fn to_update<'a>(&'a self, cloud: &'a Cloud, config: &SimulatedConfig) -> Result<&'a Vm> {
        let unidentified = cloud
            .named(&self.cluster, &self.name)
            .filter(|vm| config.adds_machine_tag && vm.machine().is_empty() && self.id == Some(vm.id));
        let mut own = self.vms(cloud).peekable();
        let vm = if own.peek().is_some() {
            self.only(own)
        } else {
            self.only(unidentified)
        }?;
        not_locked(vm)?;
        Ok(vm)
    }

    /// Returns the only VM, if it is not locked.
    pub(super) fn one<'a>(&'a self, cloud: &'a Cloud) -> Result<&'a Vm> {
        let vm = self.only(self.vms(cloud))?;
        not_locked(vm)?;
        Ok(vm)
    }

    fn only<'a>(&self, vms: impl Iterator<Item = &'a Vm>) -> Result<&'a Vm> {
        let vms: Vec<_> = vms.collect();
        match vms.as_slice() {
            [vm] if self.id.is_none_or(|id| id == vm.id) => Ok(vm),
            [] | [_] => Err(self.not_found()),
            several => Err(self.several(several)),
        }
    }

    fn not_found(&self) -> Status {
        let id = self.id.map(|id| format!(" with the id {id}")).unwrap_or_default();
        Status::new(
            Code::NotFound,
            format!(
                "cluster `{}` has no VM of machine `{}`{id}",
                self.cluster, self.name
            ),
        )
    }

    fn several(&self, vms: &[&Vm]) -> Status {
        let mut ids: Vec<_> = vms.iter().map(|vm| vm.provider_id()).collect();
        ids.sort();
        Status::new(
            Code::OutOfRange,
            format!("machine `{}` has several VMs: {}", self.name, ids.join(", ")),
        )
    }
}

/// Creates a VM or adopts the existing one (DRV-10, DRV-12).
pub fn create(
    cloud: &Cloud,
    now: Instant,
    config: &SimulatedConfig,
    selector: &VmSelector,
    spec: &VmSpec,
    bootstrap: Bootstrap,
) -> Result<Decision<Machine>> {
    let wanted = spec.within(config)?;
    let ours: Vec<_> = selector.vms(cloud).collect();
    match ours.as_slice() {
        [] => {}
        [vm] => return adopt(vm, now, spec, wanted).map(Decision::unchanged),
        several => {
            let message = selector.several(several).message().to_owned();
            return Err(Status::new(Code::FailedPrecondition, message));
        }
    }
    if let Some(vm) = cloud
        .deferred(&selector.cluster, &selector.name)
        .find(|vm| vm.machine() == selector.machine)
    {
        // This repeats a create that is not carried out yet. The VM is the same, and exists when this call is
        // answered.
        return Ok(Decision {
            events: vec![Event::Deferred {
                id: vm.id,
                until: now,
            }],
            answer: adopt(vm, now, spec, wanted)?,
        });
    }
    if let Some(other) = cloud.named(&selector.cluster, &selector.name).next() {
        return Err(Status::new(
            Code::AlreadyExists,
            format!(
                "VM {} has the name `{}` and belongs to another machine object",
                other.provider_id(),
                selector.name
            ),
        ));
    }
    let vm = order(cloud, now, config, selector, spec, wanted, bootstrap)?;
    let answer = described(&vm, now)?;
    Ok(Decision {
        events: vec![Event::Ordered(Box::new(vm))],
        answer,
    })
}

fn adopt(vm: &Vm, now: Instant, spec: &VmSpec, wanted: Wanted<'_>) -> Result<Machine> {
    not_locked(vm)?;
    not_deleted(vm, now)?;
    match difference(vm, spec, Some(wanted.root_fs_gb)) {
        None => described(vm, now),
        Some(field) => Err(Status::new(
            Code::AlreadyExists,
            format!(
                "VM {} of machine `{}` exists with another /{field} than the provider spec",
                vm.provider_id(),
                vm.name
            ),
        )),
    }
}

/// Returns the first field that differs between a VM and a spec. Ignores labels and the source/destination
/// check, which can be changed, and user data, which differs between attempts. The identity fits already: it
/// was used to find the VM.
fn difference(vm: &Vm, spec: &VmSpec, root_fs_gb: Option<u32>) -> Option<&'static str> {
    [
        (spec::VM_POOL, vm.pool == spec.pool),
        (spec::SIZE, vm.size == spec.size),
        (
            spec::ROOT_FS_SIZE,
            root_fs_gb.is_none_or(|gb| gb == vm.root_fs_gb),
        ),
        (tags::FAILURE_DOMAIN, spec.zone.is_none() || spec.zone == vm.zone),
        (spec::TAGS, others(&vm.tags).eq(others(&spec.tags))),
        (
            spec::NETWORK_ADDRESSES,
            vm.static_addresses == spec.static_addresses,
        ),
    ]
    .into_iter()
    .find_map(|(field, same)| (!same).then_some(field))
}

/// Returns the tags except for the identity.
fn others(all: &BTreeMap<String, String>) -> impl Iterator<Item = (&String, &String)> {
    all.iter().filter(|(name, _)| *name != tags::MACHINE)
}

/// Returns the requested zone, or else the zone with room that has the fewest VMs; `None` in a cloud without
/// zones.
fn zone(cloud: &Cloud, spec: &VmSpec, wanted: &Wanted<'_>) -> Result<Option<String>> {
    let has_room = |zone: &&String| {
        let limit = wanted.pool.zone_capacity.get(*zone);
        limit.is_none_or(|limit| cloud.taken_in_zone(&spec.pool, zone) < *limit)
    };
    let requested = spec.zone.as_ref();
    let zones = wanted
        .zones
        .iter()
        .filter(|zone| requested.is_none_or(|requested| requested == *zone));
    let chosen = zones
        .filter(has_room)
        .min_by_key(|zone| cloud.taken_in_zone(&spec.pool, zone));
    if chosen.is_none() && !wanted.zones.is_empty() {
        let place = requested.map_or_else(|| "all zones".to_owned(), |zone| format!("zone `{zone}`"));
        let message = format!("{place} of pool `{}` has no room", spec.pool);
        return Err(Status::new(Code::ResourceExhausted, message));
    }
    Ok(chosen.cloned())
}

fn order(
    cloud: &Cloud,
    now: Instant,
    config: &SimulatedConfig,
    selector: &VmSelector,
    spec: &VmSpec,
    wanted: Wanted<'_>,
    bootstrap: Bootstrap,
) -> Result<Vm> {
    let exhausted = |message: String| Err(Status::new(Code::ResourceExhausted, message));
    if let Some(quota) = cloud.quota(config.quota)
        && cloud.total() >= quota as usize
    {
        return exhausted(format!("the quota of {quota} VMs is used up"));
    }
    let capacity = cloud.capacity(&spec.pool, wanted.pool.capacity());
    let address = cloud.free_address(&spec.pool, wanted.pool.subnet);
    if cloud.taken(&spec.pool) >= capacity || address.is_none() {
        return exhausted(format!(
            "pool `{}` is full: it has {} of {capacity} VMs",
            spec.pool,
            cloud.taken(&spec.pool)
        ));
    }
    let zone = zone(cloud, spec, &wanted)?;
    let id = VmId::unique();
    let boots_at = now.after(boot_time(id, config));
    let until_address = Duration::from_secs_f64(config.address_seconds);
    let address_from = (!until_address.is_zero()).then(|| boots_at.after(until_address));
    Ok(Vm {
        id,
        name: selector.name.clone(),
        tags: spec.tags.clone(),
        labels: spec.labels.clone(),
        pool: spec.pool.clone(),
        size: spec.size.clone(),
        root_fs_gb: wanted.root_fs_gb,
        zone,
        address,
        address_from,
        static_addresses: spec.static_addresses.clone(),
        set_addresses: None,
        // Where InitializeMachine is not offered, the order sets it.
        source_dest_check: config.supports(Operation::InitializeMachine) || spec.source_dest_check,
        user_data: bootstrap.user_data,
        user_data_format: bootstrap.format,
        ordered_at: now,
        boots_at,
        stops_at: None,
        gone_at: None,
        condition: Condition::Sound,
    })
}

/// Reads a VM; Uninitialized, with the machine, when its check is not as the spec asks (INI-18, INI-23).
pub fn status(
    cloud: &Cloud,
    now: Instant,
    config: &SimulatedConfig,
    selector: &VmSelector,
    check: bool,
) -> Result<Machine> {
    let vm = selector.only(selector.vms(cloud).filter(|vm| is_visible(vm, now, config)))?;
    not_locked(vm)?;
    let machine = described(vm, now)?;
    let initialized = vm.source_dest_check == check || !config.supports(Operation::InitializeMachine);
    if initialized || vm.gone_at.is_some() {
        return Ok(machine);
    }
    let message = format!(
        "VM {} is not initialized: its source/destination check is not switched yet",
        vm.provider_id()
    );
    Err(Status::new(Code::Uninitialized, message).with_machine(machine))
}

/// Whether GetMachineStatus and ListMachines show a VM.
pub fn is_visible(vm: &Vm, now: Instant, config: &SimulatedConfig) -> bool {
    now >= vm
        .ordered_at
        .after(Duration::from_secs_f64(config.hide_new_seconds))
}

/// Sets the source/destination check as in the spec (INI-22).
pub fn initialize(
    cloud: &Cloud,
    now: Instant,
    selector: &VmSelector,
    check: bool,
) -> Result<Decision<Machine>> {
    let vm = selector.one(cloud)?;
    not_deleted(vm, now)?;
    let changed =
        (vm.source_dest_check != check).then_some(Event::SourceDestCheckSet { id: vm.id, on: check });
    Ok(Decision {
        events: changed.into_iter().collect(),
        answer: described(vm, now)?,
    })
}

/// Orders the deletion of all that is ours under this name; answers when it will be gone, none if it is.
pub fn delete(
    cloud: &Cloud,
    now: Instant,
    takes: Duration,
    selector: &VmSelector,
) -> Result<Decision<Option<Instant>>> {
    let mut events = Vec::new();
    let mut gone = None;
    for vm in selector.vms(cloud) {
        let at = vm.gone_at.unwrap_or_else(|| now.after(takes));
        if vm.gone_at.is_none() {
            not_locked(vm)?;
            events.push(Event::DeletionOrdered {
                id: vm.id,
                gone_at: at,
            });
        }
        gone = gone.max(Some(at));
    }
    Ok(Decision { events, answer: gone })
}

/// Whether [`delete`] has nothing left to delete.
pub fn is_gone(cloud: &Cloud, selector: &VmSelector) -> bool {
    selector.vms(cloud).next().is_none()
}

/// Orders the guest to stop; answers when it will be stopped.
pub fn shut_down(
    cloud: &Cloud,
    now: Instant,
    takes: Duration,
    selector: &VmSelector,
) -> Result<Decision<Instant>> {
    let vm = selector.one(cloud)?;
    not_deleted(vm, now)?;
    if vm.condition == Condition::Crashed {
        return Ok(Decision::unchanged(now));
    }
    if let Some(at) = vm.stops_at {
        return Ok(Decision::unchanged(at));
    }
    let stops_at = now.after(takes);
    Ok(Decision {
        events: vec![Event::StopOrdered { id: vm.id, stops_at }],
        answer: stops_at,
    })
}

/// Restarts a VM in any state of its guest, or switches it on if it is off. The VM stays the same.
pub fn restart(
    cloud: &Cloud,
    now: Instant,
    config: &SimulatedConfig,
    selector: &VmSelector,
) -> Result<Decision<()>> {
    let vm = selector.one(cloud)?;
    not_deleted(vm, now)?;
    if vm.condition == Condition::Crashed {
        let message = format!("VM {} crashed and will not run again", vm.provider_id());
        return Err(Status::new(Code::FailedPrecondition, message));
    }
    Ok(Decision {
        events: vec![Event::Restarted {
            id: vm.id,
            boots_at: now.after(boot_time(vm.id, config)),
        }],
        answer: (),
    })
}

/// How long a VM takes from its order until its guest runs.
fn boot_time(id: VmId, config: &SimulatedConfig) -> Duration {
    Duration::from_secs_f64(config.boot_seconds + config.boot_jitter_seconds * id.share())
}

/// Replaces the labels, and adds a missing identity (CAP-18). Compares with the VM's real state, not with the
/// last applied spec, so that a reverted half update leaves nothing behind (UPD-03).
pub fn update(
    cloud: &Cloud,
    now: Instant,
    config: &SimulatedConfig,
    selector: &VmSelector,
    spec: &VmSpec,
) -> Result<Decision<()>> {
    let wanted = spec.within(config)?;
    let vm = selector.to_update(cloud, config)?;
    not_deleted(vm, now)?;
    let check = (vm.source_dest_check != spec.source_dest_check).then_some(spec::SOURCE_DEST_CHECK);
    if let Some(field) = difference(vm, spec, Some(wanted.root_fs_gb)).or(check) {
        return Err(Status::new(
            Code::InvalidArgument,
            format!(
                "the provider spec's /{field} can't be changed on VM {}; only /{} can",
                vm.provider_id(),
                spec::LABELS
            ),
        ));
    }
    let labels = (vm.labels != spec.labels).then(|| Event::LabelsSet {
        id: vm.id,
        labels: spec.labels.clone(),
    });
    let is_to_be_identified = vm.machine().is_empty() && !selector.machine.is_empty();
    let identity = is_to_be_identified.then(|| Event::MachineTagSet {
        id: vm.id,
        machine: selector.machine.clone(),
    });
    Ok(Decision {
        events: labels.into_iter().chain(identity).collect(),
        answer: (),
    })
}

/// Returns the machine of a selector, if there is exactly one, to attach it to an error.
pub fn machine(cloud: &Cloud, now: Instant, selector: &VmSelector) -> Option<Machine> {
    selector
        .only(selector.vms(cloud))
        .ok()
        .and_then(|vm| vm.describe(now).ok())
}

/// Delays the creation of the selected VMs.
pub fn defer(cloud: &Cloud, selector: &VmSelector, until: Instant) -> Decision<()> {
    Decision {
        events: selector
            .vms(cloud)
            .map(|vm| Event::Deferred { id: vm.id, until })
            .collect(),
        answer: (),
    }
}

/// Lets the VMs of a selector vanish.
pub fn vanish(cloud: &Cloud, selector: &VmSelector) -> Decision<()> {
    Decision {
        events: selector
            .vms(cloud)
            .map(|vm| Event::Vanished { id: vm.id })
            .collect(),
        answer: (),
    }
}

/// The labels of the VMs of a selector.
pub fn labels(cloud: &Cloud, selector: &VmSelector) -> BTreeMap<VmId, BTreeMap<String, String>> {
    let vms = selector.vms(cloud);
    vms.map(|vm| (vm.id, vm.labels.clone())).collect()
}

/// Reverts the label changes of the selected VMs, except for the first changed label.
pub fn take_half_back(
    cloud: &Cloud,
    selector: &VmSelector,
    before: &BTreeMap<VmId, BTreeMap<String, String>>,
) -> Decision<()> {
    let events = selector.vms(cloud).filter_map(|vm| {
        let mut labels = before.get(&vm.id)?.clone();
        let names = labels.keys().chain(vm.labels.keys());
        let first = names
            .filter(|name| labels.get(*name) != vm.labels.get(*name))
            .min()?
            .clone();
        match vm.labels.get(&first) {
            Some(value) => labels.insert(first, value.clone()),
            None => labels.remove(&first),
        };
        Some(Event::LabelsSet { id: vm.id, labels })
    });
    Decision {
        events: events.collect(),
        answer: (),
    }
}

/// Returns the VM in the terms of the contract; INTERNAL if its id is invalid (DRV-CR-13).
fn described(vm: &Vm, now: Instant) -> Result<Machine> {
    vm.describe(now).map_err(|error| {
        Status::new(
            Code::Internal,
            format!(
                "the cloud gave VM `{}` an id that can't be used: {error}",
                vm.name
            ),
        )
    })
}

fn not_locked(vm: &Vm) -> Result<()> {
    match vm.condition {
        Condition::Sound | Condition::Crashed => Ok(()),
        Condition::Locked => Err(Status::new(
            Code::FailedPrecondition,
            format!(
                "VM {} is locked; unlock it at the cloud's console",
                vm.provider_id()
            ),
        )),
    }
}

fn not_deleted(vm: &Vm, now: Instant) -> Result<()> {
    let Some(gone_at) = vm.gone_at else { return Ok(()) };
    Err(pending(
        &format!(
            "VM {} of machine `{}` is being deleted",
            vm.provider_id(),
            vm.name
        ),
        gone_at.since(now),
    ))
}

/// ABORTED: an operation is running and takes this much longer.
pub fn pending(what: &str, wait: Duration) -> Status {
    Status::new(
        Code::Aborted,
        format!("{what}, for another {:.1} s", wait.as_secs_f64()),
    )
    .with_retry_after(wait)
}
