//! The driver as a whole, by the rows of the driver contract.

mod create;
mod life;
mod refusals;
mod removal;
mod sharing;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use super::*;
use cmi_driver::{
    CreateMachineRequest, DeleteMachineRequest, Driver as _, GetMachineStatusRequest,
    InitializeMachineRequest, ListMachinesRequest, MachineClass, MachineRef, PowerState, ProviderId,
    RestartMachineRequest, SecretValue, ShutDownMachineRequest, UpdateMachineRequest, tags,
};

const CANARY: &str = "canary-4711";

fn driver(config: &str) -> SimulatedDriver {
    let config = serde_saphyr::from_str(config).unwrap();
    SimulatedDriver::with_clock(config, Arc::new(TimerClock::start())).unwrap()
}

/// The class of machine object `machine` in cluster `cluster`, with some fields changed; null removes a
/// field.
fn class(cluster: &str, machine: &str, change: &Value) -> MachineClass {
    let mut spec = json!({
        "vmPool": "default",
        "size": "small",
        "tags": {tags::CLUSTER: cluster, tags::ROLE: "node", tags::MACHINE: machine},
    });
    for (key, value) in change.as_object().unwrap() {
        if value.is_null() {
            spec.as_object_mut().unwrap().remove(key);
        } else {
            spec[key] = value.clone();
        }
    }
    let secrets = [
        ("token", CANARY),
        (cmi_driver::USER_DATA, "#cloud-config canary-0815"),
    ];
    MachineClass {
        provider_spec: serde_json::from_value(spec).unwrap(),
        secrets: secrets
            .map(|(key, value)| (key.to_owned(), SecretValue::from(value.as_bytes().to_vec())))
            .into_iter()
            .collect(),
    }
}

fn plain(name: &str) -> MachineClass {
    class("c", name, &json!({}))
}

/// Calls on a machine, each with the class it is given.
impl SimulatedDriver {
    async fn create(&self, name: &str, class: MachineClass) -> Result<Machine> {
        self.create_machine(CreateMachineRequest {
            machine: MachineRef::new(name, class),
            last_known_state: None,
        })
        .await
    }

    async fn status(&self, name: &str, id: Option<&ProviderId>, class: MachineClass) -> Result<Machine> {
        let provider_id = id.cloned();
        self.get_machine_status(GetMachineStatusRequest {
            machine: MachineRef::new(name, class),
            provider_id,
        })
        .await
    }

    async fn remove(&self, name: &str, id: Option<&ProviderId>, class: MachineClass) -> Result<()> {
        let provider_id = id.cloned();
        let request = DeleteMachineRequest {
            machine: MachineRef::new(name, class),
            provider_id,
            last_known_state: None,
        };
        self.delete_machine(request).await.map(|_| ())
    }

    async fn initialize(&self, name: &str, class: MachineClass) -> Result<Machine> {
        let request = InitializeMachineRequest {
            machine: MachineRef::new(name, class),
            provider_id: None,
            last_known_state: None,
        };
        self.initialize_machine(request).await
    }

    async fn shut_down(&self, name: &str, class: MachineClass) -> Result<()> {
        let request = ShutDownMachineRequest {
            machine: MachineRef::new(name, class),
            provider_id: None,
            last_known_state: None,
        };
        self.shut_down_machine(request).await.map(|_| ())
    }

    async fn update(&self, name: &str, provider_id: ProviderId, class: MachineClass) -> Result<()> {
        let request = UpdateMachineRequest {
            provider_id,
            last_applied_provider_spec: class.provider_spec.clone(),
            machine: MachineRef::new(name, class),
            last_known_state: None,
        };
        self.update_machine(request).await
    }

    async fn restart_vm(&self, name: &str, provider_id: ProviderId, class: MachineClass) -> Result<()> {
        let request = RestartMachineRequest {
            machine: MachineRef::new(name, class),
            provider_id,
            last_known_state: None,
        };
        self.restart_machine(request).await
    }

    async fn list(&self, class: MachineClass) -> Result<Vec<(String, String)>> {
        let listed = self.list_machines(ListMachinesRequest { class }).await?;
        let mut pairs: Vec<_> = listed
            .into_iter()
            .map(|vm| (vm.machine_name, vm.provider_id.to_string()))
            .collect();
        pairs.sort();
        Ok(pairs)
    }

    fn mutations(&self) -> u64 {
        self.console().mutations().unwrap()
    }

    fn id(&self, name: &str) -> VmId {
        self.console()
            .vms()
            .unwrap()
            .into_iter()
            .find(|vm| vm.name == name)
            .unwrap()
            .id
    }
}

fn code<T>(result: Result<T>) -> Option<Code> {
    let status = result.err()?;
    let message = status.message();
    assert!(
        message.len() >= 8 && message != status.code().name(),
        "DRV-17: {message}"
    );
    assert!(!message.contains("canary"), "OPS-11: {message}");
    Some(status.code())
}
