//! Calls about the VM that several plans share, and how long a driver's NOT_FOUND may be stale.

use std::time::Duration;

use tokio::time::Instant;

use super::{ExecuteError, Executor};
use crate::api::ObjectMetaExt as _;
use crate::api::identity;
use crate::api::retry::{Call, Disposition, MIN_REQUEUE};
use crate::apiserver::Error;
use crate::apiserver::secrets::SECRET_REF;
use crate::driver::credentials;
use crate::machine::outcome::{Failure, Outcome};
use cmi_driver::{
    Code, DeleteMachineRequest, GetMachineStatusRequest, Machine, MachineClass, MachineRef, Operation,
    ProviderId, ProviderSpec, Status,
};

/// The location of a Secret's name, as error messages give it.
const SECRET_OF_RECORD: &str = "madeFrom.secret in annotation infrastructure.capcmi.io/vm-record";

impl Executor<'_, '_, '_> {
    /// Returns the class for every call except a create: the spec and the credentials of the VM.
    pub async fn with_credentials(&self, provider_spec: ProviderSpec) -> Result<MachineClass, ExecuteError> {
        let machine = self.object.get();
        let field = match identity::changed_secret(machine) {
            Some(_) => SECRET_OF_RECORD,
            None => SECRET_REF,
        };
        let name = identity::credentials(machine);
        let (client, driver) = (&self.ctx.client, self.permit.configured_driver());
        let namespace = machine.metadata.namespace();
        let secrets = credentials::read(client, driver, namespace, name.as_deref(), field).await??;
        Ok(MachineClass {
            provider_spec,
            secrets,
        })
    }

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

    /// Returns `None` if the permit allows creating or initializing a VM. Otherwise returns the wait, and
    /// the machine is enqueued when the permit does.
    pub fn wait_to_create(&mut self) -> Option<Outcome> {
        let (ctx, machine) = (self.ctx, self.object.get());
        let may_create = self.permit.may_create(self.object.uid(), ctx.waker(machine));
        (!may_create).then(|| ctx.waiting_for_a_permit(machine, self.permit.configured_driver()))
    }

    /// Returns how much longer a NOT_FOUND of the driver may be stale. `window` is the driver's consistency
    /// window. Returns `None` when the answer is reliable.
    pub fn behind_for(&self, window: Duration) -> Option<Duration> {
        let absent_for = self.ctx.states.absent_for(self.object.uid(), Instant::now());
        window
            .checked_sub(absent_for)
            .filter(|left| !left.is_zero())
            .map(|left| left.max(MIN_REQUEUE))
    }
}

/// Returns the failure when a driver answers with the wrong VM. The answer is not used and its id is not
/// written, because the VM may belong to another machine.
pub fn another_vm(call: Call, known: Option<&ProviderId>, answered: Option<&ProviderId>) -> Option<Failure> {
    let (known, answered) = (known?, answered?);
    (known != answered).then(|| {
        let message =
            format!("the driver returned providerID `{answered}` for the machine with providerID `{known}`");
        Failure::new(call, Status::new(Code::Internal, message))
    })
}
