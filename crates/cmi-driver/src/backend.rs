//! A driver for a platform that stores tags with its VMs.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use super::{
    Capabilities, Code, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest,
    DeleteMachineResponse, Driver, GetMachineStatusRequest, HeldLock, JsonPointer, ListMachinesRequest,
    ListedMachine, Locks, Machine, MachineClass, MachineKey, MachineRef, Operation, PluginInfo, PowerState,
    ProviderId, ProviderSpec, Readiness, Result, Secrets, ShutDownMachineRequest, ShutDownMachineResponse,
    Status, catch_panic, tags,
};

/// Namespace of the digests of provider specs. It must never change, since VMs have tags from it.
const SPECS: Uuid = Uuid::from_u128(0x5b0e_62f4_9a37_4c11_8d1f_c2a6_03be_7d95);

/// A VM platform. [`BackendDriver`] makes a [`Driver`] of it, which looks for a VM before it creates one and
/// adopts the VM of an earlier call. It leaves the VMs of others alone, and makes one change of a machine at
/// a time.
///
/// Calls arrive in parallel. A change goes on when its caller leaves, so limit the time of each request to
/// the platform. Errors reach the caller with their codes, but NOT_FOUND becomes UNKNOWN.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The user's fields of the provider spec. The type refuses unknown fields with serde's attribute
    /// `deny_unknown_fields`. The tags are in [`DecodedClass::tags`].
    type Spec: DeserializeOwned + Send + Sync + 'static;

    /// The behaviour of the platform, such as [`Capabilities::consistency_window`]. The driver adds its
    /// calls. A back end with [`Backend::stop`] adds [`Operation::ShutDownMachine`].
    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal()
    }

    /// As [`Driver::probe`].
    async fn probe(&self) -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    /// Checks the values of a spec before a create, without a request to the platform.
    ///
    /// # Errors
    /// Those of [`fields`](crate::fields).
    fn check(&self, _spec: &Self::Spec) -> Result<()> {
        Ok(())
    }

    /// Returns all VMs of a cluster.
    async fn list(&self, cluster: &str, class: &DecodedClass<Self::Spec>) -> Result<Vec<Vm>>;

    /// Returns all VMs with the cluster and the name of a machine, whoever owns them. The result may have
    /// other VMs, too. It is empty only when the platform confirmed that no VM exists: the caller then
    /// creates one.
    async fn find(&self, key: &MachineKey, class: &DecodedClass<Self::Spec>) -> Result<Vec<Vm>> {
        self.list(&key.cluster, class).await
    }

    /// Makes a VM, and stores the machine's name and [`DecodedClass::tags`] with it in the same request.
    /// [`Backend::find`] has returned no VM with this name.
    async fn create(&self, key: &MachineKey, class: &DecodedClass<Self::Spec>) -> Result<Vm>;

    /// Deletes a VM with its disks and addresses. OK when it is gone already. May return while the platform
    /// is still busy: the driver looks for the VM again, and answers OK only when it is gone.
    async fn delete(&self, vm: &Vm, class: &DecodedClass<Self::Spec>) -> Result<()>;

    /// Asks the guest to stop, and does not wait for it.
    async fn stop(&self, _vm: &Vm, _class: &DecodedClass<Self::Spec>) -> Result<()> {
        Err(Status::unimplemented(Operation::ShutDownMachine))
    }
}

/// The decoded class of a request.
#[derive(Clone, Debug)]
pub struct DecodedClass<Spec> {
    /// The user's fields.
    pub spec: Spec,
    /// The tags that a new VM gets: the owner's, the user's, and [`tags::SPEC`].
    pub tags: BTreeMap<String, String>,
    /// Credentials, and for a create the bootstrap data.
    pub secrets: Secrets,
}

/// A VM as the platform has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// The name of the machine that it was created for.
    pub name: String,
    /// The tags that the platform has stored with it.
    pub tags: BTreeMap<String, String>,
    /// Its id and its state.
    pub machine: Machine,
}

impl Vm {
    /// Creates a VM whose Node has the name of its machine.
    ///
    /// # Errors
    /// INTERNAL for an empty or too long id.
    pub fn new(id: &str, name: impl Into<String>, tags: BTreeMap<String, String>) -> Result<Self> {
        let invalid = |error| Status::new(Code::Internal, "a VM has an invalid id").with_source(error);
        let id: ProviderId = id.parse().map_err(invalid)?;
        let name = name.into();
        Ok(Self {
            machine: Machine::new(id, name.clone()),
            name,
            tags,
        })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        self.machine.provider_id.as_str()
    }

