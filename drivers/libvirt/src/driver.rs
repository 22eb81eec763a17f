//! The calls of the driver contract over all hosts.

mod placement_record;
mod survey;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cmi_driver::{
    Capabilities, ClassDescription, Code, Console, CreateMachineRequest, DeclaredCapabilities,
    DeleteMachineRequest, DeleteMachineResponse, DescribeClassRequest, Driver, GetConsoleRequest,
    GetMachineStatusRequest, HostedId, InitializeMachineRequest, JsonPointer, LastKnownState,
    ListMachinesRequest, ListZonesRequest, ListedMachine, Locks, Machine, MachineRef, Operation, PluginInfo,
    ProviderId, Readiness, RestartMachineRequest, Result, ShutDownMachineRequest, ShutDownMachineResponse,
    Status, USER_DATA, USER_DATA_FORMAT, UpdateMachineRequest, Zone, async_trait, tags,
};
use futures::future::{join_all, try_join_all};
use tokio::time::{Instant, sleep};
use uuid::Uuid;
use virt::connect::Connect;

use crate::config::Config;
use crate::connection::Host;
use crate::identity::{MachineKey, Names as _, SCHEME};
use crate::images::Images;
use crate::machines::{self, Copies, Created, Guests, Look, MachineRequest, Scope};
use crate::placement::Reservations;
use crate::spec::{self, CPU_SHARES, GB, MEMORY_MIB, NETWORK_ADDRESSES, VmSpec, Wanted};
use placement_record::PlacementRecord;
use survey::{PossibleHosts, Survey};

/// Name of the driver.
pub const NAME: &str = "libvirt.capcmi.io";
/// The optional calls that this driver implements.
const OFFERED: [Operation; 9] = [
    Operation::GetMachineStatus,
    Operation::ListMachines,
    Operation::InitializeMachine,
    Operation::ShutDownMachine,
    Operation::UpdateMachine,
    Operation::RestartMachine,
    Operation::GetConsole,
    Operation::ListZones,
    Operation::DescribeClass,
];

/// How long after its start the driver reports that it is not ready when no host answers.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// How long ShutDownMachine waits for the guest.
const STOPS_WITHIN: Duration = Duration::from_secs(2);
/// How often ShutDownMachine checks whether the guest is off.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// The driver of VMs on hosts with libvirt.
#[derive(Debug)]
pub struct LibvirtDriver {
    config: Arc<Config>,
    hosts: BTreeMap<String, Arc<Host>>,
    images: Images,
    locks: Locks,
    copies: Arc<Copies>,
    guests: Arc<Guests>,
    /// The hosts of machines that a call placed but did not create. Used for callers that do not return the
    /// placement record.
    placed: Mutex<HashMap<Uuid, String>>,
    reservations: Arc<Reservations>,
    started: Instant,
}

/// The parsed request of a call about one machine.
struct MachineCall {
    key: MachineKey,
    spec: VmSpec,
    /// The id that the caller knows.
    id: Option<HostedId>,
}

impl MachineCall {
    /// Checks name, provider id and spec of a call.
    fn read(machine: &MachineRef, provider_id: Option<&ProviderId>) -> Result<Self> {
        let id = provider_id.map(|id| HostedId::parse(SCHEME, id.as_str()));
        let spec: VmSpec = machine.class.provider_spec.decode()?;
        Ok(Self {
            key: MachineKey::read(machine, &spec.tags)?,
            spec,
            id: id.transpose()?,
        })
    }

    /// Whether the id can belong to this machine: the machine determines its UUID.
    fn is_possible(&self) -> bool {
        self.id.as_ref().is_none_or(|id| id.uuid == self.key.uuid())
    }

    fn not_found(&self) -> Status {
        let status = self.key.not_found();
        match &self.id {
            Some(id) => {
                let message = format!("{} with the id {id}", status.message());
                status.with_message(message)
            }
            None => status,
        }
    }
}

