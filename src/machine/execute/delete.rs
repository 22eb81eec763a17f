//! Shuts the VM down, deletes it and confirms the deletion.

use super::{ExecuteError, Executor};
use crate::api::conditions::reason;
use crate::api::retry::Disposition;
use crate::apiserver::InvalidSecret;
use crate::machine::outcome::{Failure, Outcome, RemovalReason};
use crate::machine::plan::Delete;
use cmi_driver::{Code, Operation};

impl Executor<'_, '_, '_> {
    /// Deletes the VM.
    ///
    /// # Guarantees
    /// Returns [`Outcome::Gone`] only when no unanswered create can still make the VM. A driver that can look
    /// up must also have answered NOT_FOUND for its whole consistency window. A VM whose Secret is missing is
    /// not deleted: an account that other credentials open would report the VM as gone.
    pub async fn delete(&mut self, plan: Delete) -> Result<Outcome, ExecuteError> {
        // clusterctl does not move an object that is being deleted, so the move need not be blocked.
        self.object.unblock_move().await?;
        let class = match self.with_credentials(plan.spec.clone()).await {
            Err(ExecuteError::Secret(InvalidSecret::Missing { .. })) if plan.refused => {
                return Ok(Outcome::RemoveFinalizer(RemovalReason::NeverCreated));
            }
            Err(ExecuteError::Secret(InvalidSecret::Missing { name, .. })) => {
                return Err(InvalidSecret::Needed { name }.into());
            }
            class => class?,
        };
        if let Some(asking) = plan.shut_down
            && let Some(outcome) = self.shut_down(&plan, asking, class.clone()).await?
        {
            return Ok(outcome);
        }
        let secrets = class.secrets.clone();
        let outcome = match self.remove_vm(plan.provider_id.clone(), class.clone()).await? {
            None => self.confirm_gone(&plan, class).await?,
            Some(failure) if self.may_be_gone(&failure) => match self.confirm_gone(&plan, class).await? {
                gone @ (Outcome::Gone
                | Outcome::Deleting {
                    reason: reason::CONFIRMING_DELETION | reason::CREATE_UNANSWERED,
                    ..
                }) => gone,
                _ => failure.into(),
            },
            Some(failure) => failure.into(),
        };
        if plan.refused {
            return Ok(of_a_refused_spec(outcome));
        }
        if matches!(outcome, Outcome::Gone) {
            self.permit.on_vm_deleted(&secrets);
        }
        Ok(outcome)
    }

    /// Returns whether the VM may already be gone and the driver can confirm that.
    fn may_be_gone(&self, failure: &Failure) -> bool {
        failure.disposition == Disposition::VerifyDeleted
            && self
                .permit
                .known_capabilities()
                .supports(Operation::GetMachineStatus)
    }
}

/// Returns the outcome of the cleanup after a refused create. No VM was created. The object is therefore
/// released even if the driver refuses the same spec again.
fn of_a_refused_spec(outcome: Outcome) -> Outcome {
    let is_released = match &outcome {
        Outcome::Gone => true,
        Outcome::Failed(failure) => matches!(
            failure.status.code(),
            Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists | Code::Unimplemented
        ),
        _ => false,
    };
    if is_released {
        return Outcome::RemoveFinalizer(RemovalReason::NeverCreated);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use cmi_driver::Status;

    use super::*;
    use crate::api::retry::Call;

    /// A machine whose spec was never valid can be deleted, even if the driver rejects the spec.
    #[test]
    fn a_spec_refused_at_create_and_delete_does_not_keep_the_object() {
        let after = |code| {
            let failure = Failure::new(Call::Delete, Status::new(code, "no"));
            of_a_refused_spec(failure.into())
        };
        let released = |outcome| matches!(outcome, Outcome::RemoveFinalizer(RemovalReason::NeverCreated));
        for code in [
            Code::InvalidArgument,
            Code::OutOfRange,
            Code::AlreadyExists,
            Code::Unimplemented,
        ] {
            assert!(released(after(code)), "{code}");
        }
        for code in [
            Code::Unavailable,
            Code::Aborted,
            Code::FailedPrecondition,
            Code::Internal,
        ] {
            assert!(!released(after(code)), "{code}: something may be there");
        }
        assert!(
            !released(after(Code::Unauthenticated)),
            "the credentials can be repaired"
        );
        assert!(released(of_a_refused_spec(Outcome::Gone)));
    }
}
