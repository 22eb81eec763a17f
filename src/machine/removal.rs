//! Shut down and delete, until the VM is gone.

use std::time::Instant;

use super::Context;
use super::class;
use super::object::Object;
use super::outcome::{Failure, Outcome};
use super::plan::Delete;
use super::provision::{last_known_state, machine_name};
use crate::api::conditions::reason;
use crate::api::v1alpha1::OperationType;
use crate::apiserver::Error;
use crate::driver::retry::{self, Next};
use crate::driver::{
    Code, DeleteMachineRequest, GetMachineStatusRequest, MachineClass, Operation, Secrets,
    ShutDownMachineRequest,
};
use crate::provider::Provider;

/// Deletes the VM.
///
/// # Guarantees
/// [`Outcome::Gone`] only when the driver, where it can be asked, said NOT_FOUND for as long as it may be behind. A
/// missing Secret does not stop a deletion: the driver says whether it can do without.
pub async fn delete(
    ctx: &Context,
    object: &mut Object<'_>,
    provider: &Provider,
    plan: Delete,
) -> Result<Outcome, Error> {
    let class = match class::with_credentials(ctx, object.get(), plan.spec.clone()).await? {
        Ok(class) => class,
        Err(cause) => {
            tracing::warn!(%cause, "deleting without credentials");
            MachineClass {
                provider_spec: plan.spec.clone(),
                secrets: Secrets::default(),
            }
        }
    };
    if plan.shut_down
        && let Some(outcome) = shut_down(object, provider, &plan, class.clone()).await?
    {
        return Ok(outcome);
    }
    let Some(failure) = remove(object, provider, &plan, class.clone()).await? else {
        return Ok(confirm_gone(ctx, object, provider, &plan, class).await);
    };
    if failure.status.code() == Code::InvalidArgument
        && provider.capabilities().offers(Operation::GetMachineStatus)
    {
        // The driver refuses the spec itself, as it did the create. Where it still answers that there is no VM, nothing
        // is left to be deleted; whatever else it answers, the refusal stands.
        return Ok(match confirm_gone(ctx, object, provider, &plan, class).await {
            gone @ (Outcome::Gone
            | Outcome::Deleting {
                reason: reason::CONFIRMING_DELETION,
                ..
            }) => gone,
            _ => Outcome::Failed(Box::new(failure)),
        });
    }
    Ok(Outcome::Failed(Box::new(failure)))
}

/// Asks the guest to stop; `None` when the VM may be deleted now.
async fn shut_down(
    object: &mut Object<'_>,
    provider: &Provider,
    plan: &Delete,
    class: MachineClass,
) -> Result<Option<Outcome>, Error> {
    let request = ShutDownMachineRequest {
        machine_name: machine_name(object),
        provider_id: plan.provider_id.clone(),
        class,
        last_known_state: last_known_state(object),
    };
    let status = match provider.driver().shut_down_machine(request).await {
        Ok(response) => {
            object.keep(response.last_known_state.as_ref()).await?;
            return Ok(None);
        }
        Err(status) => status,
    };
    let failure = Failure::new(Operation::ShutDownMachine, OperationType::Delete, status);
    object.keep(failure.last_known_state()).await?;
    Ok(after_shut_down(failure))
}

/// What a shut-down that failed leads to; `None` to the deletion.
///
/// Only what passes by itself is waited for. The guest's time is a courtesy: one that can't be asked to stop is deleted
/// now, rather than when a person has repaired what keeps it from being asked.
fn after_shut_down(failure: Failure) -> Option<Outcome> {
    match (failure.next, failure.status.code()) {
        (Next::Retry, Code::Aborted) => Some(Outcome::Deleting {
            reason: reason::SHUTTING_DOWN,
            message: failure.message(),
            again: failure.wait(1, 0.0).unwrap_or(retry::FIRST_BACKOFF),
        }),
        (Next::Retry, _) => Some(Outcome::Failed(Box::new(failure))),
        (
            Next::Initialize
            | Next::AwaitCapacity
            | Next::AwaitPerson
            | Next::AwaitDriver
            | Next::Fallback
            | Next::Terminal
            | Next::Create
            | Next::Gone
            | Next::LookUp,
            _,
        ) => {
            tracing::info!(status = %failure.status, "the guest can't be shut down; deleting its VM");
            None
        }
    }
}