impl LibvirtDriver {
    /// A driver without an open connection.
    pub fn new(config: Config) -> Self {
        let hosts = config
            .hosts
            .iter()
            .map(|(name, host)| (name.clone(), Arc::new(Host::new(name, &host.uri))));
        Self {
            hosts: hosts.collect(),
            config: Arc::new(config),
            images: Images::default(),
            locks: Locks::default(),
            copies: Arc::default(),
            guests: Arc::default(),
            placed: Mutex::default(),
            reservations: Arc::default(),
            started: Instant::now(),
        }
    }

    /// Whether the driver has just started and has not reached any host yet.
    fn is_starting(&self) -> bool {
        self.started.elapsed() < STARTS_WITHIN && !self.hosts.values().any(|host| host.was_there())
    }

    /// All storage pools that may hold volumes of machines, according to the configuration.
    fn storage_pools(&self) -> Vec<String> {
        let pools = self.config.vm_pools.values();
        let names: BTreeSet<_> = pools.map(|pool| pool.storage_pool.clone()).collect();
        names.into_iter().collect()
    }

    /// The host of this name.
    fn host(&self, name: &str) -> Result<&Arc<Host>> {
        self.hosts.get(name).ok_or_else(|| {
            let what =
                format!("host `{name}` is not in the configuration, and may have the VM: add it again");
            Status::new(Code::FailedPrecondition, what)
        })
    }

    /// Returns the hosts that may have the VM, according to the ProviderID, the failure domain or the
    /// placement record.
    fn possible_hosts(asked: &MachineCall, record: Option<PlacementRecord>) -> PossibleHosts {
        let known = asked.id.as_ref().map(|id| id.host.clone());
        let known = known
            .or_else(|| asked.spec.failure_domain.clone())
            .or_else(|| record.map(|record| record.host));
        known.map_or(PossibleHosts::All, PossibleHosts::One)
    }

    /// Queries the hosts for a machine.
    async fn survey(&self, key: &MachineKey, possible: &PossibleHosts) -> Result<Survey> {
        if let PossibleHosts::One(name) = possible {
            self.host(name)?;
        }
        Ok(Survey::of(&self.hosts, &self.guests, key, possible).await)
    }

    /// Finds the single host that has the machine.
    async fn home(&self, asked: &MachineCall, record: Option<PlacementRecord>) -> Result<&Arc<Host>> {
        if !asked.is_possible() {
            return Err(asked.not_found());
        }
        let possible = Self::possible_hosts(asked, record);
        let survey = self.survey(&asked.key, &possible).await?;
        let found = survey.one(asked)?;
        self.host(&found.host)
    }

