//! A driver with one flaw, on the cloud of the simulated driver.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use capcmi::driver::{
    Address, AddressType, Capabilities, Code, CreateMachineRequest, DeleteMachineRequest,
    DeleteMachineResponse, Driver, GenerateMachineClassRequest, GetMachineStatusRequest, GetVolumeIdsRequest,
    InitializeMachineRequest, LastKnownState, ListMachinesRequest, ListedMachine, Machine, MachineClass,
    Operation, PluginInfo, ProviderId, Readiness, Result, ShutDownMachineRequest, ShutDownMachineResponse,
    Status, USER_DATA, UpdateMachineRequest, tags,
};
use capcmi::drivers::simulated::{CloudConsole, PlantedVm, SimulatedDriver, Vm};
use serde_json::{Map, Value, json};

use crate::flaw::Flaw;

/// What a flawed call gives its caller time for.
const MOMENT: Duration = Duration::from_millis(2);

/// A driver with one flaw.
pub struct Mutant {
    inner: Arc<SimulatedDriver>,
    console: CloudConsole,
    flaw: Flaw,
    turns: AtomicU32,
    running: AtomicU32,
    memory: Mutex<BTreeMap<String, ProviderId>>,
}

impl Mutant {
    pub fn new(inner: Arc<SimulatedDriver>, flaw: Flaw) -> Self {
        Self {
            console: inner.console(),
            inner,
            flaw,
            turns: AtomicU32::new(0),
            running: AtomicU32::new(0),
            memory: Mutex::default(),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// 0, 1, 2, …
    fn turn(&self) -> u32 {
        self.turns.fetch_add(1, Ordering::SeqCst)
    }

    fn vms(&self, fits: impl Fn(&Vm) -> bool) -> Vec<Vm> {
        self.console.vms().unwrap().into_iter().filter(fits).collect()
    }

    fn plant(&self, class: &MachineClass, name: &str) -> ProviderId {
        let planted = PlantedVm::new(&tag(class, tags::CLUSTER), name, &tag(class, tags::MACHINE));
        self.console.plant(planted).unwrap().parse().unwrap()
    }

    fn vanish(&self, fits: impl Fn(&Vm) -> bool) {
        for vm in self.vms(fits) {
            self.console.vanish(vm.id).unwrap();
        }
    }

    /// The flaws that every call may have.
    async fn call<T>(
        &self,
        operation: Operation,
        class: &MachineClass,
        name: &str,
        call: impl Future<Output = Result<T>>,
        pretended: impl FnOnce() -> T,
    ) -> Result<T> {
        let at_once = self.running.fetch_add(1, Ordering::SeqCst) > 0;
        let _running = Running(&self.running);
        match self.flaw {
            Flaw::Boasts(of) if of == operation => return Err(Status::unimplemented(operation)),
            Flaw::Hides(of) if of == operation => {}
            Flaw::Wavers(of) if of == operation && self.turn() % 2 == 1 => {
                return Err(Status::unimplemented(operation));
            }
            Flaw::Hangs(of) if of == operation => std::future::pending().await,
            Flaw::LeavesHalf(of) if of == operation => {
                let half = self.plant(class, &format!("{name}-half"));
                tokio::time::sleep(MOMENT).await;
                let result = call.await;
                self.vanish(|vm| vm.provider_id() == half.as_str());
                return result;
            }
            Flaw::FailsAtOnce(of) if of == operation => {
                tokio::time::sleep(MOMENT).await;
                if at_once {
                    return Err(broken("somebody else is here"));
                }
            }
            Flaw::OnlyOnce(of) if of == operation => {
                let mut memory = self.memory.lock().unwrap();
                let key = format!("{}/{name}", tag(class, tags::CLUSTER));
                if memory.insert(key, "once".parse().unwrap()).is_some() {
                    return Err(broken("that was done before"));
                }
            }
            _ => {}
        }
        let status = match call.await {
            Ok(response) => return Ok(response),
            Err(status) => status,
        };
        let code = status.code();
        Err(match self.flaw {
            Flaw::Says(of, wrong, said) if of == operation && code == wrong => {
                Status::new(said, status.message())
            }
            Flaw::Pretends(of, wrong) if of == operation && code == wrong => return Ok(pretended()),
            Flaw::Mute(of) if of == operation => status.with_message(""),
            Flaw::Parrots(of) if of == operation => status.with_message(code.name()),
            Flaw::SecretInMessage => {
                let said = format!("{}: {}", status.message(), text(class, "token"));
                status.with_message(said)
            }
            Flaw::SecretEncoded => {
                let said = format!(
                    "{}: {}",
                    status.message(),
                    BASE64_STANDARD.encode(text(class, USER_DATA))
                );
                status.with_message(said)
            }
            _ => status,
        })
    }

    async fn create(&self, mut request: CreateMachineRequest) -> Result<Machine> {
        let CreateMachineRequest {
            machine_name: name,
            class,
            ..
        } = request.clone();
        let ours = |vm: &Vm| vm.name == name && vm.cluster() == tag(&class, tags::CLUSTER);
        match self.flaw {
            Flaw::CreateForgets if !self.vms(ours).is_empty() => {
                return Ok(Machine::new(self.plant(&class, &name), name));
            }
            Flaw::CreateRaces if self.vms(ours).is_empty() => {
                tokio::time::sleep(MOMENT).await;
                return Ok(Machine::new(self.plant(&class, &name), name));
            }
            Flaw::CreateAdoptsAnything => {
                if let Some(vm) = self.vms(ours).first() {
                    return Ok(machine(vm));
                }
            }
            Flaw::CreateDropsUserData => {
                let kept = class.secrets.iter().filter(|(key, _)| *key != USER_DATA);
                request.class.secrets = kept.map(|(key, value)| (key.to_owned(), value.clone())).collect();
            }
            Flaw::CreateMakesUpFields => {
                for (field, value) in [("vmPool", "default"), ("size", "small")] {
                    let spec = &mut request.class.provider_spec.0;
                    spec.entry(field).or_insert_with(|| value.into());
                }
            }
            Flaw::CreateWantsMore if !class.provider_spec.0.contains_key("sourceDestCheck") => {
                return Err(Status::new(Code::InvalidArgument, "sourceDestCheck is missing"));
            }
            Flaw::CreateClusterBlind => {
                let tags = request.class.provider_spec.0.get_mut("tags").unwrap();
                tags[tags::CLUSTER] = "one-for-all".into();
            }
            Flaw::CreateShortNames if name.len() > 63 => {
                return Err(Status::new(Code::InvalidArgument, "the name is too long for me"));
            }
            Flaw::CreateChokesOnState if request.last_known_state.is_some() => {
                return Err(broken("the state is none of mine"));
            }
            _ => {}
        }
        let mut made = match self.inner.create_machine(request).await {
            Ok(made) => made,
            Err(status) => {
                let half_made = match self.flaw {
                    Flaw::CreateMakesThenChecks => status.code() == Code::InvalidArgument,
                    Flaw::CreateMakesBeyondQuota => status.code() == Code::ResourceExhausted,
                    _ => false,
                };
                if half_made {
                    self.plant(&class, &name);
                }
                return Err(if self.has(Flaw::CreateVagueMessage) {
                    status.with_message("something is not as it has to be")
                } else {
                    status
                });
            }
        };
        match self.flaw {
            Flaw::CreateNewId => {
                made.provider_id = format!("{}-{}", made.provider_id, self.turn()).parse().unwrap();
            }
            Flaw::CreateOneId => made.provider_id = "simulated://zone-a/always-me".parse().unwrap(),
            Flaw::CreateReusesId => {
                let mut memory = self.memory.lock().unwrap();
                let key = format!("{}/{name}", tag(&class, tags::CLUSTER));
                made.provider_id = memory.entry(key).or_insert(made.provider_id).clone();
            }
            Flaw::CreateNoNodeName => made.node_name.clear(),
            Flaw::CreateBadNodeName => made.node_name = format!("Node_{}", made.node_name),
            Flaw::CreateNewNodeName => made.node_name = format!("{}-{}", made.node_name, self.turn()),
            Flaw::SecretInState => {
                made.last_known_state = LastKnownState::new(text(&class, "token").into_bytes());
            }
            Flaw::SecretInAddress => made.addresses.push(Address {
                kind: AddressType::Hostname,
                address: text(&class, "token"),
            }),
            _ => {}
        }
        Ok(made)
    }

    async fn delete(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        let cluster = tag(&class, tags::CLUSTER);
        let known = request.provider_id.as_ref().map(|id| id.as_str().to_owned());
        let ours = |vm: &Vm| vm.name == name && vm.cluster() == cluster;
        match self.flaw {
            Flaw::DeleteTooEarly => {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move { inner.delete_machine(request).await });
                return Ok(DeleteMachineResponse::default());
            }
            Flaw::DeleteDoesNothing => return Ok(DeleteMachineResponse::default()),
            Flaw::DeleteNotFound if self.vms(ours).is_empty() => {
                return Err(Status::new(Code::NotFound, "there is no such VM here"));
            }
            Flaw::DeleteAnyCluster => self.vanish(|vm| vm.name == name),
            Flaw::DeleteAnyId => self.vanish(|vm| Some(vm.provider_id()) == known),
            Flaw::DeleteAnyIdentity => self.vanish(ours),
            Flaw::DeleteAll => self.vanish(|vm| vm.cluster() == cluster),
            Flaw::DeleteAnother => {
                if let Some(other) = self.vms(|vm| vm.cluster() == cluster && vm.name != name).first() {
                    self.console.vanish(other.id).unwrap();
                }
            }
            Flaw::DeleteWantsId if known.is_none() => {
                return Err(Status::new(Code::InvalidArgument, "the provider id is missing"));
            }
            Flaw::DeleteRefusesId if known.is_some() => {
                return Err(Status::new(Code::InvalidArgument, "a provider id is not wanted"));
            }
            Flaw::DeleteWantsInitialized if self.vms(ours).iter().any(|vm| vm.source_dest_check) => {
                return Err(Status::new(Code::FailedPrecondition, "it is not initialized"));
            }
            _ => {}
        }
        let deleted = self.inner.delete_machine(request).await;
        if self.has(Flaw::ListKeepsDeleted) {
            let id = "simulated://zone-a/the-late".parse().unwrap();
            self.memory.lock().unwrap().insert(cluster, id);
        }
        deleted
    }

    async fn status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        let cluster = tag(&class, tags::CLUSTER);
        let known = request.provider_id.as_ref().map(|id| id.as_str().to_owned());
        let found = match self.flaw {
            Flaw::StatusAnyCluster => self.vms(|vm| vm.name == name),
            Flaw::StatusAnyId => self.vms(|vm| Some(vm.provider_id()) == known),
            Flaw::StatusAnyIdentity => self.vms(|vm| vm.name == name && vm.cluster() == cluster),
            Flaw::StatusFindsAnother => self.vms(|vm| vm.cluster() == cluster),
            _ => Vec::new(),
        };
        if let Some(vm) = found.first() {
            return Ok(machine(vm));
        }
        if self.has(Flaw::StatusForgets) && self.turn() % 3 == 2 {
            return Err(Status::new(Code::NotFound, "there was one, I think"));
        }
        if self.has(Flaw::StatusWrites) {
            self.console.set_quota(None)?;
        }
        let mut read = match self.inner.get_machine_status(request).await {
            Ok(read) => read,
            Err(status) => {
                return match (self.flaw, status.code(), status.machine()) {
                    (Flaw::StatusNamesNone, Code::OutOfRange, _) => {
                        Err(status.with_message("there are several VMs of it"))
                    }
                    (Flaw::StatusForgetsMachine, Code::Uninitialized, _) => {
                        Err(Status::new(Code::Uninitialized, status.message()))
                    }
                    (Flaw::StatusOverlooksInitialization, Code::Uninitialized, Some(machine)) => {
                        Ok(machine.clone())
                    }
                    _ => Err(status),
                };
            }
        };
        match self.flaw {
            Flaw::StatusOtherId => read.provider_id = format!("{}-b", read.provider_id).parse().unwrap(),
            Flaw::StatusOtherNodeName => read.node_name += "-b",
            _ => {}
        }
        Ok(read)
    }

