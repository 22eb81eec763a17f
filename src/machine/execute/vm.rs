//! The calls about the machine's VM that more than one step makes.

use crate::apiserver::Error;
use crate::configured_driver::Permit;
use crate::identity;
use crate::machine::object::Object;
use crate::machine::outcome::Failure;
use crate::retry::{Disposition, Stage, VmObservation};
use cmi_driver::{
    DeleteMachineRequest, GetMachineStatusRequest, Machine, MachineClass, MachineRef, Operation, ProviderId,
};

/// What the driver says of the VM.
pub async fn read(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    provider_id: Option<&ProviderId>,
    class: MachineClass,
) -> cmi_driver::Result<Machine> {
    let request = GetMachineStatusRequest {
        machine: MachineRef::new(object.name(), class),
        provider_id: provider_id.cloned(),
    };
    let call = permit.driver().get_machine_status(request);
    object.awaiting(Operation::GetMachineStatus, call).await
}

/// Whether the driver sees a VM.
pub enum VmPresence {
    /// It does; its id, where the driver says it.
    Present(Option<ProviderId>),
    /// It does not; the id that a create would give the VM, where it says so.
    Absent(Option<ProviderId>),
}

/// Looks for the VM of this id, or for any of the machine.
pub async fn presence_of_vm(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    provider_id: Option<&ProviderId>,
    class: MachineClass,
) -> Result<VmPresence, Failure> {
    let status = match read(object, permit, provider_id, class).await {
        Ok(machine) => return Ok(VmPresence::Present(Some(machine.provider_id))),
        Err(status) => status,
    };
    let id = status.machine().map(|machine| machine.provider_id.clone());
    let failure = Failure::new(Stage::ConfirmGone, status);
    match failure.disposition.observation() {
        Some(VmObservation::Absent) => Ok(VmPresence::Absent(named_id(permit, &failure))),
        Some(VmObservation::Uninitialized) => Ok(VmPresence::Present(id)),
        None => Err(failure),
    }
}

/// The id that a create would give the VM, where a driver that names such ids does not see it.
pub fn named_id(permit: &Permit<'_>, failure: &Failure) -> Option<ProviderId> {
    let named = failure.status.named_provider_id();
    named
        .filter(|_| permit.known_capabilities().names_provider_ids)
        .cloned()
}

/// Deletes the VM of this id, or of the machine's name; the failure, unless it is gone.
pub async fn remove_vm(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    provider_id: Option<ProviderId>,
    class: MachineClass,
) -> Result<Option<Failure>, Error> {
    let request = DeleteMachineRequest {
        machine: MachineRef::new(object.name(), class),
        provider_id,
        last_known_state: identity::last_known_state(object.get()),
    };
    let call = permit.driver().delete_machine(request);
    let status = match object.awaiting(Operation::DeleteMachine, call).await {
        Ok(response) => {
            object
                .patch_last_known_state(response.last_known_state.as_ref())
                .await?;
            return Ok(None);
        }
        Err(status) => status,
    };
    let failure = Failure::new(Stage::Delete, status);
    Ok((failure.disposition != Disposition::Gone).then_some(failure))
}
