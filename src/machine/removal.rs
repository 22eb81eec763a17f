//! Shut down and delete, until the VM is gone.

use std::time::Duration;

use super::Context;
use super::absence::behind_for;
use super::class::{self, Stopped};
use super::object::Object;
use super::outcome::{Failure, Outcome};
use super::plan::Delete;
use crate::api::conditions::reason;
use crate::api::labels;
use crate::apiserver::{Error, InvalidSecret};
use crate::driver::retry::{Call, Next};
use crate::driver::{
    Code, DeleteMachineRequest, GetMachineStatusRequest, MachineClass, Operation, Secrets,
    ShutDownMachineRequest,
};
use crate::identity;
use crate::provider::Turn;

/// Deletes the VM.
///
/// # Guarantees
/// [`Outcome::Gone`] only when the driver, where it can be asked, said NOT_FOUND for as long as it may be behind. A
/// missing Secret does not stop the deletion of a VM that the driver sees without it.
pub async fn delete(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: &Turn<'_>,
    plan: Delete,
) -> Result<Outcome, Stopped> {
    let class = match class::with_credentials(ctx, object.get(), plan.spec.clone()).await {
        Ok(class) => class,
        Err(Stopped::Secret(InvalidSecret::Missing { name, .. })) => {
            let class = MachineClass {
                provider_spec: plan.spec.clone(),
                secrets: Secrets::default(),
            };
            if let Some(failure) = do_without(object, turn, &plan, name, class.clone()).await? {
                return Ok(Outcome::Failed(Box::new(failure)));
            }
            class
        }
        Err(stopped) => return Err(stopped),
    };
    if plan.shut_down
        && let Some(outcome) = shut_down(object, turn, &plan, class.clone()).await?
    {
        return Ok(outcome);
    }
    let Some(failure) = remove(object, turn, &plan, class.clone()).await? else {
        return Ok(confirm_gone(ctx, object, turn, &plan, class).await);
    };
    if failure.next == Next::LookWhetherGone && turn.known_capabilities().offers(Operation::GetMachineStatus)
    {
        return Ok(match confirm_gone(ctx, object, turn, &plan, class).await {
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

/// The Secret with the credentials that the VM was made with is gone. A driver that sees the VM without them needs none, and
/// this is written down: once the VM is deleted it could not be told any more. To a driver that does not see it, it may be
/// gone, or in an account that only the credentials open: that takes somebody who knows.
///
/// One that can't look up is asked to delete, which it answers UNAUTHENTICATED when it needs the credentials.
async fn do_without(
    object: &mut Object<'_>,
    turn: &Turn<'_>,
    plan: &Delete,
    name: String,
    class: MachineClass,
) -> Result<Option<Failure>, Stopped> {
    if !turn.known_capabilities().offers(Operation::GetMachineStatus) {
        return Ok(None);
    }
    match look(object, turn, plan, class).await {
        Ok(true) => {}
        Ok(false) => return Err(InvalidSecret::Needed { name }.into()),
        Err(failure) => return Ok(Some(failure)),
    }
    let none = (labels::SECRET, String::new());
    object
        .annotate("noting that the driver sees the VM without credentials", &[none])
        .await?;
    Ok(None)
}

/// Whether the driver sees the VM.
async fn look(
    object: &Object<'_>,
    turn: &Turn<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Result<bool, Failure> {
    let request = GetMachineStatusRequest {
        machine_name: object.name().to_owned(),
        provider_id: plan.provider_id.clone(),
        class,
    };
    let Err(status) = turn.driver().get_machine_status(request).await else {
        return Ok(true);
    };
    let failure = Failure::new(Call::ConfirmGone, status);
    match failure.next {
        Next::Gone => Ok(false),
        Next::StillThere => Ok(true),
        _ => Err(failure),
    }
}

/// Asks the guest to stop; `None` when the VM may be deleted now.
async fn shut_down(
    object: &mut Object<'_>,
    turn: &Turn<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Result<Option<Outcome>, Error> {
    let request = ShutDownMachineRequest {
        machine_name: object.name().to_owned(),
        provider_id: plan.provider_id.clone(),
        class,
        last_known_state: identity::last_known_state(object.get()),
    };
    let status = match turn.driver().shut_down_machine(request).await {
        Ok(response) => {
            object.keep(response.last_known_state.as_ref()).await?;
            return Ok(None);
        }
        Err(status) => status,
    };
    let failure = Failure::new(Call::ShutDown, status);
    object.keep(failure.last_known_state()).await?;
    Ok(after_shut_down(failure, plan.again))
}

/// What a shut-down that failed leads to; `None` to the deletion. `again` is when to look, where the driver does not say.
fn after_shut_down(failure: Failure, again: Duration) -> Option<Outcome> {
    if failure.next == Next::Delete {
        tracing::info!(code = %failure.status.code(), "the guest can't be shut down; deleting its VM");
        return None;
    }
    if failure.status.code() != Code::Aborted {
        return Some(Outcome::Failed(Box::new(failure)));
    }
    Some(Outcome::Deleting {
        reason: reason::SHUTTING_DOWN,
        message: failure.message(),
        again: failure.asked().unwrap_or(again),
    })
}

async fn remove(
    object: &mut Object<'_>,
    turn: &Turn<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Result<Option<Failure>, Error> {
    let request = DeleteMachineRequest {
        machine_name: object.name().to_owned(),
        provider_id: plan.provider_id.clone(),
        class,
        last_known_state: identity::last_known_state(object.get()),
    };
    let status = match turn.driver().delete_machine(request).await {
        Ok(response) => {
            object.keep(response.last_known_state.as_ref()).await?;
            return Ok(None);
        }
        Err(status) => status,
    };
    let failure = Failure::new(Call::Delete, status);
    Ok((failure.next != Next::Gone).then_some(failure))
}

async fn confirm_gone(
    ctx: &Context,
    object: &Object<'_>,
    turn: &Turn<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Outcome {
    let capabilities = turn.known_capabilities();
    if !capabilities.offers(Operation::GetMachineStatus) {
        return Outcome::Gone;
    }
    match look(object, turn, plan, class).await {
        Err(failure) => Outcome::Failed(Box::new(failure)),
        Ok(true) => {
            ctx.memory.seen(object.uid());
            Outcome::Deleting {
                reason: reason::DELETING,
                message: "the driver accepted the deletion and still sees the VM".to_owned(),
                again: plan.again,
            }
        }
        Ok(false) => match behind_for(ctx, object.uid(), capabilities.consistency_window) {
            None => Outcome::Gone,
            Some(again) => Outcome::Deleting {
                reason: reason::CONFIRMING_DELETION,
                message: "the driver no longer sees the VM; waiting for its consistency window to pass"
                    .to_owned(),
                again,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Status, retry};

    const PACE: Duration = Duration::from_secs(15);

    fn after(status: Status) -> Option<Outcome> {
        after_shut_down(Failure::new(Call::ShutDown, status), PACE)
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
    fn a_guest_that_takes_its_time_is_asked_ever_more_rarely() {
        let stopping = || Status::new(Code::Aborted, "stopping");
        for status in [stopping(), stopping().with_retry_after(Duration::ZERO)] {
            assert!(matches!(
                after(status),
                Some(Outcome::Deleting { again: PACE, .. })
            ));
        }
    }

    #[test]
    fn a_guest_that_cannot_be_asked_to_stop_is_deleted_now() {
        for code in Code::ALL {
            let waits = retry::next(Call::ShutDown, code) == Next::Retry;
            assert_eq!(after(Status::new(code, "no")).is_some(), waits, "{code}");
        }
    }
}