    fn listed(self) -> ListedMachine {
        let mut listed = ListedMachine::new(self.machine.provider_id, self.name);
        listed.cluster_id = self.tags.get(tags::CLUSTER).cloned();
        listed.machine_id = self.tags.get(tags::MACHINE).cloned();
        listed.addresses = self.machine.addresses;
        listed.power_state = self.machine.power_state;
        listed
    }
}

impl<Spec: DeserializeOwned> DecodedClass<Spec> {
    fn read(class: &MachineClass) -> Result<Self> {
        #[derive(Deserialize)]
        struct Tagged {
            #[serde(default)]
            tags: BTreeMap<String, String>,
        }
        let mut fields = class.provider_spec.clone();
        let tagged = fields.0.remove_entry(tags::FIELD).into_iter().collect();
        let Tagged { mut tags } = ProviderSpec(tagged).decode()?;
        let spec = fields.decode()?;
        tags.insert(tags::SPEC.to_owned(), digest(fields));
        Ok(Self {
            spec,
            tags,
            secrets: class.secrets.clone(),
        })
    }
}

/// A short text that differs for different specs.
fn digest(fields: ProviderSpec) -> String {
    let mut fields = Value::Object(fields.0);
    fields.sort_all_objects();
    let digest = Uuid::new_v5(&SPECS, fields.to_string().as_bytes());
    digest.simple().to_string()
}

/// NOT_FOUND says that the machine has no VM. Only this driver decides that: the platform may mean an image,
/// or a wrong address (DRV-30).
fn of_platform(error: Status) -> Status {
    if error.code() != Code::NotFound {
        return error;
    }
    let message = error.message().to_owned();
    Status::new(Code::Unknown, message).with_source(error)
}

/// The driver of a [`Backend`].
#[derive(Debug)]
pub struct BackendDriver<B> {
    info: PluginInfo,
    calls: Arc<Calls<B>>,
}

/// The part of the driver that a change keeps when its call is dropped.
#[derive(Debug)]
struct Calls<B> {
    backend: B,
    locks: Locks,
}

/// A checked request about one machine.
struct Asked<Spec> {
    key: MachineKey,
    id: Option<ProviderId>,
    class: DecodedClass<Spec>,
}

impl<Spec: DeserializeOwned> Asked<Spec> {
    fn read(machine: &MachineRef, id: Option<ProviderId>) -> Result<Self> {
        let class = DecodedClass::read(&machine.class)?;
        let key = MachineKey::read(machine, &class.tags)?;
        Ok(Self { key, id, class })
    }

    fn owns(&self, vm: &Vm) -> bool {
        self.key.owns(&vm.tags, vm.id(), self.id.as_ref())
    }

    fn several(&self, found: &[Vm]) -> Status {
        self.key.several(found.iter().map(Vm::id))
    }
}

impl<B: Backend> Calls<B> {
    async fn hold(&self, asked: &Asked<B::Spec>) -> Result<HeldLock> {
        self.locks.hold(&asked.key.lock_name()).await
    }

    /// Returns the VMs with the cluster and the name of the machine, whoever owns them.
    async fn namesakes(&self, asked: &Asked<B::Spec>) -> Result<Vec<Vm>> {
        let key = &asked.key;
        let found = self.backend.find(key, &asked.class).await;
        let mut found = found.map_err(of_platform)?;
        found.retain(|vm| vm.name == key.name && vm.tags.get(tags::CLUSTER) == Some(&key.cluster));
        Ok(found)
    }

    /// Returns the VMs that the request means.
    async fn owned(&self, asked: &Asked<B::Spec>) -> Result<Vec<Vm>> {
        let mut found = self.namesakes(asked).await?;
        found.retain(|vm| asked.owns(vm));
        Ok(found)
    }

    async fn one(&self, asked: &Asked<B::Spec>) -> Result<Vm> {
        let mut found = self.owned(asked).await?;
        if found.len() > 1 {
            return Err(asked.several(&found));
        }
        found.pop().ok_or_else(|| asked.key.not_found())
    }

    async fn create(&self, asked: &Asked<B::Spec>) -> Result<Machine> {
        let nothing_begun = Status::with_no_side_effects;
        let _held = self.hold(asked).await.map_err(nothing_begun)?;
        if let Some(vm) = self.adopted(asked).await.map_err(nothing_begun)? {
            return Ok(vm.machine);
        }
        let made = self.backend.create(&asked.key, &asked.class).await;
        Ok(made.map_err(of_platform)?.machine)
    }