    /// Runs `change` on the host that has the machine, while holding the machine's lock.
    async fn change<T: Send + 'static>(
        &self,
        asked: &MachineCall,
        record: Option<PlacementRecord>,
        change: impl FnOnce(&Connect, &MachineKey) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let held = self.locks.hold(&asked.key.lock_name()).await?;
        let host = self.home(asked, record).await?;
        let key = asked.key.clone();
        host.run(move |connect| {
            let _held = held;
            change(connect, &key)
        })
        .await
    }

    /// Chooses the host of a new machine when neither the spec nor the placement record names one.
    ///
    /// # Errors
    /// ABORTED with a placement record when there is a choice. The caller stores the record, and the next
    /// call creates the machine. If another driver process gets that call, it uses the same host, although no
    /// host shows the machine yet.
    async fn placed(
        &self,
        key: &MachineKey,
        wanted: &Wanted<'_>,
        placed_before: Option<String>,
    ) -> Result<String> {
        if let Some(only) = wanted.only_host() {
            return Ok(only.to_owned());
        }
        if let Some(host) = placed_before.filter(|host| wanted.hosts.contains(&host.as_str())) {
            return Ok(host);
        }
        let host = self.place(key, wanted).await?;
        let what = format!(
            "machine `{}` is placed on host `{host}`: the next call creates it there",
            key.name
        );
        let record = PlacementRecord { host: host.clone() }.write()?;
        self.placements().insert(key.uuid(), host);
        let status = Status::new(Code::Aborted, what).with_no_side_effects();
        Err(status.with_last_known_state(record))
    }

    fn placements(&self) -> MutexGuard<'_, HashMap<Uuid, String>> {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places the machine on a host that has enough free memory.
    async fn place(&self, key: &MachineKey, wanted: &Wanted<'_>) -> Result<String> {
        let hosts = wanted.hosts.iter().map(|name| async move {
            let reserved = self.config.hosts[*name].reserved_memory_mib;
            let memory = self
                .host(name)?
                .run(move |connect| machines::memory(connect, reserved))
                .await?;
            Ok::<_, Status>(((*name).to_owned(), memory))
        });
        let hosts = try_join_all(hosts).await?;
        self.reservations.place(hosts, wanted.size.memory_mib, key.uuid())
    }

    async fn create(&self, request: CreateMachineRequest) -> Result<Machine> {
        let asked = MachineCall::read(&request.machine, None)?;
        let wanted = asked.spec.within(&self.config)?;
        let held = self.locks.hold(&asked.key.lock_name()).await?;
        let placed_before = self.placements().remove(&asked.key.uuid());
        let was_placed_here = placed_before.is_some();
        let record = request.last_known_state.as_ref().and_then(PlacementRecord::read);
        // The pool's hosts may have changed. A recorded host that is no longer configured may still have the
        // VM.
        let record = record.filter(|record| {
            wanted.hosts.contains(&record.host.as_str()) || !self.hosts.contains_key(&record.host)
        });
        let possible = Self::possible_hosts(&asked, record);
        let survey = self.survey(&asked.key, &possible).await?;
        let host = match survey.for_create(&asked.key, &possible)? {
            Some(home) => home,
            None => match &possible {
                PossibleHosts::One(host) => host.clone(),
                PossibleHosts::All => self.placed(&asked.key, &wanted, placed_before).await?,
            },
        };
        let machine_request = MachineRequest {
            spec: asked.spec.clone(),
            virt_type: self.config.virt_type,
            pool: wanted.pool.clone(),
            networks: wanted
                .networks
                .iter()
                .map(|(name, network)| ((*name).to_owned(), (*network).clone()))
                .collect(),
            size: wanted.size.clone(),
            image_name: wanted.image_name.to_owned(),
            image: wanted.image.clone(),
            user_data: request.machine.class.secrets.get(USER_DATA).cloned(),
            format: request.machine.class.secrets.get(USER_DATA_FORMAT).cloned(),
            images: self.images.clone(),
            reserved_mib: self.config.hosts[&host].reserved_memory_mib,
            reservations: Arc::clone(&self.reservations),
            guests: Arc::clone(&self.guests),
            key: asked.key.clone(),
            host: host.clone(),
        };
        // Written first, so that a create that fails half-way can return the record.
        let record = PlacementRecord { host: host.clone() }.write()?;
        let made = self
            .host(&host)?
            .run(move |connect| {
                let _held = held;
                machines::create(connect, &machine_request)
            })
            .await;
        match made {
            Ok(Created::Made(machine)) => Ok(Machine {
                last_known_state: (!is_placed_by_spec(&asked, &request)).then_some(record),
                ..*machine
            }),
            // The next attempt may use another host. Another process that placed the machine on this host may
            // still create it there. The caller then waits as for free memory, and finds that VM.
            Ok(Created::Refused(status)) => {
                let has_choice =
                    was_placed_here && asked.spec.failure_domain.is_none() && wanted.hosts.len() > 1;
                Err(with_record(
                    placed_anew(status, has_choice),
                    PlacementRecord::withdrawn(),
                ))
            }
            // The next attempt uses the same host, because this attempt may have left volumes there.
            Err(status) => Err(status.with_last_known_state(record)),
        }
    }

    async fn delete(&self, request: DeleteMachineRequest) -> Result<()> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?;
        if !asked.is_possible() {
            return Ok(());
        }
        let held = Arc::new(self.locks.hold(&asked.key.lock_name()).await?);
        self.placements().remove(&asked.key.uuid());
        self.reservations.forget(asked.key.uuid());
        let record = request.last_known_state.as_ref().and_then(PlacementRecord::read);
        let possible = Self::possible_hosts(&asked, record);
        if let PossibleHosts::One(name) = &possible {
            self.host(name)?;
        }
        let removals = self.hosts.iter().map(|(name, host)| {
            let (key, held) = (asked.key.clone(), Arc::clone(&held));
            let required = possible.contains(name);
            // A host that can't have the machine needs no complete list of volumes.
            let pools = required.then(|| self.storage_pools());
            async move {
                let removal = survey::query(host, required, move |connect| {
                    let _held = held;
                    match pools {
                        Some(pools) => machines::delete(connect, &key, &pools),
                        None => machines::delete_where_it_can_not_be(connect, &key),
                    }
                });
                match removal.await {
                    // A host that can't have the machine may be down, or refuse the driver.
                    Err(error) if !required && is_out_of_reach(&error) => Ok(()),
                    removed => removed,
                }
            }
        });
        join_all(removals).await.into_iter().collect()
    }
}

