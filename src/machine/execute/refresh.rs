//! Reads the status of a VM whose id is known.

use super::initialize::PresentVm;
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
            LookUpResult::Present(PresentVm::ToInitialize(_)) if plan.initialize == Initialize::Never => {
                Ok(Outcome::NotSupported(Operation::InitializeMachine))
            }
            LookUpResult::Present(vm) => self.finish(class, vm).await,
            LookUpResult::Absent => Ok(self.gone_or_behind(plan.provider_id)),
            LookUpResult::CannotLook if plan.initialize == Initialize::OnTheWayUp => {
                self.finish(class, PresentVm::listed(plan.provider_id)).await
            }
            LookUpResult::CannotLook => Ok(Outcome::NotSupported(Operation::GetMachineStatus)),
            LookUpResult::Failed(failure) => Ok(failure.into()),
        }
    }
}