    async fn list(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let cluster = tag(&request.class, tags::CLUSTER);
        match self.flaw {
            Flaw::ListLeaks => return Ok(self.vms(|_| true).iter().map(listed).collect()),
            Flaw::ListEverything if cluster.is_empty() => {
                return Ok(self.vms(|_| true).iter().map(listed).collect());
            }
            _ => {}
        }
        let mut list = self.inner.list_machines(request).await?;
        match self.flaw {
            Flaw::ListOnePage => list.truncate(5),
            Flaw::ListKeepsDeleted => {
                let late = self.memory.lock().unwrap().get(&cluster).cloned();
                list.extend(late.map(|provider_id| ListedMachine {
                    provider_id,
                    machine_name: "late".to_owned(),
                }));
            }
            Flaw::ListSwapsNames if list.len() > 1 => {
                let name = std::mem::take(&mut list[0].machine_name);
                list[0].machine_name = std::mem::replace(&mut list[1].machine_name, name);
            }
            Flaw::ListNoNames => list.iter_mut().for_each(|vm| vm.machine_name.clear()),
            Flaw::ListEmptyNotFound if list.is_empty() => {
                return Err(Status::new(Code::NotFound, "there is no VM at all"));
            }
            _ => {}
        }
        Ok(list)
    }

    async fn shut_down(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let name = request.machine_name.clone();
        match self.flaw {
            Flaw::ShutDownDoesNothing => return Ok(ShutDownMachineResponse::default()),
            Flaw::ShutDownDeletes => {
                self.vanish(|vm| vm.name == name);
                return Ok(ShutDownMachineResponse::default());
            }
            Flaw::ShutDownAnyCluster => {
                for vm in self.vms(|vm| vm.name == name) {
                    let mut class = request.class.clone();
                    let tags = class.provider_spec.0.get_mut("tags").unwrap();
                    tags[tags::CLUSTER] = vm.cluster().into();
                    tags[tags::MACHINE] = vm.machine().into();
                    let everywhere = ShutDownMachineRequest {
                        class,
                        ..request.clone()
                    };
                    let _stopping = self.inner.shut_down_machine(everywhere).await;
                }
            }
            _ => {}
        }
        self.inner.shut_down_machine(request).await
    }

