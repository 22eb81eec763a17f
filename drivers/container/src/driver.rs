//! The calls of the driver contract.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cmi_driver::{
    Capabilities, ClassDescription, Code, Console, CreateMachineRequest, DeclaredCapabilities,
    DeleteMachineRequest, DeleteMachineResponse, DescribeClassRequest, Driver, GetConsoleRequest,
    GetMachineStatusRequest, HostedId, InitializeMachineRequest, JsonPointer, ListMachinesRequest,
    ListZonesRequest, ListedMachine, Locks, Machine, MachineRef, Operation, PluginInfo, ProviderId,
    Readiness, RestartMachineRequest, Result, SecretValue, ShutDownMachineRequest, ShutDownMachineResponse,
    Status, USER_DATA, USER_DATA_FORMAT, UpdateMachineRequest, Zone, async_trait, tags,
};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::config::Config;
use crate::identity::{MachineKey, Names as _, SCHEME};
use crate::machines::Machines;
use crate::spec::{self, MachineSpec, NETWORK_ADDRESSES, SIZE};

/// Name of the driver.
pub const NAME: &str = "container.capcmi.io";
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
/// Bootstrap data that cloud-init does not read.
const IGNITION: &[u8] = b"ignition";

/// How long after its start the driver waits for the state folder.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// How long ShutDownMachine waits for the machine.
const STOPS_WITHIN: Duration = Duration::from_secs(2);
/// The pause between two looks at the machine.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// The driver of machines as system containers.
#[derive(Debug)]
pub struct ContainerDriver {
    config: Arc<Config>,
    /// The machines, once this process has the state folder.
    machines: Arc<Mutex<Option<Arc<Machines>>>>,
    locks: Locks,
    started: Instant,
}

/// The parsed request of a call about one machine.
struct MachineCall {
    key: MachineKey,
    spec: MachineSpec,
    /// The id that the caller knows.
    id: Option<HostedId>,
}

impl MachineCall {
    /// Checks name, provider id and spec of a call.
    fn read(machine: &MachineRef, provider_id: Option<&ProviderId>) -> Result<Self> {
        let id = provider_id.map(|id| HostedId::parse(SCHEME, id.as_str()));
        let spec = MachineSpec::read(&machine.class.provider_spec)?;
        Ok(Self {
            key: MachineKey::read(machine, &spec.tags)?,
            spec,
            id: id.transpose()?,
        })
    }

    /// Whether the id can belong to this machine: its UUID follows from the machine.
    fn is_possible(&self) -> bool {
        self.id.as_ref().is_none_or(|id| id.uuid == self.key.uuid())
    }

    /// Checks that the id can belong to this machine.
    fn possible(self) -> Result<Self> {
        if self.is_possible() {
            return Ok(self);
        }
        Err(self.key.not_found())
    }
}

impl ContainerDriver {
    /// A driver that has not opened its state folder yet.
    pub fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
            machines: Arc::default(),
            locks: Locks::default(),
            started: Instant::now(),
        }
    }

    /// Runs a job on a thread that may block. The job ends even if its call is dropped.
    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Machines) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (config, opened) = (Arc::clone(&self.config), Arc::clone(&self.machines));
        let ran = spawn_blocking(move || job(&*open(&config, &opened)?)).await;
        ran.unwrap_or_else(|error| {
            Err(Status::new(Code::Internal, "a job of the driver panicked").with_source(error))
        })
    }

    /// Runs a job on a machine while holding the machine's lock.
    async fn on<T: Send + 'static>(
        &self,
        asked: &MachineCall,
        job: impl FnOnce(&Machines, &MachineKey) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let held = self.locks.hold(&asked.key.lock_name()).await?;
        let key = asked.key.clone();
        self.run(move |machines| {
            let _held = held;
            job(machines, &key)
        })
        .await
    }

    /// Removes the bridge when no machine is left.
    pub fn close(&self) -> Result<()> {
        let opened = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map_or(Ok(()), |machines| machines.close())
    }
}

/// Returns the machines, once this process has the state folder.
fn open(config: &Config, opened: &Mutex<Option<Arc<Machines>>>) -> Result<Arc<Machines>> {
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(machines) = &*opened {
        return Ok(Arc::clone(machines));
    }
    let Some(machines) = Machines::open(config)? else {
        let what = format!(
            "another process has the state folder {}: a second driver, or a program of a killed driver",
            config.state_dir.display()
        );
        return Err(Status::new(Code::Unavailable, what));
    };
    Ok(Arc::clone(opened.insert(Arc::new(machines))))
}

/// Refuses bootstrap data that no machine of this driver can read.
fn user_data(machine: &MachineRef) -> Result<Option<SecretValue>> {
    let secrets = &machine.class.secrets;
    let format = secrets.get(USER_DATA_FORMAT).map(SecretValue::expose);
    if format == Some(IGNITION) {
        let what = "the secret's `userDataFormat` is ignition; containers read cloud-config";
        return Err(Status::new(Code::InvalidArgument, what));
    }
    Ok(secrets.get(USER_DATA).cloned())
}

