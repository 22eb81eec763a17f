//! A driver whose VMs are files in a folder.

mod cloud;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use cloud::{Cloud, Vm};
use cmi_driver::{
    Capabilities, Code, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest,
    DeleteMachineResponse, Driver, GetMachineStatusRequest, ListMachinesRequest, ListedMachine, Locks,
    Machine, MachineKey, Operation, PluginInfo, Readiness, Result, Status, USER_DATA, async_trait, fields,
    tags,
};
use cmi_grpc::cli;

/// The fields that users write in `providerSpec`. The provider adds the tags.
#[derive(Clone, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(deserialize_with = "fields::not_blank")]
    vm_pool: String,
    size: Size,
    #[serde(default)]
    root_fs_size: u32,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

#[derive(Clone, Copy, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
enum Size {
    Small,
    Large,
}

struct Acme {
    cloud: Cloud,
    locks: Locks,
}

impl Acme {
    /// Returns the VMs of this name, whoever owns them.
    async fn find(&self, key: &MachineKey) -> Result<Vec<Vm>> {
        let mut found = self.cloud.vms(&key.cluster).await?;
        found.retain(|vm| vm.machine == key.name);
        Ok(found)
    }
}

#[async_trait]
impl Driver for Acme {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Ok(PluginInfo::new("acme.example.com", "v0.1.0"))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        let calls = [Operation::GetMachineStatus, Operation::ListMachines];
        Ok(Capabilities::minimal().with_calls(calls).into())
    }

    async fn probe(&self) -> Result<Readiness> {
        self.cloud.readiness()
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let spec: Spec = request.machine.class.provider_spec.decode()?;
        let key = MachineKey::read(&request.machine, &spec.tags)?;
        if spec.root_fs_size > 1000 {
            return Err(fields::out_of_range("/rootFsSize", "must be at most 1000 GB"));
        }
        let _held = self.locks.hold(&key.lock_name()).await?;
        let found = self.find(&key).await?;
        let fits = |vm: &Vm| vm.is_of(&key, None) && vm.spec.size == spec.size;
        match found.as_slice() {
            [] => {
                let user_data = request.machine.class.secrets.get(USER_DATA);
                self.cloud.create(&key, spec, user_data).await?.machine()
            }
            [vm] if fits(vm) => vm.machine(),
            _ => Err(Status::new(Code::AlreadyExists, format!("{key} has another VM"))),
        }
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let spec: Spec = request.machine.class.provider_spec.decode()?;
        let key = MachineKey::read(&request.machine, &spec.tags)?;
        let _held = self.locks.hold(&key.lock_name()).await?;
        let (found, id) = (self.find(&key).await?, request.provider_id.as_ref());
        for vm in found.iter().filter(|vm| vm.is_of(&key, id)) {
            self.cloud.delete(vm).await?;
        }
        Ok(DeleteMachineResponse::default())
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let spec: Spec = request.machine.class.provider_spec.decode()?;
        let key = MachineKey::read(&request.machine, &spec.tags)?;
        let mut found = self.find(&key).await?;
        found.retain(|vm| vm.is_of(&key, request.provider_id.as_ref()));
        match found.as_slice() {
            [] => Err(key.not_found()),
            [vm] => vm.machine(),
            several => Err(key.several(several.iter().map(|vm| &*vm.id))),
        }
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let spec: Spec = request.class.provider_spec.decode()?;
        let found = self.cloud.vms(tags::cluster(&spec.tags)?).await?;
        found.iter().map(Vm::listed).collect()
    }
}

fn main() -> ExitCode {
    cli::main("acme", env!("CARGO_PKG_VERSION"), || {
        let folder = std::env::var_os("ACME_FOLDER").unwrap_or_else(|| "vms".into());
        let (cloud, locks) = (Cloud::open(folder.into())?, Locks::default());
        Ok::<_, std::io::Error>(Arc::new(Acme { cloud, locks }))
    })
}
