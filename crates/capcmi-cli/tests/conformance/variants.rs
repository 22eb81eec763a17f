//! Drivers that use the contract's freedom in different ways: none of them may fail.

mod behind;
mod named;
mod running;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cmi_driver::{
    ClassDescription, Code, Console, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest,
    DeleteMachineResponse, DescribeClassRequest, Driver, GenerateMachineClassForMigrationRequest,
    GetConsoleRequest, GetMachineStatusRequest, GetVolumeIdsRequest, InitializeMachineRequest,
    ListMachinesRequest, ListZonesRequest, ListedMachine, Machine, MachineClass, MachineRef, PluginInfo,
    ProviderId, Readiness, RestartMachineRequest, Result, ShutDownMachineRequest, ShutDownMachineResponse,
    Status, UpdateMachineRequest, Zone, tags,
};
use cmi_simulated::{Cloud, CloudConsole};
use serde_json::{Map, Value};

use behind::Behind;
use named::Named;
use running::Running;

/// A driver that wraps another and behaves in a different, permitted way.
pub struct Variant {
    inner: Arc<dyn Driver>,
    way: Way,
}

/// A permitted behaviour.
enum Way {
    /// A call takes its time, and runs on when its caller has given it up.
    RunsOn(Running),
    /// A new VM is not found at first, not even by a delete, and a deleted VM is still visible for a while.
    Behind(Behind),
    /// Ids are made from cluster and name, so a new VM has the id of its predecessor.
    Named(Named),
    /// CreateMachine reports that a new VM waits for its initialization.
    Unfinished,
    /// CreateMachine adopts a locked VM, and GetMachineStatus reads it.
    ReadsLocked(CloudConsole),
    /// DeleteMachine refuses the same specs as CreateMachine, since it parses them with the same code.
    ChecksWhatItDeletes,
}

/// A machine: its cluster, its name, and the machine object that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    cluster: String,
    name: String,
    machine: String,
}

impl Key {
    fn of(class: &MachineClass, name: &str) -> Self {
        let tag = |tag: &str| {
            let value = class.provider_spec.0.get("tags").and_then(|tags| tags.get(tag));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        Self {
            cluster: tag(tags::CLUSTER),
            name: name.to_owned(),
            machine: tag(tags::MACHINE),
        }
    }
}

impl Variant {
    /// While a call runs, every other call on its machine is ABORTED.
    pub fn runs_on(inner: Arc<dyn Driver>) -> Self {
        let way = Way::RunsOn(Running::new(running::MOMENT, true));
        Self { inner, way }
    }

    /// Creates take this long, and do not block other calls.
    pub fn late(inner: Arc<dyn Driver>, creation: Duration) -> Self {
        let way = Way::RunsOn(Running::new(creation, false));
        Self { inner, way }
    }

    /// How many calls on machines run, if they run on.
    pub fn under_way(&self) -> usize {
        match &self.way {
            Way::RunsOn(running) => running.count(),
            Way::Behind(_)
            | Way::Named(_)
            | Way::Unfinished
            | Way::ReadsLocked(_)
            | Way::ChecksWhatItDeletes => 0,
        }
    }

    pub fn behind(inner: Arc<dyn Driver>, window: Duration) -> Self {
        let way = Way::Behind(Behind::new(window));
        Self { inner, way }
    }

    pub fn named(inner: Arc<dyn Driver>, console: CloudConsole) -> Self {
        let way = Way::Named(Named { console });
        Self { inner, way }
    }

    pub fn reads_locked(inner: Arc<dyn Driver>, console: CloudConsole) -> Self {
        let way = Way::ReadsLocked(console);
        Self { inner, way }
    }

    pub fn unfinished(inner: Arc<dyn Driver>) -> Self {
        let way = Way::Unfinished;
        Self { inner, way }
    }

    pub fn checks_what_it_deletes(inner: Arc<dyn Driver>) -> Self {
        let way = Way::ChecksWhatItDeletes;
        Self { inner, way }
    }

    /// Returns the id that the wrapped driver knows.
    fn real(&self, id: Option<ProviderId>) -> Option<ProviderId> {
        match (&self.way, id) {
            (Way::Named(named), Some(id)) => Some(named.real(id)),
            (_, id) => id,
        }
    }
}

/// Returns the readable part of a locked VM.
fn read_locked(console: &CloudConsole, key: &Key, answer: Result<Machine>) -> Result<Machine> {
    match answer {
        Err(status) if status.code() == Code::FailedPrecondition => {
            let locked = |cloud: &Cloud, now| {
                let mut found = cloud.named(&key.cluster, &key.name);
                found.next().map(|vm| vm.describe(now).unwrap())
            };
            console.look(locked).unwrap().ok_or(status)
        }
        answer => answer,
    }
}

fn look(class: &MachineClass, name: &str) -> GetMachineStatusRequest {
    GetMachineStatusRequest {
        machine: MachineRef::new(name, class.clone()),
        provider_id: None,
    }
}

#[async_trait]
impl Driver for Variant {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        self.inner.get_plugin_info().await
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        let declared = self.inner.get_plugin_capabilities().await?;
        let mut capabilities = Arc::unwrap_or_clone(declared.capabilities);
        match &self.way {
            Way::Behind(behind) => capabilities.consistency_window = behind.window,
            Way::RunsOn(_)
            | Way::Named(_)
            | Way::Unfinished
            | Way::ReadsLocked(_)
            | Way::ChecksWhatItDeletes => {}
        }
        Ok(capabilities.into())
    }

