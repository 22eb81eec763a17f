//! Calls about the VM that several plans share.

use super::Executor;
use crate::api::identity;
use crate::api::retry::{Call, Disposition};
use crate::apiserver::Error;
use crate::machine::outcome::Failure;
use cmi_driver::{
    DeleteMachineRequest, GetMachineStatusRequest, Machine, MachineClass, MachineRef, Operation, ProviderId,
};

impl Executor<'_, '_, '_> {
    /// Reads the status of the VM.
    pub async fn read(
        &mut self,
        provider_id: Option<&ProviderId>,
        class: MachineClass,
    ) -> cmi_driver::Result<Machine> {
        let request = GetMachineStatusRequest {
            machine: MachineRef::new(self.object.name(), class),
            provider_id: provider_id.cloned(),
        };
        let call = self.permit.driver().get_machine_status(request);
        self.object.awaiting(Operation::GetMachineStatus, call).await
    }

    /// Deletes the VM with this id, or without an id, the VM with the machine's name. Returns `None` when the
    /// call succeeded or the VM is gone, and otherwise the failure.
    pub async fn remove_vm(
        &mut self,
        provider_id: Option<ProviderId>,
        class: MachineClass,
    ) -> Result<Option<Failure>, Error> {
        let request = DeleteMachineRequest {
            machine: MachineRef::new(self.object.name(), class),
            provider_id,
            last_known_state: identity::last_known_state(self.object.get()),
        };
        let call = self.permit.driver().delete_machine(request);
        let status = match self.object.awaiting(Operation::DeleteMachine, call).await {
            Ok(response) => {
                self.object
                    .record_last_known_state(response.last_known_state.as_ref())
                    .await?;
                return Ok(None);
            }
            Err(status) => status,
        };
        let failure = Failure::new(Call::Delete, status);
        Ok((failure.disposition != Disposition::Gone).then_some(failure))
    }
}
