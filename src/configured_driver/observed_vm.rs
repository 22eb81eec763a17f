//! A VM as its driver sees it now, for commands. A reconcile looks it up by the table of retries instead.

use super::Permit;
use cmi_driver::{Code, GetMachineStatusRequest, Machine, MachineRef, ProviderId, Result};

/// What GetMachineStatus says of a VM.
#[derive(Clone, Debug, PartialEq)]
pub enum ObservedVm {
    /// There is this one.
    Present(Box<Machine>),
    /// There is this one, which is not initialized.
    Uninitialized(Box<Machine>),
    /// There is none.
    Absent,
}

impl Permit<'_> {
    /// Asks the driver for a VM.
    ///
    /// # Errors
    /// Those of the driver, but for its codes for a VM that is not there, or not initialized and described.
    pub async fn observe_vm(
        &self,
        machine: MachineRef,
        provider_id: Option<ProviderId>,
    ) -> Result<ObservedVm> {
        let request = GetMachineStatusRequest { machine, provider_id };
        match self.driver().get_machine_status(request).await {
            Ok(vm) => Ok(ObservedVm::Present(Box::new(vm))),
            Err(status) => match (status.code(), status.machine()) {
                (Code::NotFound, _) => Ok(ObservedVm::Absent),
                (Code::Uninitialized, Some(vm)) => Ok(ObservedVm::Uninitialized(Box::new(vm.clone()))),
                _ => Err(status),
            },
        }
    }
}
