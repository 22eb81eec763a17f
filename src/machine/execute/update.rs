//! Updates an existing VM to a changed spec.

use super::{ExecuteError, Executor};
use crate::api::annotations;
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus, LastOperation, OperationState, OperationType};
use crate::apiserver::Error;
use crate::configured_driver::VM_LOCK_WAIT;
use crate::identity;
use crate::machine::outcome::{Failure, Outcome};
use crate::machine::plan::Update;
use crate::retry::Stage;
use crate::wall_clock;
use cmi_driver::{MachineRef, Operation, UpdateMachineRequest};

impl Executor<'_, '_, '_> {
    /// Updates the VM (UPD-01..UPD-03).
    ///
    /// # Guarantees
    /// The object says that an update is under way before the driver is called: when the update is cut short,
    /// and the spec then goes back to the applied one, the driver is called all the same, since the VM may be
    /// half updated. No remediation restarts the VM meanwhile.
    pub async fn update(&mut self, plan: Update) -> Result<Outcome, ExecuteError> {
        let class = self.with_credentials(plan.wanted.clone()).await?;
        let uid = self.object.uid().to_owned();
        let Some(_lock) = self.permit.configured_driver().try_lock_vm(&uid) else {
            return Ok(Outcome::Waiting(Some(VM_LOCK_WAIT)));
        };
        self.object.issue_update().await?;
        self.object.patch_status(announced).await?;
        let request = UpdateMachineRequest {
            machine: MachineRef::new(self.object.name(), class),
            provider_id: plan.provider_id,
            last_applied_provider_spec: plan.applied,
            last_known_state: identity::last_known_state(self.object.get()),
        };
        if let Err(status) = self.permit.driver().update_machine(request).await {
            let failure = Failure::new(Stage::Update, status);
            return Ok(Outcome::Failed(Box::new(failure)));
        }
        let action = "recording the applied provider spec";
        let json = serde_json::to_string(&plan.wanted).map_err(|source| Error::Encode { action, source })?;
        let mut notes = vec![
            (annotations::APPLIED_PROVIDER_SPEC, Some(json)),
            (annotations::UPDATE_ISSUED, None),
        ];
        notes.extend(
            plan.report_done
                .map(|done| (annotations::IN_PLACE_UPDATE, Some(done))),
        );
        notes.extend(self.object.block_move_removal());
        self.object.patch_annotations(action, &notes).await?;
        Ok(Outcome::Updated)
    }
}

/// Returns the status of a machine whose update begins; the same as before where it has begun already.
fn announced(machine: &InfraMachine) -> InfraMachineStatus {
    let mut status = machine.status.clone().unwrap_or_default();
    if status
        .last_operation
        .as_ref()
        .is_some_and(|last| last.type_ == OperationType::Update && last.state != OperationState::Successful)
    {
        return status;
    }
    let name = Some(Operation::UpdateMachine.name());
    status.last_operation = Some(LastOperation::new(
        OperationType::Update,
        OperationState::Processing,
        name,
        wall_clock::now(),
    ));
    status
}
