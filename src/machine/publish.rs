//! Writes and records the outcome of a plan, and publishes its events.

mod events;
pub mod phase;

use std::time::Duration;

use tokio::time::Instant;

use super::Context;
use super::gather::Gathered;
use super::object::Object;
use super::outcome::Outcome;
use super::plan::poll_interval;
use super::status::{self, RetryTiming};
use crate::api::identity::driver_name;
use crate::api::retry::jitter;
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::api::wall_clock;
use crate::api::{ObjectMetaExt as _, conditions};
use crate::apiserver::Error;
use crate::driver::ConfiguredDriver;
use crate::reconcile::Action;
use crate::reconcile::runtime_state::{LookUpHint, Retry, RetryCondition, RetryTrigger, UnimplementedCall};
use cmi_driver::Operation;

/// Writes and records the outcome.
pub async fn publish(
    ctx: &Context,
    before: &InfraMachine,
    object: &mut Object<'_>,
    gathered: &Gathered,
    mut outcome: Outcome,
) -> Result<Action, Error> {
    if let Some(vm) = outcome.vm_mut() {
        let shown = object.get().status.as_ref();
        let shown = shown.map_or(&[][..], |status| &status.addresses);
        let rules = gathered.address_rules();
        vm.addresses = rules.after_answer(shown, &vm.addresses, vm.power_state);
    }
    let attempts = gathered.attempts(before);
    let wait = wait(before, &outcome, attempts);
    let timing = RetryTiming {
        now: wall_clock::now(),
        attempts,
        wait,
        inputs: gathered.observed.inputs,
    };
    let retry = retry_of(gathered, &outcome, timing);
    write(ctx, before, object, gathered, &outcome, timing).await?;
    // Recorded once the status shows it: the call is not repeated early, so nothing else would report it.
    if let Some(retry) = retry {
        ctx.states.failed(object.uid(), gathered.hint(), retry);
    }
    hint(ctx, object.uid(), gathered, &outcome);
    Ok(wait.map_or_else(Action::await_change, Action::requeue))
}

/// Writes the outcome. The providerID is written before the status. The finalizer is removed only when the VM
/// is gone.
async fn write(
    ctx: &Context,
    before: &InfraMachine,
    object: &mut Object<'_>,
    gathered: &Gathered,
    outcome: &Outcome,
    timing: RetryTiming,
) -> Result<(), Error> {
    let uid = object.uid().to_owned();
    let event = events::of(before, outcome, timing.attempts);
    if let Some(vm) = known_vm(before, outcome) {
        object
            .patch_provider_id(
                vm.provider_id.as_str(),
                outcome.last_known_state().or(vm.last_known_state.as_ref()),
            )
            .await?;
    } else {
        object.record_last_known_state(outcome.last_known_state()).await?;
    }
    if matches!(outcome, Outcome::Gone | Outcome::RemoveFinalizer(_)) {
        object.remove_finalizer().await?;
        ctx.states.forget(&uid);
    } else {
        let status = |machine: &InfraMachine| status::after(machine, outcome, timing);
        match outcome {
            Outcome::Failed(_) | Outcome::AwaitingCapacity { .. } => object.insist_on_status(status).await?,
            _ => object.patch_status(status).await?,
        }
        record_published(ctx, object.get(), gathered, outcome);
        ctx.failures.forget(&uid);
    }
    phase::measure(ctx, before, object.get(), gathered);
    if let Some(event) = event {
        let driver = gathered.configured_driver().map(ConfiguredDriver::name);
        let driver = driver.map_or_else(|| driver_name(before), str::to_owned);
        let next_try = timing.wait.and_then(|wait| timing.now.checked_add(wait).ok());
        ctx.events.record_failure(before, &driver, next_try, event).await;
    }
    Ok(())
}

/// Returns the VM of an outcome if its id may be new.
fn known_vm<'a>(before: &InfraMachine, outcome: &'a Outcome) -> Option<&'a cmi_driver::Machine> {
    let vm = match outcome {
        Outcome::Provisioned(vm) => Some(vm.as_ref()),
        Outcome::Failed(failure) if failure.during == OperationType::Create => failure.machine.as_ref(),
        _ => None,
    };
    let known = before.spec.provider_id.as_deref();
    vm.filter(|vm| known.is_none_or(|known| known == vm.provider_id.as_str()))
}