async fn remove(
    object: &mut Object<'_>,
    provider: &Provider,
    plan: &Delete,
    class: MachineClass,
) -> Result<Option<Failure>, Error> {
    let request = DeleteMachineRequest {
        machine_name: machine_name(object),
        provider_id: plan.provider_id.clone(),
        class,
        last_known_state: last_known_state(object),
    };
    let status = match provider.driver().delete_machine(request).await {
        Ok(response) => {
            object.keep(response.last_known_state.as_ref()).await?;
            return Ok(None);
        }
        Err(status) => status,
    };
    let failure = Failure::new(Operation::DeleteMachine, OperationType::Delete, status);
    Ok((failure.next != Next::Gone).then_some(failure))
}

async fn confirm_gone(
    ctx: &Context,
    object: &Object<'_>,
    provider: &Provider,
    plan: &Delete,
    class: MachineClass,
) -> Outcome {
    let capabilities = provider.capabilities();
    if !capabilities.offers(Operation::GetMachineStatus) {
        return Outcome::Gone;
    }
    let request = GetMachineStatusRequest {
        machine_name: machine_name(object),
        provider_id: plan.provider_id.clone(),
        class,
    };
    let there = match provider.driver().get_machine_status(request).await {
        Ok(_) => true,
        Err(status) => {
            let failure = Failure::new(Operation::GetMachineStatus, OperationType::Delete, status);
            match failure.next {
                Next::Create => false,
                Next::Initialize => true,
                // Not offered was asked before: a driver that offers the call and does not answer it says nothing.
                Next::Fallback
                | Next::Retry
                | Next::AwaitCapacity
                | Next::AwaitPerson
                | Next::AwaitDriver
                | Next::Terminal
                | Next::Gone
                | Next::LookUp => return Outcome::Failed(Box::new(failure)),
            }
        }
    };
    if there {
        ctx.memory.seen(object.uid());
        let message = "the driver accepted the deletion and still sees the VM".to_owned();
        return Outcome::Deleting {
            reason: reason::DELETING,
            message,
            again: retry::FIRST_BACKOFF,
        };
    }
    let absent_for = ctx.memory.absent_for(object.uid(), Instant::now());
    let Some(again) = capabilities
        .consistency_window
        .checked_sub(absent_for)
        .filter(|left| !left.is_zero())
    else {
        return Outcome::Gone;
    };
    Outcome::Deleting {
        reason: reason::CONFIRMING_DELETION,
        message: "the driver does not see the VM any more; waiting until it can't be behind".to_owned(),
        again,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::driver::Status;

    fn after(status: Status) -> Option<Outcome> {
        after_shut_down(Failure::new(
            Operation::ShutDownMachine,
            OperationType::Delete,
            status,
        ))
    }

    #[test]
    fn a_guest_that_is_stopping_is_asked_again_when_the_driver_says() {
        let wait = Duration::from_secs(9);
        let outcome = after(Status::new(Code::Aborted, "stopping").with_retry_after(wait));
        assert!(matches!(
            outcome,
            Some(Outcome::Deleting { reason: reason::SHUTTING_DOWN, again, .. }) if again == wait
        ));
    }

    #[test]
    fn a_guest_that_cannot_be_asked_to_stop_does_not_hold_its_deletion_up() {
        for code in Code::ALL {
            let transient = retry::next(Operation::ShutDownMachine, code) == Next::Retry;
            assert_eq!(after(Status::new(code, "no")).is_some(), transient, "{code}");
        }
    }
}
