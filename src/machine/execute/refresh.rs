//! Reads the status of a VM whose id is known.

use super::initialize::{made, uninitialized};
use super::look_up::LookUpResult;
use super::{ExecuteError, Executor};
use crate::api::retry::Call;
use crate::machine::outcome::Outcome;
use crate::machine::plan::{Initialize, Refresh};
use cmi_driver::Operation;

impl Executor<'_, '_, '_> {
    /// Reads the status of a VM whose id is known. Never leads to a create.
    pub async fn refresh(&mut self, plan: Refresh) -> Result<Outcome, ExecuteError> {
        let class = self.with_credentials(plan.look_up).await?;
        match self
            .look_up(Some(&plan.provider_id), Call::Refresh, class.clone())
            .await
        {
            LookUpResult::Machine(machine) => {
                self.ctx.states.clear_absence(self.object.uid());
                Ok(Outcome::Provisioned(Box::new(machine)))
            }
            LookUpResult::Uninitialized(_) if plan.initialize == Initialize::Never => {
                self.ctx.states.clear_absence(self.object.uid());
                Ok(Outcome::NotSupported(Operation::InitializeMachine))
            }
            LookUpResult::Uninitialized(failure) => {
                self.ctx.states.clear_absence(self.object.uid());
                let vm = uninitialized(Some(plan.provider_id), failure);
                self.initialize(class, vm).await
            }
            LookUpResult::Absent => Ok(self.gone_or_behind(plan.provider_id)),
            LookUpResult::CannotLook if plan.initialize == Initialize::OnTheWayUp => {
                let vm = made(cmi_driver::Machine::new(plan.provider_id, ""));
                self.initialize(class, vm).await
            }
            // The id is known, so no list is requested.
            LookUpResult::Listed(_) | LookUpResult::CannotLook => {
                Ok(Outcome::NotSupported(Operation::GetMachineStatus))
            }
            LookUpResult::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
        }
    }
}