/// Returns when to requeue the machine if nothing changes earlier.
fn wait(before: &InfraMachine, outcome: &Outcome, attempts: u32) -> Option<Duration> {
    let uid = before.metadata.uid();
    match outcome {
        Outcome::Blocked(block) => block.requeue_after,
        Outcome::Failed(failure) => {
            let jitter = jitter(uid, attempts);
            failure.disposition.wait(&failure.status, attempts, jitter)
        }
        Outcome::Deleting { requeue_after, .. }
        | Outcome::Queued { requeue_after }
        | Outcome::AwaitingCapacity { requeue_after, .. } => Some(*requeue_after),
        Outcome::Unchanged(requeue_after)
        | Outcome::Waiting(requeue_after)
        | Outcome::Refused { requeue_after, .. }
        | Outcome::UpToDate { requeue_after, .. } => *requeue_after,
        // The remaining steps follow now. The watch may show none of this reconcile's writes.
        Outcome::Provisioned(_) if before.spec.provider_id.is_some() => Some(Duration::ZERO),
        Outcome::Updated => Some(Duration::ZERO),
        Outcome::NotSupported(_)
        | Outcome::Provisioned(_)
        | Outcome::Vanished(_)
        | Outcome::Gone
        | Outcome::RemoveFinalizer(_) => None,
    }
}

/// Returns when a failed call may be retried. Returns `None` if there is no wait.
fn retry_of(gathered: &Gathered, outcome: &Outcome, timing: RetryTiming) -> Option<Retry> {
    let (create, attempts) = (OperationType::Create, timing.attempts);
    let (during, attempts, trigger) = match outcome {
        Outcome::Failed(failure) => (failure.during, attempts, failure.retry_trigger()),
        Outcome::NotSupported(_) => (create, attempts, RetryTrigger::Other),
        // The driver was not called.
        Outcome::AwaitingCapacity { .. } => (create, attempts.saturating_sub(1), RetryTrigger::Capacity),
        _ => return None,
    };
    let until = match outcome.awaits_another_driver() {
        Some(operation) => RetryCondition::AnotherDriver(UnimplementedCall {
            connection_generation: gathered.observed.connection_generation,
            operation,
        }),
        None => timing.wait.map_or(RetryCondition::Change, |wait| {
            RetryCondition::Time(Instant::now() + wait)
        }),
    };
    Some(Retry {
        during,
        attempts,
        trigger,
        until,
        inputs: timing.inputs,
    })
}

/// Requests a look-up of the VM if the answer is a reason to.
fn hint(ctx: &Context, uid: &str, gathered: &Gathered, outcome: &Outcome) {
    if let Outcome::Failed(failure) = outcome
        && failure.calls_for_look_up()
        && gathered.can_ask()
    {
        ctx.states.hint(uid, LookUpHint::Signal);
    }
}

/// Updates the runtime state after the status was written.
fn record_published(ctx: &Context, machine: &InfraMachine, gathered: &Gathered, outcome: &Outcome) {
    let uid = machine.metadata.uid();
    match outcome {
        Outcome::Provisioned(_) => {
            ctx.states.found(uid, gathered.hint());
            if let Some(interval) = poll_interval(machine, wall_clock::now()) {
                ctx.states.settle(uid, Instant::now() + interval);
            }
        }
        Outcome::Updated | Outcome::Vanished(_) => {
            ctx.states.succeeded(uid, gathered.hint());
        }
        Outcome::UpToDate { .. } if !gathered.can_ask() => {
            ctx.states.drop_signal(uid, gathered.hint());
        }
        // After a pause, list results from before it are stale. The pause has cleared the published wait.
        Outcome::Blocked(block) if block.condition == conditions::PAUSED => {
            ctx.states.drop_list_hint(uid);
            ctx.states.drop_wait(uid);
        }
        // The VM exists. This answers the hint, and the driver has no better answer.
        Outcome::NotSupported(Operation::InitializeMachine) => {
            ctx.states.drop_signal(uid, gathered.hint());
            ctx.states.drop_list_hint(uid);
        }
        _ => {}
    }
}
