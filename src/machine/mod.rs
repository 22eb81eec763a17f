//! InfraMachine: gather → plan → execute → publish.
//!
//! Layer 2: Kubernetes and the driver's trait, no concrete driver. [`plan`] holds every rule of the contract and is pure;
//! [`object::Object`] is the only place that writes.

mod absence;
mod class;
mod context;
mod events;
#[cfg(test)]
mod fixtures;
mod gather;
mod memory;
mod object;
mod outcome;
mod plan;
mod provision;
mod removal;
mod status;
mod unreadable;
mod update;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use jiff::Timestamp;
use kube::Resource as _;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;

pub use context::{Context, Reference};
pub use memory::{Memory, Suspicion};

use self::class::Stopped;
use self::gather::{Gathered, gather};
use self::memory::{Retry, Until};
use self::object::Object;
use self::outcome::{Failure, Outcome};
use self::plan::{Plan, is_provisioned, is_unsettled, pace, plan};
use self::status::Moment;
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::api::{Guarded, conditions, labels};
use crate::apiserver::Error;
use crate::driver::{self, Code, PowerState, Status, retry};
use crate::identity;
use crate::metrics::{Kind, Outcome as Measured};
use crate::provider::Turn;

/// Stands for a driver's message that may hold what must not be shown.
const UNSAFE_TO_SHOW: &str = "the driver's message is not shown: the bootstrap data, which it may hold, can't be read, so that they can't be taken out";

/// One reconcile of one machine.
pub async fn reconcile(guarded: Arc<Guarded<InfraMachine>>, ctx: Arc<Context>) -> Result<Action, Error> {
    let started = Instant::now();
    let result = match &guarded.0 {
        Ok(machine) => reconcile_machine(machine, &ctx).await,
        Err(invalid) => unreadable::reconcile(invalid, &ctx).await,
    };
    ctx.metrics
        .reconciled(Kind::InfraMachine, measured(&result), started.elapsed());
    result
}

async fn reconcile_machine(queued: &InfraMachine, ctx: &Context) -> Result<Action, Error> {
    let uid = queued.metadata.uid.as_deref().unwrap_or_default();
    let machine = ctx.memory.freshest(uid, || cached(ctx, queued));
    let gathered = gather(ctx, &machine).await;
    let plan = plan(&machine, &gathered.observed());
    let mut object = Object::new(ctx, Arc::clone(&machine));
    // Held until all is published: so many machines come up at a time, whatever the controller's concurrency.
    let mut turn = None;
    let outcome = execute(ctx, &mut object, &gathered, &mut turn, plan).await?;
    publish(ctx, &machine, &mut object, &gathered, outcome).await
}

/// What the cache holds of a machine now: since it was taken out for this reconcile, our own last write may have arrived.
fn cached(ctx: &Context, queued: &InfraMachine) -> Arc<InfraMachine> {
    let meta = &queued.metadata;
    let reference = ObjectRef::new(meta.name.as_deref().unwrap_or_default())
        .within(meta.namespace.as_deref().unwrap_or_default());
    let found = ctx.caches.infra_machines.get(&reference);
    let current = found.as_deref().and_then(|guarded| guarded.0.as_ref().ok());
    // One of the same name that came later is another machine.
    let same = current.filter(|current| current.metadata.uid == meta.uid);
    Arc::new(same.unwrap_or(queued).clone())
}

/// Does what the plan says: driver calls, and the claim that has to come before them.
async fn execute<'a>(
    ctx: &Context,
    object: &mut Object<'_>,
    gathered: &'a Gathered,
    turn: &mut Option<Turn<'a>>,
    plan: Plan,
) -> Result<Outcome, Error> {
    let name = object.get().metadata.name.as_deref().unwrap_or_default();
    tracing::debug!(name, ?plan, "planned");
    if let (Some(share), Some(provider)) = (plan.share(), gathered.provider()) {
        *turn = ctx.turn(object.get(), provider, share);
        if turn.is_none() {
            return Ok(Outcome::Held(ctx.waiting_for_a_turn(object.get())));
        }
    } else {
        // It may have stood in the line for what it does not want any more.
        ctx.providers.withdraw(object.uid());
    }
    let during = plan.during();
    let outcome = match carry_out(ctx, object, turn.as_mut(), plan).await {
        Ok(outcome) => outcome.unless_not_leading(),
        Err(Stopped::Secret(cause)) => Outcome::NoSecrets { during, cause },
        Err(Stopped::Error(error)) => return Err(error),
    };
    Ok(without_bootstrap_data(ctx, object.get(), gathered, outcome).await)
}