    async fn probe(&self) -> Result<Readiness> {
        self.inner.probe().await
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let key = Key::of(&request.machine.class, &request.machine.name);
        let look = look(&request.machine.class, &request.machine.name);
        let inner = Arc::clone(&self.inner);
        let call = async move { inner.create_machine(request).await };
        match &self.way {
            Way::Unfinished => {
                let made = call.await?;
                match self.inner.get_machine_status(look).await {
                    Err(status) if status.code() == Code::Uninitialized => Err(status),
                    _ => Ok(made),
                }
            }
            Way::ReadsLocked(console) => read_locked(console, &key, call.await),
            Way::ChecksWhatItDeletes => call.await,
            Way::RunsOn(running) => running.create(key, call).await,
            Way::Behind(behind) => behind.create(key, call).await,
            Way::Named(named) => named.answer(&key, call.await),
        }
    }

    async fn delete_machine(&self, mut request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        request.provider_id = self.real(request.provider_id);
        let key = Key::of(&request.machine.class, &request.machine.name);
        let look = look(&request.machine.class, &request.machine.name);
        let root = request.machine.class.provider_spec.0.get("rootFsSize").cloned();
        let inner = Arc::clone(&self.inner);
        let call = async move { inner.delete_machine(request).await };
        match &self.way {
            Way::RunsOn(running) => running.run(key, call).await,
            Way::Behind(behind) => {
                behind
                    .delete(key, self.inner.get_machine_status(look), call)
                    .await
            }
            Way::ChecksWhatItDeletes
                if root
                    .and_then(|size| size.as_i64())
                    .is_some_and(|size| !(1..=1000).contains(&size)) =>
            {
                Err(Status::new(Code::OutOfRange, "the rootFsSize is from 1 to 1000"))
            }
            Way::Named(_) | Way::Unfinished | Way::ReadsLocked(_) | Way::ChecksWhatItDeletes => call.await,
        }
    }

    async fn get_machine_status(&self, mut request: GetMachineStatusRequest) -> Result<Machine> {
        request.provider_id = self.real(request.provider_id);
        let key = Key::of(&request.machine.class, &request.machine.name);
        let id = request.provider_id.clone();
        let inner = Arc::clone(&self.inner);
        let call = async move { inner.get_machine_status(request).await };
        match &self.way {
            Way::RunsOn(running) => running.run(key, call).await,
            Way::Behind(behind) => behind.status(&key, id.as_ref(), call).await,
            Way::ReadsLocked(console) => read_locked(console, &key, call.await),
            Way::Unfinished | Way::ChecksWhatItDeletes => call.await,
            Way::Named(named) => named.answer(&key, call.await),
        }
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let key = Key::of(&request.class, "");
        let listed = self.inner.list_machines(request).await?;
        Ok(match &self.way {
            Way::RunsOn(_) | Way::Unfinished | Way::ReadsLocked(_) | Way::ChecksWhatItDeletes => listed,
            Way::Behind(behind) => behind.list(&key.cluster, listed),
            Way::Named(named) => named.list(listed),
        })
    }

    async fn initialize_machine(&self, mut request: InitializeMachineRequest) -> Result<Machine> {
        request.provider_id = self.real(request.provider_id);
        let key = Key::of(&request.machine.class, &request.machine.name);
        let inner = Arc::clone(&self.inner);
        let call = async move { inner.initialize_machine(request).await };
        match &self.way {
            Way::RunsOn(running) => running.run(key, call).await,
            Way::Behind(_) | Way::Unfinished | Way::ReadsLocked(_) | Way::ChecksWhatItDeletes => call.await,
            Way::Named(named) => named.answer(&key, call.await),
        }
    }

    async fn shut_down_machine(
        &self,
        mut request: ShutDownMachineRequest,
    ) -> Result<ShutDownMachineResponse> {
        request.provider_id = self.real(request.provider_id);
        let key = Key::of(&request.machine.class, &request.machine.name);
        let inner = Arc::clone(&self.inner);
        let call = async move { inner.shut_down_machine(request).await };
        match &self.way {
            Way::RunsOn(running) => running.run(key, call).await,
            Way::Behind(_)
            | Way::Named(_)
            | Way::Unfinished
            | Way::ReadsLocked(_)
            | Way::ChecksWhatItDeletes => call.await,
        }
    }

    async fn update_machine(&self, mut request: UpdateMachineRequest) -> Result<()> {
        if let Way::Named(named) = &self.way {
            request.provider_id = named.real(request.provider_id);
        }
        self.inner.update_machine(request).await
    }

    async fn restart_machine(&self, mut request: RestartMachineRequest) -> Result<()> {
        if let Way::Named(named) = &self.way {
            request.provider_id = named.real(request.provider_id);
        }
        self.inner.restart_machine(request).await
    }

    async fn get_console(&self, mut request: GetConsoleRequest) -> Result<Console> {
        if let Way::Named(named) = &self.way {
            request.provider_id = named.real(request.provider_id);
        }
        self.inner.get_console(request).await
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        self.inner.get_volume_ids(request).await
    }

    async fn generate_machine_class_for_migration(
        &self,
        request: GenerateMachineClassForMigrationRequest,
    ) -> Result<Map<String, Value>> {
        self.inner.generate_machine_class_for_migration(request).await
    }

    async fn list_zones(&self, request: ListZonesRequest) -> Result<Vec<Zone>> {
        self.inner.list_zones(request).await
    }

    async fn describe_class(&self, request: DescribeClassRequest) -> Result<ClassDescription> {
        self.inner.describe_class(request).await
    }
}