    async fn initialize(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        match self.flaw {
            Flaw::InitializeWrites => self.console.set_quota(None)?,
            Flaw::InitializeMakes => {
                let ours = |vm: &Vm| vm.name == name && vm.cluster() == tag(&class, tags::CLUSTER);
                if self.vms(ours).is_empty() {
                    return Ok(Machine::new(self.plant(&class, &name), name));
                }
            }
            _ => {}
        }
        let mut machine = self.inner.initialize_machine(request).await?;
        if self.has(Flaw::InitializeOtherId) {
            machine.provider_id = format!("{}-b", machine.provider_id).parse().unwrap();
        }
        Ok(machine)
    }

    fn volumes(&self, request: &GetVolumeIdsRequest, mut ids: Vec<String>) -> Result<Vec<String>> {
        let foreign: Vec<_> = request
            .pv_specs
            .iter()
            .filter_map(|spec| spec.pointer("/csi/volumeHandle")?.as_str())
            .filter(|handle| !ids.iter().any(|id| id == handle))
            .collect();
        match self.flaw {
            Flaw::VolumesForgetOne => drop(ids.pop()),
            Flaw::VolumesSorted => ids.sort(),
            Flaw::VolumesMakeUp => ids.extend(foreign.into_iter().map(str::to_owned)),
            Flaw::VolumesRefuseForeign if !foreign.is_empty() => {
                return Err(Status::new(Code::InvalidArgument, "that is no volume of mine"));
            }
            Flaw::VolumesOnce if self.turn() > 0 => ids.clear(),
            _ => {}
        }
        Ok(ids)
    }
}

