//! A VM as its driver sees it now, for commands. A reconcile looks VMs up by the retry table instead.

use capcmi::driver::Permit;
use cmi_driver::{Code, GetMachineStatusRequest, Machine, MachineRef, ProviderId, Result};

/// The result of GetMachineStatus.
#[derive(Clone, Debug, PartialEq)]
pub enum ObservedVm {
    /// The VM exists.
    Present(Box<Machine>),
    /// The VM exists and is not initialized.
    Uninitialized(Box<Machine>),
    /// There is no such VM.
    Absent,
}

/// Asks the driver for a VM.
///
/// # Errors
/// The errors of the driver, except for the codes of a VM that does not exist, or that is not initialized
/// and described.
pub async fn observe_vm(
    permit: &Permit<'_>,
    machine: MachineRef,
    provider_id: Option<ProviderId>,
) -> Result<ObservedVm> {
    let request = GetMachineStatusRequest { machine, provider_id };
    match permit.driver().get_machine_status(request).await {
        Ok(vm) => Ok(ObservedVm::Present(Box::new(vm))),
        Err(status) => match (status.code(), status.machine()) {
            (Code::NotFound, _) => Ok(ObservedVm::Absent),
            (Code::Uninitialized, Some(vm)) => Ok(ObservedVm::Uninitialized(Box::new(vm.clone()))),
            _ => Err(status),
        },
    }
}