async fn carry_out(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: Option<&mut Turn<'_>>,
    plan: Plan,
) -> Result<Outcome, Stopped> {
    match (plan, turn) {
        (Plan::Leave(_), _) => Ok(Outcome::Left),
        (Plan::Hold(mut hold), _) => {
            if let Some(claim) = hold.claim.take() {
                object.claim(&claim).await?;
            }
            Ok(Outcome::Held(hold))
        }
        (Plan::OutOfContact(code, message), _) => Ok(out_of_contact(object.get(), code, message)),
        (Plan::Refuse { invalid, again }, _) => Ok(Outcome::Refused { invalid, again }),
        (
            Plan::Keep {
                reachable,
                fixed,
                again,
            },
            _,
        ) => Ok(Outcome::Kept {
            reachable,
            fixed,
            again,
        }),
        (Plan::Vanish(provider_id), _) => Ok(Outcome::Vanished(provider_id)),
        (Plan::Reappear(provider_id), _) => Ok(Outcome::Provisioned(Box::new(driver::Machine::new(
            provider_id,
            "",
        )))),
        (Plan::Release(release), _) => Ok(Outcome::Released(release)),
        (Plan::Provision(plan), Some(turn)) => provision::provision(ctx, object, turn, *plan).await,
        (Plan::Recheck(plan), Some(turn)) => provision::recheck(ctx, object, turn, *plan).await,
        (Plan::Update(plan), Some(turn)) => update::update(ctx, object, turn, *plan).await,
        (Plan::Delete(plan), Some(turn)) => removal::delete(ctx, object, turn, *plan).await,
        (Plan::Provision(_) | Plan::Recheck(_) | Plan::Update(_) | Plan::Delete(_), None) => {
            Ok(Outcome::Left)
        }
    }
}

/// The outcome without the bootstrap data that a driver may have kept from the create and say in any later call (OPS-11).
/// The guard takes out what a call carries, and only the create carries them.
async fn without_bootstrap_data(
    ctx: &Context,
    machine: &InfraMachine,
    gathered: &Gathered,
    outcome: Outcome,
) -> Outcome {
    let (true, Some(name)) = (outcome.quotes_the_driver(), gathered.bootstrap_secret()) else {
        return outcome;
    };
    match class::bootstrap_data_to_hide(ctx, machine, name).await {
        Ok(secrets) => outcome.map_message(|message| secrets.scrub(message)),
        Err(_) => outcome.map_message(|_| UNSAFE_TO_SHOW.to_owned()),
    }
}

fn out_of_contact(machine: &InfraMachine, code: Code, message: String) -> Outcome {
    let deleting = machine.metadata.deletion_timestamp.is_some();
    let during = if deleting {
        OperationType::Delete
    } else {
        OperationType::Create
    };
    let status = Status::new(code, message);
    Outcome::Failed(Box::new(Failure::out_of_contact(during, status)))
}

