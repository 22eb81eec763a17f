//! Shuts the VM down, deletes it and confirms the deletion.

use super::look_up::LookUpResult;
use super::{ExecuteError, Executor};
use crate::api::conditions::reason;
use crate::api::retry::{Call, Disposition};
use crate::apiserver::InvalidSecret;
use crate::machine::outcome::{Failure, Outcome, RemovalReason};
use crate::machine::plan::Delete;
use cmi_driver::{Code, MachineClass, Operation, Secrets};

impl Executor<'_, '_, '_> {
    /// Deletes the VM.
    ///
    /// # Guarantees
    /// Returns [`Outcome::Gone`] only when no unanswered create can still make the VM. A driver that can look
    /// up must also have answered NOT_FOUND for its whole consistency window. A missing Secret does not block
    /// the deletion of a VM that the driver sees without the Secret.
    pub async fn delete(&mut self, plan: Delete) -> Result<Outcome, ExecuteError> {
        // clusterctl does not move an object that is being deleted, so the move need not be blocked.
        self.object.unblock_move().await?;
        let (class, secret_is_gone) = match self.with_credentials(plan.spec.clone()).await {
            Ok(class) => (class, false),
            Err(ExecuteError::Secret(InvalidSecret::Missing { name, .. })) => {
                let class = MachineClass {
                    provider_spec: plan.spec.clone(),
                    secrets: Secrets::default(),
                };
                if !plan.refused
                    && let Some(failure) = self.check_without_credentials(&plan, name, class.clone()).await?
                {
                    return Ok(failure.into());
                }
                (class, true)
            }
            Err(stopped) => return Err(stopped),
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
        if matches!(outcome, Outcome::Gone) && !plan.refused {
            self.permit.on_vm_deleted(&secrets);
        }
        Ok(if plan.refused {
            of_a_refused_spec(outcome, secret_is_gone)
        } else {
            outcome
        })
    }

    /// Returns whether the VM may already be gone and the driver can confirm that.
    fn may_be_gone(&self, failure: &Failure) -> bool {
        failure.disposition == Disposition::VerifyDeleted
            && self
                .permit
                .known_capabilities()
                .supports(Operation::GetMachineStatus)
    }

    /// Checks whether the VM can be deleted without its credentials when their Secret is gone. A driver that
    /// sees the VM without credentials does not need them. This is recorded, because the driver could not
    /// show it after the VM is deleted. If the driver does not see the VM, the VM may be gone or in an
    /// account that needs the credentials. An operator has to decide.
    ///
    /// A driver that can't look up gets the delete call. It answers UNAUTHENTICATED when it needs the
    /// credentials.
    async fn check_without_credentials(
        &mut self,
        plan: &Delete,
        name: String,
        class: MachineClass,
    ) -> Result<Option<Failure>, ExecuteError> {
        // This driver needs credentials, and the provider's own credentials open a different account.
        if self.permit.configured_driver().has_credentials() {
            return Err(InvalidSecret::Needed { name }.into());
        }
        if !self
            .permit
            .known_capabilities()
            .supports(Operation::GetMachineStatus)
        {
            return Ok(None);
        }
        match self
            .look_up(plan.provider_id.as_ref(), Call::ConfirmGone, class)
            .await
        {
            LookUpResult::Present(_) => {}
            LookUpResult::Absent | LookUpResult::CannotLook => {
                return Err(InvalidSecret::Needed { name }.into());
            }
            LookUpResult::Failed(mut failure) => {
                let said = failure.status.message();
                let message = format!(
                    "Secret `{name}` does not exist, and the driver requires its credentials: {said}"
                );
                failure.status = failure.status.with_message(message);
                return Ok(Some(failure));
            }
        }
        self.object.record_without_secret().await?;
        Ok(None)
    }
}

/// Returns the outcome of the cleanup after a refused create. No VM was created. The object is therefore
/// released even if the driver refuses the same spec again, or denies access because the Secret is gone.
fn of_a_refused_spec(outcome: Outcome, secret_is_gone: bool) -> Outcome {
    match outcome {
        Outcome::Gone => Outcome::RemoveFinalizer(RemovalReason::NeverCreated),
        Outcome::Failed(failure) => {
            let refuses = match failure.status.code() {
                Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists | Code::Unimplemented => true,
                Code::Unauthenticated | Code::PermissionDenied => secret_is_gone,
                Code::Canceled
                | Code::Unknown
                | Code::DeadlineExceeded
                | Code::NotFound
                | Code::ResourceExhausted
                | Code::FailedPrecondition
                | Code::Aborted
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
                | Code::Uninitialized => false,
            };
            if refuses {
                tracing::info!(
                    code = %failure.status.code(),
                    "the driver rejects the delete as it rejected the create: nothing left to delete"
                );
                Outcome::RemoveFinalizer(RemovalReason::NeverCreated)
            } else {
                Outcome::Failed(failure)
            }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use cmi_driver::Status;

    use super::*;

    /// A machine whose spec was never valid can be deleted, even if the driver rejects the spec.
    #[test]
    fn a_spec_refused_at_create_and_delete_does_not_keep_the_object() {
        let after = |code, secret_is_gone| {
            let failure = Failure::new(Call::Delete, Status::new(code, "no"));
            of_a_refused_spec(Outcome::Failed(Box::new(failure)), secret_is_gone)
        };
        let released = |outcome| matches!(outcome, Outcome::RemoveFinalizer(RemovalReason::NeverCreated));
        for code in [
            Code::InvalidArgument,
            Code::OutOfRange,
            Code::AlreadyExists,
            Code::Unimplemented,
        ] {
            assert!(released(after(code, false)), "{code}");
        }
        for code in [
            Code::Unavailable,
            Code::Aborted,
            Code::FailedPrecondition,
            Code::Internal,
        ] {
            assert!(!released(after(code, false)), "{code}: something may be there");
        }
        assert!(released(after(Code::Unauthenticated, true)));
        assert!(
            !released(after(Code::Unauthenticated, false)),
            "the credentials can be repaired"
        );
        assert!(released(of_a_refused_spec(Outcome::Gone, false)));
    }
}