/// Counts a call that runs, also when it is given up.
struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn broken(message: &str) -> Status {
    Status::new(Code::Internal, message)
}

fn tag(class: &MachineClass, name: &str) -> String {
    let tags = class.provider_spec.0.get("tags");
    let value = tags.and_then(|tags| tags.get(name)).and_then(Value::as_str);
    value.unwrap_or_default().to_owned()
}

fn text(class: &MachineClass, key: &str) -> String {
    let value = class.secrets.get(key).map(|value| value.expose().to_vec());
    String::from_utf8(value.unwrap_or_default()).unwrap()
}

fn machine(vm: &Vm) -> Machine {
    Machine::new(vm.provider_id().parse().unwrap(), &vm.name)
}

fn listed(vm: &Vm) -> ListedMachine {
    ListedMachine {
        provider_id: vm.provider_id().parse().unwrap(),
        machine_name: vm.name.clone(),
    }
}

fn made_up(name: &str) -> Machine {
    Machine::new("simulated://zone-a/made-up".parse().unwrap(), name)
}

#[async_trait]
impl Driver for Mutant {
    async fn info(&self) -> Result<PluginInfo> {
        let mut info = self.inner.info().await?;
        match self.flaw {
            Flaw::InfoBadName => info.name = "_simulated_".to_owned(),
            Flaw::InfoLongName => info.name = "a".repeat(64),
            Flaw::InfoNoVersion => info.version.clear(),
            Flaw::InfoNoHost => info.name = "simulated".to_owned(),
            Flaw::InfoHugeManifest => drop(info.manifest.insert("a".to_owned(), "b".repeat(5000))),
            _ => {}
        }
        Ok(info)
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let mut capabilities = self.inner.capabilities().await?;
        match self.flaw {
            Flaw::Hides(operation) => drop(capabilities.operations.remove(&operation)),
            Flaw::CapabilitiesChange => capabilities.zones = self.turn() % 2 == 0,
            _ => {}
        }
        Ok(capabilities)
    }