/// Writes what came of it, on every path: providerID before status, the finalizer only when the VM is gone.
async fn publish(
    ctx: &Context,
    before: &InfraMachine,
    object: &mut Object<'_>,
    gathered: &Gathered,
    outcome: Outcome,
) -> Result<Action, Error> {
    let uid = object.uid().to_owned();
    let attempts = gathered.attempts(before);
    let wait = wait(before, &outcome, attempts);
    let note = events::of(before, &outcome, attempts);
    // Before any write, which may fail: the call was made, and is not made again before its time.
    hold_back(ctx, &uid, gathered, &outcome, attempts, wait);
    if let Some(vm) = known_vm(before, &outcome) {
        object
            .identify(vm.provider_id.as_str(), &annotations(vm, &outcome))
            .await?;
    } else if let Outcome::Failed(failure) = &outcome
        && let Some(state) = failure.last_known_state()
    {
        object.keep(Some(state)).await?;
    }
    if matches!(outcome, Outcome::Gone | Outcome::Released(_)) {
        object.release().await?;
        ctx.memory.forget(&uid);
    } else {
        let moment = Moment {
            now: Timestamp::now(),
            attempts,
            wait,
        };
        object
            .publish(|machine| status::after(machine, &outcome, moment))
            .await?;
        remember(ctx, &uid, gathered, &outcome, wait);
        ctx.memory.finished(&uid);
    }
    measure(ctx, before, object.get(), gathered);
    if let Some(note) = note {
        ctx.events.publish(before, note).await;
    }
    Ok(wait.map_or_else(Action::await_change, Action::requeue))
}

/// The VM that an outcome is about, when its id may be new.
fn known_vm<'a>(before: &InfraMachine, outcome: &'a Outcome) -> Option<&'a driver::Machine> {
    let vm = match outcome {
        Outcome::Provisioned(vm) => Some(vm.as_ref()),
        Outcome::Failed(failure) if failure.during == OperationType::Create => failure.machine.as_ref(),
        _ => None,
    };
    let known = before.spec.provider_id.as_deref();
    vm.filter(|vm| known.is_none_or(|known| known == vm.provider_id.as_str()))
}

fn annotations(vm: &driver::Machine, outcome: &Outcome) -> Vec<(&'static str, String)> {
    let failed = match outcome {
        Outcome::Failed(failure) => failure.last_known_state(),
        _ => None,
    };
    failed
        .or(vm.last_known_state.as_ref())
        .map(last_known_state)
        .into_iter()
        .collect()
}

fn last_known_state(state: &driver::LastKnownState) -> (&'static str, String) {
    (labels::LAST_KNOWN_STATE, BASE64_STANDARD.encode(state.as_bytes()))
}

/// When the machine is looked at again, if nothing changes before.
fn wait(before: &InfraMachine, outcome: &Outcome, attempts: u32) -> Option<Duration> {
    let uid = before.metadata.uid.as_deref().unwrap_or_default();
    match outcome {
        Outcome::Held(hold) => hold.again,
        Outcome::Failed(failure) => failure.wait(attempts, jitter(uid, attempts)),
        // Secrets are not watched; one that is missing is often only late.
        Outcome::NoSecrets { .. } => Some(retry::backoff(attempts, jitter(uid, attempts))),
        Outcome::Absent { again } | Outcome::Deleting { again, .. } => Some(*again),
        Outcome::Refused { again, .. } | Outcome::Kept { again, .. } => *again,
        Outcome::Provisioned(vm) if vm.power_state == Some(PowerState::Starting) => {
            Some(pace(before, Timestamp::now()))
        }
        // It was asked after before anything else: whatever else there is to do comes now.
        Outcome::Provisioned(_) if is_provisioned(before) => Some(Duration::ZERO),
        Outcome::Updated if is_unsettled(before) => Some(Duration::ZERO),
        Outcome::Left
        | Outcome::Provisioned(_)
        | Outcome::Updated
        | Outcome::Vanished(_)
        | Outcome::Gone
        | Outcome::Released(_) => None,
    }
}

/// A number from 0 to 1 that differs from machine to machine and from attempt to attempt.
fn jitter(uid: &str, attempt: u32) -> f64 {
    let mut hasher = DefaultHasher::new();
    (uid, attempt).hash(&mut hasher);
    f64::from(u16::try_from(hasher.finish() & 0xffff).unwrap_or_default()) / 65536.0
}