#[async_trait]
impl Driver for ContainerDriver {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Ok(PluginInfo::new(NAME, env!("CARGO_PKG_VERSION")))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        Ok(Capabilities {
            operations: OFFERED.into_iter().collect(),
            zones: true,
            tag_path: JsonPointer::field(tags::FIELD),
            address_path: Some(JsonPointer::field(NETWORK_ADDRESSES)),
            hot_updatable: [tags::FIELD, SIZE].map(JsonPointer::field).to_vec(),
            provider_spec_schema: Some(spec::schema(&self.config)),
            list_has_state: true,
            ..Capabilities::minimal()
        }
        .into())
    }

    /// Programs of a driver that was killed may still have the state folder for a moment.
    async fn probe(&self) -> Result<Readiness> {
        match self.run(Machines::check).await {
            Ok(()) => Ok(Readiness::Ready),
            Err(status) if status.code() == Code::Unavailable && self.started.elapsed() < STARTS_WITHIN => {
                Ok(Readiness::NotReady)
            }
            Err(status) => Err(Status::new(Code::FailedPrecondition, status.message()).with_source(status)),
        }
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let asked = MachineCall::read(&request.machine, None)?;
        let user_data = user_data(&request.machine)?;
        // Even where the machine exists: a spec that no machine can have is an error first.
        asked.spec.within(&self.config)?;
        let spec = asked.spec.clone();
        self.on(&asked, move |machines, key| {
            machines.create(key, &spec, user_data.as_ref())
        })
        .await
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?;
        if asked.is_possible() {
            self.on(&asked, Machines::delete).await?;
        }
        Ok(DeleteMachineResponse::default())
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?.possible()?;
        if asked.id.is_none() {
            asked.spec.check_failure_domain(&self.config)?;
        }
        let key = asked.key.clone();
        let (machine, is_started) = self
            .run(move |machines| {
                let record = machines.find(&key)?;
                Ok((machines.describe(&record)?, record.started_at.is_some()))
            })
            .await?;
        if is_started {
            return Ok(machine);
        }
        let what = format!("machine {} was not started yet", machine.provider_id);
        Err(Status::new(Code::Uninitialized, what).with_machine(machine))
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let spec = MachineSpec::read(&request.class.provider_spec)?;
        let cluster = tags::cluster(&spec.tags)?.to_owned();
        self.run(move |machines| machines.list(&cluster)).await
    }

    /// Starts a machine whose creation was cut off before its start.
    async fn initialize_machine(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?.possible()?;
        self.on(&asked, Machines::initialize).await
    }

    /// Answers ABORTED as long as the machine runs: one that still boots does not notice the signal, and
    /// nothing reports that. Each repeat sends the signal once more.
    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let asked = MachineCall::read(&request.machine, request.provider_id.as_ref())?.possible()?;
        self.on(&asked, Machines::shut_down).await?;
        let deadline = Instant::now() + STOPS_WITHIN;
        while !self.on(&asked, Machines::is_off).await? {
            if Instant::now() >= deadline {
                let what = format!("machine `{}` was asked to stop, and runs", asked.key.name);
                return Err(Status::new(Code::Aborted, what));
            }
            sleep(BETWEEN_LOOKS).await;
        }
        Ok(ShutDownMachineResponse::default())
    }

    async fn update_machine(&self, request: UpdateMachineRequest) -> Result<()> {
        let asked = MachineCall::read(&request.machine, Some(&request.provider_id))?.possible()?;
        let spec = asked.spec.clone();
        self.on(&asked, move |machines, key| machines.update(key, &spec, &request))
            .await
    }

    async fn restart_machine(&self, request: RestartMachineRequest) -> Result<()> {
        let asked = MachineCall::read(&request.machine, Some(&request.provider_id))?.possible()?;
        self.on(&asked, Machines::restart).await
    }

    async fn get_console(&self, request: GetConsoleRequest) -> Result<Console> {
        let asked = MachineCall::read(&request.machine, Some(&request.provider_id))?.possible()?;
        self.on(&asked, Machines::console).await
    }

    async fn list_zones(&self, request: ListZonesRequest) -> Result<Vec<Zone>> {
        // A Cluster asks before it has a machine: a spec without a pool gets all hosts.
        let hosts: Vec<&str> = if request.class.provider_spec.0.contains_key("vmPool") {
            let spec = MachineSpec::read(&request.class.provider_spec)?;
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
        let spec = MachineSpec::read(&request.class.provider_spec)?;
        let size = spec.within(&self.config)?.size;
        Ok(ClassDescription {
            capacity: BTreeMap::from([
                ("cpu".to_owned(), size.cpus.to_string()),
                ("memory".to_owned(), format!("{}Mi", size.memory_mib)),
            ]),
            architecture: Some(architecture().to_owned()),
            operating_system: Some("linux".to_owned()),
        })
    }
}

/// Returns the computer's architecture with the name that Kubernetes has for it.
const fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::EXAMPLE;

    #[tokio::test]
    async fn a_second_driver_waits_for_the_state_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let text = EXAMPLE.replace("/var/lib/capcmi-container", &path.display().to_string());
        let _first = crate::state::StateFolder::new(&path).lock().unwrap().unwrap();
        let second = ContainerDriver::new(Config::parse(&text).unwrap());
        assert_eq!(second.probe().await.unwrap(), Readiness::NotReady);
        let refused = second.run(|_| Ok(())).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
    }

    #[test]
    fn ignition_is_refused_by_name() {
        let class = |format: &str| cmi_driver::MachineClass {
            secrets: [
                (USER_DATA.to_owned(), b"data".to_vec().into()),
                (USER_DATA_FORMAT.to_owned(), format.as_bytes().to_vec().into()),
            ]
            .into_iter()
            .collect(),
            ..Default::default()
        };
        let read = |format| user_data(&MachineRef::new("m", class(format)));
        assert_eq!(read("cloud-config").unwrap().unwrap().expose(), b"data");
        assert_eq!(read("ignition").unwrap_err().code(), Code::InvalidArgument);
    }
}