    async fn probe(&self) -> Result<Readiness> {
        let probed = self.inner.probe().await;
        let class = MachineClass::default();
        match (self.flaw, &probed) {
            (Flaw::ProbeNeverReady, Ok(_)) => Ok(Readiness::NotYet),
            (Flaw::ProbeAlwaysReady, _) => Ok(Readiness::Ready),
            (Flaw::ProbeFailsWhileStarting, Ok(Readiness::NotYet)) => Err(broken("I am not there yet")),
            _ => {
                self.call(Operation::Probe, &class, "", async { probed }, || {
                    Readiness::Ready
                })
                .await
            }
        }
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        let call = self.create(request);
        self.call(Operation::CreateMachine, &class, &name, call, || made_up(&name))
            .await
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        let call = self.delete(request);
        self.call(
            Operation::DeleteMachine,
            &class,
            &name,
            call,
            DeleteMachineResponse::default,
        )
        .await
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        let call = self.status(request);
        self.call(Operation::GetMachineStatus, &class, &name, call, || {
            made_up(&name)
        })
        .await
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let class = request.class.clone();
        let call = self.list(request);
        self.call(Operation::ListMachines, &class, "list", call, Vec::new)
            .await
    }

    async fn initialize_machine(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        let call = self.initialize(request);
        self.call(Operation::InitializeMachine, &class, &name, call, || {
            made_up(&name)
        })
        .await
    }

    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        let call = self.shut_down(request);
        self.call(
            Operation::ShutDownMachine,
            &class,
            &name,
            call,
            ShutDownMachineResponse::default,
        )
        .await
    }

    async fn update_machine(&self, request: UpdateMachineRequest) -> Result<()> {
        let (name, class) = (request.machine_name.clone(), request.class.clone());
        if self.has(Flaw::UpdateReplaces) {
            self.vanish(|vm| vm.name == name);
            self.plant(&class, &name);
            return Ok(());
        }
        let call = self.inner.update_machine(request);
        self.call(Operation::UpdateMachine, &class, &name, call, || ())
            .await
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        let class = MachineClass::default();
        let call = async {
            let ids = self.inner.get_volume_ids(request.clone()).await?;
            self.volumes(&request, ids)
        };
        self.call(Operation::GetVolumeIds, &class, "volumes", call, Vec::new)
            .await
    }

    async fn generate_machine_class(
        &self,
        request: GenerateMachineClassRequest,
    ) -> Result<Map<String, Value>> {
        let operation = Operation::GenerateMachineClassForMigration;
        let class = MachineClass::default();
        let found = request.machine_class.contains_key("provider");
        let call = async {
            let mut filled = self.inner.generate_machine_class(request).await?;
            match self.flaw {
                Flaw::MigrateRenames => drop(filled.insert("metadata".to_owned(), json!({"name": "new"}))),
                Flaw::MigrateAdds if found => drop(filled.insert("again".to_owned(), json!(true))),
                _ => {}
            }
            Ok(filled)
        };
        self.call(operation, &class, "class", call, Map::new).await
    }
}