/// Remembers when what failed may be tried again.
fn hold_back(
    ctx: &Context,
    uid: &str,
    gathered: &Gathered,
    outcome: &Outcome,
    attempts: u32,
    wait: Option<Duration>,
) {
    let until = if outcome.awaits_another_driver() {
        Some(Until::AnotherDriver(gathered.incarnation()))
    } else {
        wait.map(|wait| Until::Moment(Instant::now() + wait))
    };
    if let (Outcome::Failed(_) | Outcome::NoSecrets { .. }, Some(until)) = (outcome, until) {
        let retry = Retry {
            attempts,
            until,
            inputs: gathered.inputs(),
        };
        ctx.memory.failed(uid, retry);
    }
    if let Outcome::Failed(failure) = outcome
        && failure.doubts_the_vm()
        && gathered.can_ask()
    {
        ctx.memory.suspect(uid, Suspicion::Sign);
    }
}

/// Remembers what is so once the status says it.
fn remember(ctx: &Context, uid: &str, gathered: &Gathered, outcome: &Outcome, wait: Option<Duration>) {
    match outcome {
        Outcome::Provisioned(_) => {
            ctx.memory.succeeded(uid);
            if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
                ctx.memory.rest(uid, Instant::now() + wait);
            }
        }
        Outcome::Updated | Outcome::Vanished(_) => ctx.memory.succeeded(uid),
        Outcome::Kept { .. } if !gathered.can_ask() => ctx.memory.dismiss_sign(uid),
        // What lists said before a pause is old when it ends.
        Outcome::Held(hold) if hold.condition == conditions::PAUSED => ctx.memory.dismiss_lists(uid),
        Outcome::Left
        | Outcome::Held(_)
        | Outcome::Refused { .. }
        | Outcome::Kept { .. }
        | Outcome::Failed(_)
        | Outcome::NoSecrets { .. }
        | Outcome::Absent { .. }
        | Outcome::Deleting { .. }
        | Outcome::Gone
        | Outcome::Released(_) => {}
    }
}

fn measure(ctx: &Context, before: &InfraMachine, after: &InfraMachine, gathered: &Gathered) {
    if !is_provisioned(before)
        && is_provisioned(after)
        && let (Some(provider), Some(created)) = (gathered.provider(), &after.metadata.creation_timestamp)
        && let Ok(took) = Duration::try_from(Timestamp::now().duration_since(created.0))
    {
        ctx.metrics.provisioned(provider.name(), took);
    }
}

fn measured(result: &Result<Action, Error>) -> Measured {
    match result {
        Ok(action) if *action == Action::await_change() => Measured::Success,
        Ok(_) => Measured::Requeue,
        Err(Error::Conflict { .. }) => Measured::Conflict,
        Err(_) => Measured::Error,
    }
}

/// The phases that machines are counted by.
pub const PHASES: [&str; 5] = ["Pending", "Provisioned", "NotReady", "Failed", "Deleting"];

/// The phase of a machine: where it stands in its life, one of [`PHASES`].
pub fn phase(machine: &InfraMachine) -> &'static str {
    let status = machine.status.as_ref();
    let ready = status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY));
    let failed = status.is_some_and(|status| status.failure_reason.is_some());
    match (
        machine.metadata.deletion_timestamp.is_some(),
        failed,
        is_provisioned(machine),
        ready,
    ) {
        (true, ..) => "Deleting",
        (false, true, ..) => "Failed",
        (false, false, true, true) => "Provisioned",
        (false, false, true, false) => "NotReady",
        (false, false, false, _) => "Pending",
    }
}

/// What happens after a reconcile that could not be finished.
#[allow(clippy::needless_pass_by_value)] // the controller's signature
pub fn error_policy(guarded: Arc<Guarded<InfraMachine>>, error: &Error, ctx: Arc<Context>) -> Action {
    let meta = guarded.meta();
    let uid = meta.uid.as_deref().unwrap_or_default();
    let attempt = ctx.memory.erred(uid);
    let name = meta.name.as_deref().unwrap_or_default();
    if matches!(error, Error::Gone { .. }) {
        ctx.memory.forget(uid);
    }
    match error {
        Error::Conflict { .. } | Error::Gone { .. } => tracing::debug!(name, %error, "reconciling again"),
        Error::Api { .. } | Error::Encode { .. } => {
            tracing::warn!(
                name,
                error = error as &dyn std::error::Error,
                attempt,
                "reconciling failed"
            );
        }
    }
    Action::requeue(error.wait(attempt))
}
