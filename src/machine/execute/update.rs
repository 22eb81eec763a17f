//! Updates an existing VM to a changed spec.

use super::{ExecuteError, Executor};
use crate::api::identity::{self, VmEvent, VmRecord};
use crate::api::retry::Call;
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock;
use crate::driver::VM_LOCK_WAIT;
use crate::machine::object::Moves;
use crate::machine::outcome::{Failure, Outcome};
use crate::machine::plan::Update;
use crate::machine::status::in_progress;
use cmi_driver::{MachineRef, Operation, ProviderSpec, UpdateMachineRequest};

impl Executor<'_, '_, '_> {
    /// Updates the VM (UPD-01..UPD-03).
    ///
    /// # Guarantees
    /// The record shows a running update before the driver is called. If the update is interrupted and the
    /// spec is then reverted, the driver is still called, because the VM may be half updated. The lock keeps
    /// remediation from restarting the VM during the call.
    pub async fn update(&mut self, plan: Update) -> Result<Outcome, ExecuteError> {
        let class = self.with_credentials(plan.wanted.clone()).await?;
        let uid = self.object.uid().to_owned();
        let Some(_lock) = self.permit.configured_driver().try_lock_vm(&uid) else {
            return Ok(Outcome::Waiting(Some(VM_LOCK_WAIT)));
        };
        self.object.record_update().await?;
        let since = wall_clock::now();
        let announced = |machine: &InfraMachine| in_progress(machine, Operation::UpdateMachine, since);
        self.object.patch_status(announced).await?;
        let request = UpdateMachineRequest {
            machine: MachineRef::new(self.object.name(), class),
            provider_id: plan.provider_id,
            last_applied_provider_spec: plan.applied,
            last_known_state: identity::last_known_state(self.object.get()),
        };
        if let Err(status) = self.permit.driver().update_machine(request).await {
            let failure = Failure::new(Call::Update, status);
            return Ok(failure.into());
        }
        let updated = |record| updated(record, &plan.wanted);
        self.object
            .change_record("recording the end of the update", updated, Moves::Unblocked, None)
            .await?;
        Ok(Outcome::Updated)
    }
}

/// Returns the record after the VM was updated to the wanted spec.
fn updated(mut record: VmRecord, wanted: &ProviderSpec) -> VmRecord {
    if let Some(made) = &mut record.made_from {
        made.provider_spec.clone_from(wanted);
    }
    record.after(VmEvent::UpdateDone)
}
