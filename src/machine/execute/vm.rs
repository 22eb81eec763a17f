//! Calls about the VM that several plans share.

use super::Executor;
use crate::api::identity;
use crate::api::retry::{Call, Disposition, VmObservation};
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

    /// Looks for the VM with this id. Without an id, looks for any VM of the machine.
    pub async fn presence_of_vm(
        &mut self,
        provider_id: Option<&ProviderId>,
        class: MachineClass,
    ) -> Result<VmPresence, Failure> {
        let status = match self.read(provider_id, class).await {
            Ok(machine) => return Ok(VmPresence::Present(Some(machine.provider_id))),
            Err(status) => status,
        };
        let id = status.machine().map(|machine| machine.provider_id.clone());
        let failure = Failure::new(Call::ConfirmGone, status);
        match failure.disposition.observation() {
            Some(VmObservation::Absent) => Ok(VmPresence::Absent),
            Some(VmObservation::Uninitialized) => Ok(VmPresence::Present(id)),
            None => Err(failure),
        }
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

/// Whether the driver sees a VM.
pub enum VmPresence {
    /// The driver sees a VM. Holds its id, if the driver returned it.
    Present(Option<ProviderId>),
    /// The driver sees no VM.
    Absent,
}