    /// Returns the VM that the machine already has.
    async fn adopted(&self, asked: &Asked<B::Spec>) -> Result<Option<Vm>> {
        self.backend.check(&asked.class.spec)?;
        let mut found = self.namesakes(asked).await?;
        let exists = |vm: &Vm, problem: &str| {
            let what = format!("{} exists as {} and {problem}", asked.key, vm.id());
            Err(Status::new(Code::AlreadyExists, what))
        };
        if let Some(foreign) = found.iter().find(|vm| !asked.owns(vm)) {
            return exists(foreign, "belongs to another machine object");
        }
        if found.len() > 1 {
            let what = asked.several(&found).message().to_owned();
            return Err(Status::new(Code::FailedPrecondition, what));
        }
        let Some(vm) = found.pop() else { return Ok(None) };
        // A VM that was made by hand has no digest.
        let digest = vm.tags.get(tags::SPEC);
        if digest.is_some() && digest != asked.class.tags.get(tags::SPEC) {
            return exists(&vm, "was made from another provider spec");
        }
        Ok(Some(vm))
    }

    async fn delete(&self, asked: &Asked<B::Spec>) -> Result<()> {
        let _held = self.hold(asked).await?;
        let found = self.owned(asked).await?;
        for vm in &found {
            let deleted = self.backend.delete(vm, &asked.class).await;
            deleted.map_err(of_platform)?;
        }
        if found.is_empty() || self.owned(asked).await?.is_empty() {
            return Ok(());
        }
        let what = format!("the VM of {} is still being deleted", asked.key);
        Err(Status::new(Code::Aborted, what))
    }

    async fn stop(&self, asked: &Asked<B::Spec>) -> Result<()> {
        let _held = self.hold(asked).await?;
        let vm = self.one(asked).await?;
        if vm.machine.power_state == Some(PowerState::Stopped) {
            return Ok(());
        }
        let stopped = self.backend.stop(&vm, &asked.class).await;
        stopped.map_err(of_platform)
    }
}

impl<B: Backend> BackendDriver<B> {
    /// A driver with this name and version.
    pub fn new(info: PluginInfo, backend: B) -> Self {
        let locks = Locks::default();
        Self {
            info,
            calls: Arc::new(Calls { backend, locks }),
        }
    }

    /// Makes a change that goes on when its call is dropped: a request to the platform may be on its way, and
    /// a repeated call must not overtake it.
    async fn change<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        operation: Operation,
        change: impl FnOnce(Arc<Calls<B>>) -> F,
    ) -> Result<T> {
        let change = change(Arc::clone(&self.calls));
        let ended = tokio::spawn(catch_panic(operation, change)).await;
        ended.unwrap_or_else(|error| {
            Err(Status::new(Code::Unavailable, "the driver is ending").with_source(error))
        })
    }
}

#[async_trait]
impl<B: Backend> Driver for BackendDriver<B> {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Ok(self.info.clone())
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        let capabilities = Capabilities {
            tag_path: JsonPointer::field(tags::FIELD),
            ..self.calls.backend.capabilities()
        };
        let calls = [Operation::GetMachineStatus, Operation::ListMachines];
        Ok(capabilities.with_calls(calls).into())
    }

    async fn probe(&self) -> Result<Readiness> {
        self.calls.backend.probe().await
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let asked = Asked::read(&request.machine, None).map_err(Status::with_no_side_effects)?;
        self.change(Operation::CreateMachine, |calls| async move {
            calls.create(&asked).await
        })
        .await
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let asked = Asked::read(&request.machine, request.provider_id)?;
        self.change(Operation::DeleteMachine, |calls| async move {
            calls.delete(&asked).await
        })
        .await?;
        Ok(DeleteMachineResponse::default())
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let asked = Asked::read(&request.machine, request.provider_id)?;
        Ok(self.calls.one(&asked).await?.machine)
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let class = DecodedClass::read(&request.class)?;
        let cluster = tags::cluster(&class.tags)?;
        let found = self.calls.backend.list(cluster, &class).await;
        let mut found = found.map_err(of_platform)?;
        found.retain(|vm| vm.tags.get(tags::CLUSTER).is_some_and(|tag| tag == cluster));
        Ok(found.into_iter().map(Vm::listed).collect())
    }

    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let asked = Asked::read(&request.machine, request.provider_id)?;
        self.change(Operation::ShutDownMachine, |calls| async move {
            calls.stop(&asked).await
        })
        .await?;
        Ok(ShutDownMachineResponse::default())
    }
}

#[cfg(test)]
mod tests;