/// Whether the failure domain in the spec determines the host, so that the caller needs no placement record.
/// A pool with a single host does not determine it: the pool may have another host at the next call.
fn is_placed_by_spec(asked: &MachineCall, request: &CreateMachineRequest) -> bool {
    asked.spec.failure_domain.is_some() && request.last_known_state.is_none()
}

/// Maps RESOURCE_EXHAUSTED to ABORTED when this process placed the machine on a host that no longer has room.
/// The next call places it again, so the machine need not wait for room on that host.
fn placed_anew(status: Status, has_choice: bool) -> Status {
    if !has_choice || status.code() != Code::ResourceExhausted {
        return status;
    }
    let what = format!("{}: the next call places the machine again", status.message());
    Status::new(Code::Aborted, what).with_no_side_effects()
}

/// Attaches the state that the caller must return with the next call.
fn with_record(status: Status, record: Option<LastKnownState>) -> Status {
    match record {
        Some(record) => status.with_last_known_state(record),
        None => status,
    }
}

/// Whether a host is down, or refuses the driver.
fn is_out_of_reach(error: &Status) -> bool {
    let refuses = [Code::Unauthenticated, Code::PermissionDenied].contains(&error.code());
    refuses || error.code().is_outage()
}

#[async_trait]
impl Driver for LibvirtDriver {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Ok(PluginInfo::new(NAME, env!("CARGO_PKG_VERSION")))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        Ok(Capabilities {
            operations: OFFERED.into_iter().collect(),
            zones: true,
            tag_path: JsonPointer::field(tags::FIELD),
            hot_updatable: [tags::FIELD, CPU_SHARES, MEMORY_MIB]
                .map(JsonPointer::field)
                .to_vec(),
            provider_spec_schema: Some(spec::schema(&self.config)),
            list_has_state: true,
            address_path: Some(JsonPointer::field(NETWORK_ADDRESSES)),
            ..Capabilities::minimal()
        }
        .into())
    }

    /// Ready if one host answers: calls report an unreachable host themselves. Hosts may start at the same
    /// time as the driver.
    async fn probe(&self) -> Result<Readiness> {
        let asked = self.hosts.values().map(|host| Box::pin(host.ensure_reachable()));
        match futures::future::select_ok(asked).await {
            Ok(_) => Ok(Readiness::Ready),
            Err(_) if self.is_starting() => Ok(Readiness::NotReady),
            Err(status) => {
                let what = format!(
                    "cannot reach any of {} hosts: {}",
                    self.hosts.len(),
                    status.message()
                );
                Err(Status::new(Code::FailedPrecondition, what))
            }
        }
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        self.create(request).await
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        self.delete(request).await?;
        Ok(DeleteMachineResponse::default())
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?;
        if !asked.is_possible() {
            return Err(asked.not_found());
        }
        // Otherwise the error for a misspelt failure domain would blame a removed host instead of the field.
        if asked.id.is_none() {
            asked.spec.check_failure_domain(&self.config)?;
        }
        let possible = Self::possible_hosts(&asked, None);
        let survey = self.survey(&asked.key, &possible).await?;
        let found = survey.one(&asked)?;
        if found.started {
            return Ok(found.machine.clone());
        }
        let what = format!("VM {} has not been started", found.machine.provider_id);
        Err(Status::new(Code::Uninitialized, what).with_machine(found.machine.clone()))
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let spec: VmSpec = request.class.provider_spec.decode()?;
        let cluster = tags::cluster(&spec.tags)?;
        let lists = self.hosts.iter().map(|(name, host)| {
            let (name, cluster) = (name.clone(), cluster.to_owned());
            let (copies, guests) = (Arc::clone(&self.copies), Arc::clone(&self.guests));
            host.run(move |connect| machines::list(connect, &name, &cluster, &copies, &guests))
        });
        Ok(try_join_all(lists).await?.into_iter().flatten().collect())
    }

    /// Starts a VM whose creation ended before its start.
    async fn initialize_machine(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?;
        let record = request.last_known_state.as_ref().and_then(PlacementRecord::read);
        let guests = Arc::clone(&self.guests);
        self.change(&asked, record, move |connect, key| {
            let mut vm = machines::find(connect, key)?;
            let look = || Look::new(connect, &guests, Scope::Machine);
            if !vm.record.started {
                vm.start().map_err(|error| {
                    if error.code() == Code::Aborted {
                        return error;
                    }
                    let what = format!("cannot start VM {}: {}", vm.record.provider_id, error.message());
                    match vm.describe(&look()) {
                        Ok(machine) => Status::new(Code::Uninitialized, what).with_machine(machine),
                        Err(_) => error,
                    }
                })?;
            }
            vm.describe(&look())
        })
        .await
    }

    /// Returns ABORTED while the guest runs. A booting guest ignores the power button, and nothing reports
    /// that, so each retry presses it again.
    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?;
        let record = request.last_known_state.as_ref().and_then(PlacementRecord::read);
        self.change(&asked, record.clone(), |connect, key| {
            machines::find(connect, key)?.shut_down()
        })
        .await?;
        let deadline = Instant::now() + STOPS_WITHIN;
        loop {
            let is_off = |connect: &Connect, key: &MachineKey| machines::find(connect, key)?.is_off();
            if self.change(&asked, record.clone(), is_off).await? {
                return Ok(ShutDownMachineResponse::default());
            }
            if Instant::now() >= deadline {
                let what = format!(
                    "the guest of machine `{}` still runs after the request to shut down",
                    asked.key.name
                );
                return Err(Status::new(Code::Aborted, what));
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn update_machine(&self, request: UpdateMachineRequest) -> Result<()> {
        let asked = MachineCall::read(&request.machine, Some(&request.provider_id))?;
        let spec = asked.spec.clone();
        self.change(&asked, None, move |connect, key| {
            machines::find(connect, key)?.update(&spec, &request)
        })
        .await
    }

    async fn restart_machine(&self, request: RestartMachineRequest) -> Result<()> {
        let asked = MachineCall::read(&request.machine, Some(&request.provider_id))?;
        let ordered = Arc::new(AtomicBool::default());
        let is_ordered = Arc::clone(&ordered);
        let restarted = self.change(&asked, None, move |connect, key| {
            machines::find(connect, key)?.restart(&is_ordered)
        });
        restarted.await.map_err(|status| {
            if status.code() != Code::Unavailable {
                status
            } else if ordered.load(Ordering::SeqCst) {
                // The host may have restarted the VM before the connection was lost.
                Status::new(Code::Unknown, status.message()).with_source(status)
            } else {
                status.with_no_side_effects()
            }
        })
    }

    async fn get_console(&self, request: GetConsoleRequest) -> Result<Console> {
        let asked = MachineCall::read(&request.machine, Some(&request.provider_id))?;
        let host = self.home(&asked, None).await?;
        host.run(move |connect| machines::console(connect, &asked.key))
            .await
    }

    async fn list_zones(&self, request: ListZonesRequest) -> Result<Vec<Zone>> {
        // A Cluster asks before it has a machine: a spec without a pool gets all hosts.
        let hosts: Vec<&str> = if request.class.provider_spec.0.contains_key("vmPool") {
            let spec: VmSpec = request.class.provider_spec.decode()?;
            spec.within(&self.config)?.hosts
        } else {
            self.config.hosts.keys().map(String::as_str).collect()
        };
        let zone = |name: &str| Zone {
            name: name.to_owned(),
            control_plane: true,
            attributes: BTreeMap::new(),
        };
        Ok(hosts.into_iter().map(zone).collect())
    }

    async fn describe_class(&self, request: DescribeClassRequest) -> Result<ClassDescription> {
        let spec: VmSpec = request.class.provider_spec.decode()?;
        let wanted = spec.within(&self.config)?;
        let mut capacity = BTreeMap::from([
            ("cpu".to_owned(), wanted.size.cpus.to_string()),
            ("memory".to_owned(), format!("{}Mi", wanted.size.memory_mib)),
        ]);
        if let Some(gigabytes) = spec.root_fs_size {
            capacity.insert(
                "ephemeral-storage".to_owned(),
                gigabytes.saturating_mul(GB).to_string(),
            );
        }
        Ok(ClassDescription {
            capacity,
            architecture: Some("amd64".to_owned()),
            operating_system: Some("linux".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRV-DE-07, DRV-DE-16
    #[test]
    fn a_host_that_can_not_have_the_machine_need_not_let_the_driver_in() {
        for (code, expected) in [
            (Code::Unavailable, true),
            (Code::DeadlineExceeded, true),
            (Code::Unauthenticated, true),
            (Code::PermissionDenied, true),
            (Code::Internal, false),
            (Code::FailedPrecondition, false),
            (Code::Aborted, false),
        ] {
            assert_eq!(is_out_of_reach(&Status::new(code, "words")), expected, "{code}");
        }
    }

    fn machine(pool: &str, zone: Option<&str>) -> MachineRef {
        let mut spec = serde_json::json!({"vmPool": pool, "size": "small", "tags": {
            "kubernetes.io/cluster": "c", "kubernetes.io/role": "node", "capcmi.io/machine": "m"}});
        if let Some(zone) = zone {
            spec["failureDomain"] = serde_json::json!(zone);
        }
        let class = cmi_driver::MachineClass {
            provider_spec: serde_json::from_value(spec).unwrap(),
            ..cmi_driver::MachineClass::default()
        };
        MachineRef::new("n", class)
    }

    /// A host that was removed from its pool keeps its VMs.
    #[test]
    fn the_host_is_noted_where_it_is_settled_by_the_pool_alone() {
        let is_placed = |pool: &str, zone: Option<&str>, brought: Option<LastKnownState>| {
            let machine = machine(pool, zone);
            let asked = MachineCall::read(&machine, None).unwrap();
            let request = CreateMachineRequest {
                machine,
                last_known_state: brought,
            };
            is_placed_by_spec(&asked, &request)
        };
        assert!(is_placed("default", Some("host-b"), None));
        assert!(
            !is_placed("edge", None, None),
            "the pool has no other host, today"
        );
        assert!(!is_placed("default", None, None));
        let record = PlacementRecord {
            host: "host-b".to_owned(),
        };
        assert!(
            !is_placed("default", Some("host-b"), Some(record.write().unwrap())),
            "what is kept is brought up to date"
        );
    }

    #[test]
    fn a_machine_is_placed_anew_where_there_is_a_choice_and_memory_is_short() {
        for (code, has_choice, expected) in [
            (Code::ResourceExhausted, true, Code::Aborted),
            (Code::ResourceExhausted, false, Code::ResourceExhausted),
            (Code::FailedPrecondition, true, Code::FailedPrecondition),
        ] {
            assert_eq!(
                placed_anew(Status::new(code, "words"), has_choice).code(),
                expected
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_without_a_reachable_host_is_not_ready_and_then_unhealthy() {
        let config = Config::parse(
            &crate::config::tests::EXAMPLE
                .replace("qemu:///system", "qemu+unix:///system?socket=/nowhere/a")
                .replace(
                    "qemu+tls://b.example/system",
                    "qemu+unix:///system?socket=/nowhere/b",
                ),
        );
        let driver = LibvirtDriver::new(config.unwrap());
        assert_eq!(driver.probe().await.unwrap(), Readiness::NotReady);
        tokio::time::advance(STARTS_WITHIN).await;
        assert_eq!(driver.probe().await.unwrap_err().code(), Code::FailedPrecondition);
    }
}
