//! Adopts a VM that another controller created.

use super::look_up::LookUpResult;
use super::{ExecuteError, Executor};
use crate::api::conditions::{self, reason};
use crate::api::retry::Call;
use crate::machine::outcome::{Blocked, Outcome};
use crate::machine::plan::{Adopt, LOOK_UP_INTERVAL, cannot_look_up};

impl Executor<'_, '_, '_> {
    /// Adopts the VM once the driver confirms it.
    ///
    /// # Guarantees
    /// Finalizer and record are written only after the driver has answered with a VM of exactly this id. They
    /// are written only to the version of the object that the plan was based on. Nothing is created, and no
    /// bootstrap data is sent.
    pub async fn adopt(&mut self, plan: Adopt) -> Result<Outcome, ExecuteError> {
        let driver = self.permit.configured_driver();
        let class = self.with_credentials(plan.look_up).await?;
        let known = Some(&plan.provider_id);
        match self.look_up(known, Call::Refresh, class.clone()).await {
            LookUpResult::Present(vm) => {
                self.object.own(&plan.record).await?;
                self.finish(class, vm).await
            }
            LookUpResult::Absent => Ok(unconfirmed(self.object.name(), plan.provider_id.as_str()).into()),
            LookUpResult::CannotLook => Ok(cannot_look_up(driver.name()).into()),
            LookUpResult::Failed(failure) => Ok(failure.into()),
        }
    }
}

fn unconfirmed(name: &str, provider_id: &str) -> Blocked {
    let message = format!(
        "no VM matches name `{name}`, providerID `{provider_id}` and the expected tags; no VM is created: \
            correct spec.providerSpec, the credentials or annotation {}; to change spec.providerID or \
            cancel the adoption, delete the InfraMachine first, and then its Machine",
        crate::api::annotations::ADOPT
    );
    Blocked::new(conditions::READY, reason::ADOPTION_UNCONFIRMED, message).until(LOOK_UP_INTERVAL)
}
