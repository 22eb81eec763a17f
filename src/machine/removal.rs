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
    self, Code, DeleteMachineRequest, GetMachineStatusRequest, Machine, MachineClass, Operation, PowerState,
    Secrets, ShutDownMachineRequest,
};
use crate::identity;
use crate::provider::Turn;

/// How soon at the earliest a guest that is stopping is asked again, whatever the driver asks for.
const SOONEST: Duration = Duration::from_secs(1);

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
    let class = match class::with_credentials(ctx, object.get(), turn.provider(), plan.spec.clone()).await {
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
    // A driver that has credentials from the provider needs some, and those open another account than the Secret did.
    if turn.provider().has_credentials() {
        return Err(InvalidSecret::Needed { name }.into());
    }
    if !turn.known_capabilities().offers(Operation::GetMachineStatus) {
        return Ok(None);
    }
    match look(object, turn, plan, class).await {
        Ok(true) => {}
        Ok(false) => return Err(InvalidSecret::Needed { name }.into()),
        Err(mut failure) => {
            let said = failure.status.message();
            let message = format!("the Secret `{name}` is gone, and the driver wants what it held: {said}");
            failure.status = failure.status.with_message(message);
            return Ok(Some(failure));
        }
    }
    let none = (labels::SECRET, String::new());
    object
        .annotate("noting that the driver sees the VM without credentials", &[none])
        .await?;
    Ok(None)
}

/// What the driver says of the VM.
async fn read(
    object: &mut Object<'_>,
    turn: &Turn<'_>,
    plan: &Delete,
    class: MachineClass,
) -> driver::Result<Machine> {
    let request = GetMachineStatusRequest {
        machine_name: object.name().to_owned(),
        provider_id: plan.provider_id.clone(),
        class,
    };
    let call = turn.driver().get_machine_status(request);
    object.awaiting(Operation::GetMachineStatus, call).await
}

/// Whether the driver sees the VM.
async fn look(
    object: &mut Object<'_>,
    turn: &Turn<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Result<bool, Failure> {
    let Err(status) = read(object, turn, plan, class).await else {
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
        class: class.clone(),
        last_known_state: identity::last_known_state(object.get()),
    };
    let call = turn.driver().shut_down_machine(request);
    let status = match object.awaiting(Operation::ShutDownMachine, call).await {
        Ok(response) => {
            object.keep(response.last_known_state.as_ref()).await?;
            if !turn.known_capabilities().offers(Operation::GetMachineStatus) {
                return Ok(None);
            }
            let seen = read(object, turn, plan, class).await;
            return Ok(after_acceptance(seen, plan.again));
        }
        Err(status) => status,
    };
    let failure = Failure::new(Call::ShutDown, status);
    object.keep(failure.last_known_state()).await?;
    Ok(after_shut_down(failure, plan.again))
}

/// What a guest leads to that is stopped or has accepted to stop; `None` to the deletion. OK of a shut-down means either
/// (CMI-127), and a guest that has only accepted needs its time. One whose power state can't be seen does not get it.
fn after_acceptance(seen: driver::Result<Machine>, again: Duration) -> Option<Outcome> {
    let power = match seen {
        Ok(machine) => machine.power_state,
        Err(status) => {
            let Some(machine) = status.machine() else {
                let message = format!("looking whether the guest has stopped: {}", status.message());
                return after_shut_down(Failure::new(Call::ShutDown, status.with_message(message)), again);
            };
            machine.power_state
        }
    };
    match power? {
        power @ (PowerState::Starting | PowerState::Running | PowerState::Stopping) => {
            Some(Outcome::Deleting {
                reason: reason::SHUTTING_DOWN,
                message: format!("the guest has accepted to stop, and its VM is {}", power.name()),
                again,
            })
        }
        PowerState::Stopped | PowerState::Failed => None,
    }
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
        again: failure.asked().map_or(again, |asked| asked.max(SOONEST)),
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
    let call = turn.driver().delete_machine(request);
    let status = match object.awaiting(Operation::DeleteMachine, call).await {
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
    object: &mut Object<'_>,
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

    fn seen(power: Option<PowerState>) -> Machine {
        let mut machine = Machine::new("simulated://zone-a/1".parse().unwrap(), "a");
        machine.power_state = power;
        machine
    }

    /// CMI-127: OK says that it is stopped, or that it will.
    #[test]
    fn a_guest_that_has_accepted_to_stop_and_still_runs_gets_its_time() {
        for power in [PowerState::Starting, PowerState::Running, PowerState::Stopping] {
            let uninitialized = Status::new(Code::Uninitialized, "not yet").with_machine(seen(Some(power)));
            for seen in [Ok(seen(Some(power))), Err(uninitialized)] {
                assert!(
                    matches!(
                        after_acceptance(seen, PACE),
                        Some(Outcome::Deleting {
                            reason: reason::SHUTTING_DOWN,
                            again: PACE,
                            ..
                        })
                    ),
                    "{power:?}"
                );
            }
        }
    }

    #[test]
    fn a_guest_that_is_stopped_or_that_nobody_can_see_is_deleted_now() {
        for power in [None, Some(PowerState::Stopped), Some(PowerState::Failed)] {
            assert!(after_acceptance(Ok(seen(power)), PACE).is_none(), "{power:?}");
        }
        let gone = Status::new(Code::NotFound, "there is none");
        assert!(after_acceptance(Err(gone), PACE).is_none());
        let outage = Status::new(Code::Unavailable, "it can't be reached");
        assert!(matches!(
            after_acceptance(Err(outage), PACE),
            Some(Outcome::Failed(_))
        ));
    }

    #[test]
    fn a_guest_that_cannot_be_asked_to_stop_is_deleted_now() {
        for code in Code::ALL {
            let waits = retry::next(Call::ShutDown, code) == Next::Retry;
            assert_eq!(after(Status::new(code, "no")).is_some(), waits, "{code}");
        }
    }
}
