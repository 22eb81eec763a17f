//! A driver whose VMs are files in a folder.

mod cloud;

use std::process::ExitCode;
use std::sync::Arc;

use cloud::{Cloud, Instance, Settings};
use cmi_driver::{
    Backend, BackendDriver, Capabilities, DecodedClass, MachineKey, Operation, PluginInfo, PowerState,
    Readiness, Result, USER_DATA, Vm, async_trait, fields,
};
use cmi_grpc::cli;

/// The fields that users write in `providerSpec`.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(deserialize_with = "fields::not_blank")]
    vm_pool: String,
    size: Size,
    #[serde(default)]
    root_fs_size: u32,
}

#[derive(Clone, Copy, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
enum Size {
    Small,
    Large,
}

struct Acme {
    cloud: Cloud,
}

#[async_trait]
impl Backend for Acme {
    type Spec = Spec;

    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal().with_calls([Operation::ShutDownMachine])
    }

    async fn probe(&self) -> Result<Readiness> {
        self.cloud.readiness()
    }

    fn check(&self, spec: &Spec) -> Result<()> {
        if spec.root_fs_size > 1000 {
            return Err(fields::out_of_range("/rootFsSize", "must be at most 1000 GB"));
        }
        Ok(())
    }

    async fn list(&self, cluster: &str, _class: &DecodedClass<Spec>) -> Result<Vec<Vm>> {
        let found = self.cloud.instances(cluster).await?;
        found.into_iter().map(vm).collect()
    }

    async fn create(&self, key: &MachineKey, class: &DecodedClass<Spec>) -> Result<Vm> {
        let settings = Settings {
            vm_pool: class.spec.vm_pool.clone(),
            size: class.spec.size,
            root_fs_size: class.spec.root_fs_size,
            tags: class.tags.clone(),
        };
        let user_data = class.secrets.get(USER_DATA);
        vm(self.cloud.create(&key.name, settings, user_data).await?)
    }

    async fn delete(&self, vm: &Vm, _class: &DecodedClass<Spec>) -> Result<()> {
        self.cloud.delete(vm.id()).await
    }

    async fn stop(&self, vm: &Vm, _class: &DecodedClass<Spec>) -> Result<()> {
        self.cloud.stop(vm.id()).await
    }
}

/// Returns a VM of the platform in the terms of the driver contract.
fn vm(instance: Instance) -> Result<Vm> {
    let mut vm = Vm::new(&instance.id, instance.machine, instance.spec.tags)?;
    let power = if instance.is_off {
        PowerState::Stopped
    } else {
        PowerState::Running
    };
    vm.machine.power_state = Some(power);
    Ok(vm)
}

fn main() -> ExitCode {
    cli::main("acme", env!("CARGO_PKG_VERSION"), || {
        let folder = std::env::var_os("ACME_FOLDER").unwrap_or_else(|| "vms".into());
        let info = PluginInfo::new("acme.example.com", "v0.1.0");
        let cloud = Cloud::open(folder.into())?;
        Ok::<_, std::io::Error>(Arc::new(BackendDriver::new(info, Acme { cloud })))
    })
}
