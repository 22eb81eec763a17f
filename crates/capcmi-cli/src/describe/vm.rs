//! The VM of a machine, as its driver sees it now.

use kube::Client;

use crate::observed_vm::{ObservedVm, observe_vm};
use capcmi::api::ObjectMetaExt as _;
use capcmi::api::identity;
use capcmi::api::v1alpha1::InfraMachine;
use capcmi::driver::credentials;
use capcmi::driver::resolution::driver_of;
use capcmi::driver::{ConfiguredDrivers, Permit, Priority};
use cmi_driver::{Code, ListMachinesRequest, MachineClass, MachineRef, Operation, ProviderSpec, Status};

/// The driver's answer about the VM.
#[derive(Clone, Debug, PartialEq)]
pub enum VmAnswer {
    /// The driver was not called, for this reason.
    NotCalled(String),
    /// The driver's answer about the VM.
    Observed(ObservedVm),
    /// The driver has no call about one VM: the id of a VM with the name in its list, if any.
    Listed(Option<String>),
    /// The call failed.
    Failed {
        /// The call.
        operation: Operation,
        /// The code of the failure.
        code: Code,
        /// The driver's message.
        message: String,
    },
}

impl VmAnswer {
    fn failed(operation: Operation, status: &Status) -> Self {
        Self::Failed {
            operation,
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

/// Queries the driver with the same request as the provider. Changes nothing. Does not use
/// [`capcmi::reconcile::driver_query::Query`]: a command waits for its permit, and reports why each step
/// failed.
pub(super) async fn of(
    client: &Client,
    drivers: Option<&ConfiguredDrivers>,
    machine: &InfraMachine,
) -> VmAnswer {
    let Some(drivers) = drivers else {
        let why = "pass the drivers file with --drivers-config to call the driver";
        return VmAnswer::NotCalled(why.to_owned());
    };
    let namespace = machine.metadata.namespace();
    let driver = match driver_of(drivers, machine) {
        Ok(driver) => driver,
        Err(why) => return VmAnswer::NotCalled(format!("{why} (in the given drivers file)")),
    };
    let permit = driver.acquire(Priority::Upkeep, "capcmi describe").await;
    // A machine that was never created has its spec without the tags: nothing carries its identity.
    let spec =
        identity::applied_spec(machine).unwrap_or_else(|| ProviderSpec(machine.spec.provider_spec.clone()));
    let secret = identity::credentials(machine);
    let class = match credentials::machine_class(client, &driver, namespace, secret.as_deref(), spec).await {
        Ok(Ok(class)) => class,
        Ok(Err(why)) => return VmAnswer::NotCalled(why.to_string()),
        Err(error) => return VmAnswer::NotCalled(format!("cannot read the credentials: {error}")),
    };
    look_up(&permit, machine, class).await
}

async fn look_up(permit: &Permit<'_>, machine: &InfraMachine, class: MachineClass) -> VmAnswer {
    let capabilities = match permit.fetch_capabilities().await {
        Ok(capabilities) => capabilities,
        Err(status) => return VmAnswer::failed(Operation::GetPluginCapabilities, &status),
    };
    let name = machine.metadata.name();
    if identity::applied_spec(machine).is_none() {
        let why = "no VM was requested yet: no applied provider spec is recorded";
        return VmAnswer::NotCalled(why.to_owned());
    }
    if capabilities.supports(Operation::GetMachineStatus) {
        let provider_id = machine.spec.provider_id.as_deref().and_then(|id| id.parse().ok());
        let observed = observe_vm(permit, MachineRef::new(name, class), provider_id).await;
        return observed.map_or_else(
            |status| VmAnswer::failed(Operation::GetMachineStatus, &status),
            VmAnswer::Observed,
        );
    }
    if capabilities.supports(Operation::ListMachines) {
        return match permit.driver().list_machines(ListMachinesRequest { class }).await {
            Ok(vms) => {
                let own = vms.into_iter().find(|vm| vm.machine_name == name);
                VmAnswer::Listed(own.map(|vm| vm.provider_id.to_string()))
            }
            Err(status) => VmAnswer::failed(Operation::ListMachines, &status),
        };
    }
    VmAnswer::NotCalled("the driver implements neither GetMachineStatus nor ListMachines".to_owned())
}
