//! Ids that are made from cluster and name.

use cmi_driver::{ListedMachine, Machine, ProviderId, Result, Status};
use cmi_simulated::{CloudConsole, Vm};

use super::Key;

const SCHEME: &str = "named://";
/// An id that no VM of the cloud has.
const NO_VMS: &str = "simulated://zone-a/00000000-0000-0000-0000-000000000000";

/// Maps the ids of the cloud to ids made from names, and back.
pub struct Named {
    pub console: CloudConsole,
}

impl Named {
    /// Returns the cloud's id of the VM that currently has this id.
    pub fn real(&self, id: ProviderId) -> ProviderId {
        if !id.as_str().starts_with(SCHEME) {
            return id;
        }
        let vms = self.console.vms().unwrap();
        let found = vms.iter().find(|vm| named(vm.cluster(), &vm.name) == id);
        let real = found.map_or_else(|| NO_VMS.to_owned(), Vm::provider_id);
        real.parse().unwrap()
    }

    pub fn answer(&self, key: &Key, answer: Result<Machine>) -> Result<Machine> {
        match answer {
            Ok(machine) => Ok(self.machine(key, machine)),
            Err(status) => {
                let machine = status.machine().map(|machine| self.machine(key, machine.clone()));
                let status = self.reworded(status);
                Err(match machine {
                    Some(machine) => status.with_machine(machine),
                    None => status,
                })
            }
        }
    }

    pub fn list(&self, mut listed: Vec<ListedMachine>) -> Vec<ListedMachine> {
        for vm in &mut listed {
            if let Some(id) = self.named(&vm.provider_id) {
                vm.provider_id = id;
            }
        }
        listed
    }

    fn machine(&self, key: &Key, mut machine: Machine) -> Machine {
        let gone = || named(&key.cluster, &key.name);
        machine.provider_id = self.named(&machine.provider_id).unwrap_or_else(gone);
        machine
    }

    /// Replaces the ids of VMs in a message by the ids that the caller knows.
    fn reworded(&self, status: Status) -> Status {
        let vms = self.console.vms().unwrap();
        let message = vms.iter().fold(status.message().to_owned(), |message, vm| {
            message.replace(&vm.provider_id(), named(vm.cluster(), &vm.name).as_str())
        });
        status.with_message(message)
    }

    fn named(&self, real: &ProviderId) -> Option<ProviderId> {
        let vms = self.console.vms().unwrap();
        let vm = vms.iter().find(|vm| vm.provider_id() == real.as_str())?;
        Some(named(vm.cluster(), &vm.name))
    }
}

fn named(cluster: &str, name: &str) -> ProviderId {
    format!("{SCHEME}{cluster}.{name}").parse().unwrap()
}
