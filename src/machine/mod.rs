//! InfraMachine: gather → plan → execute → publish.
//!
//! Layer 2: Kubernetes and the driver's trait, no concrete driver. [`plan`] holds every rule of the contract
//! and is pure; [`object::Object`] is the only place that writes.

mod absence;
mod class;
mod context;
mod erased;
mod events;
#[cfg(test)]
mod fixtures;
mod gather;
mod initialization;
mod jitter;
mod look_up;
mod object;
mod outcome;
mod phase;
mod plan;
mod provision;
mod publish;
mod recheck;
mod removal;
mod runtime_state;
mod status;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trial;
mod unanswered;
mod unreadable;
mod update;

use std::sync::Arc;
use std::time::Duration;

use kube::Resource as _;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;

pub use context::{Context, Reference};
pub use erased::{is_erased, remove_vm};
pub use phase::{PHASES, phase};
pub use runtime_state::{LookUpHint, RuntimeStates};

use self::class::Stopped;
use self::gather::{Gathered, gather};
use self::object::Object;
use self::outcome::{Failure, Outcome};
use self::plan::{Plan, Trust, plan};
use self::publish::{publish, write};
use crate::admission::Enforcement;
use crate::api::DeserializeGuard;
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::apiserver::Error;
use crate::configured_driver::Permit;
use crate::metrics::Kind;
use crate::reconciler;
use cmi_driver::{Code, Status};

/// Stands for a driver's message that may hold what must not be shown.
const UNSAFE_TO_SHOW: &str =
    "the driver's message is withheld: it may contain bootstrap data, which could not be read to remove it";

/// One reconcile of one machine.
pub async fn reconcile(
    guarded: Arc<DeserializeGuard<InfraMachine>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let reconcile = Box::pin(async {
        match &guarded.0 {
            Ok(machine) => reconcile_machine(machine, &ctx).await,
            Err(invalid) => unreadable::reconcile(invalid, &ctx).await,
        }
    });
    reconciler::run_one(
        Kind::InfraMachine,
        &ctx.metrics,
        &ctx.drivers,
        &*guarded,
        reconcile,
    )
    .await
}

async fn reconcile_machine(queued: &InfraMachine, ctx: &Context) -> Result<Action, Error> {
    let uid = queued.metadata.uid.as_deref().unwrap_or_default();
    let machine = ctx.states.newest(uid, || cached(ctx, queued));
    let gathered = gather(ctx, &machine).await;
    let plan = plan(&machine, &gathered.observed());
    let plan = guarded(ctx, &machine, &gathered, plan).await;
    let mut object = Object::new(ctx, Arc::clone(&machine));
    if let Some((unpublished, moment)) = gathered.unpublished().filter(|_| plan.is_idle()) {
        write(ctx, &machine, &mut object, &gathered, &unpublished, moment).await?;
        // What the plan has to say comes now.
        return Ok(Action::requeue(Duration::ZERO));
    }
    // Held until all is published: so many machines come up at a time, whatever the controller's concurrency.
    let mut permit = None;
    let outcome = execute(ctx, &mut object, &gathered, &mut permit, plan).await?;
    publish(ctx, &machine, &mut object, &gathered, outcome).await
}

/// The plan, or a wait in its place where it trusts an identity that may be forged.
async fn guarded(ctx: &Context, machine: &InfraMachine, gathered: &Gathered, plan: Plan) -> Plan {
    let enforcement = match plan.trust() {
        Trust::Nothing => return plan,
        Trust::LastCheck => ctx.guard.last(),
        Trust::CheckSinceRead => ctx.guard.since(gathered.read_before()).await,
    };
    match enforcement {
        Enforcement::InForce => plan,
        Enforcement::Unguarded(why) => plan::unguarded(machine, &plan, &why),
    }
}

/// What the cache holds of a machine now: since it was taken out for this reconcile, our own
/// last write may have arrived.
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

/// Does what the plan says: driver calls, and the ownership that has to be written before them.
async fn execute<'a>(
    ctx: &Context,
    object: &mut Object<'_>,
    gathered: &'a Gathered,
    permit: &mut Option<Permit<'a>>,
    plan: Plan,
) -> Result<Outcome, Error> {
    let name = object.get().metadata.name.as_deref().unwrap_or_default();
    tracing::debug!(name, ?plan, "planned");
    if let (Some(priority), Some(driver)) = (plan.priority(), gathered.configured_driver()) {
        *permit = ctx.permit(object.get(), driver, priority);
        if permit.is_none() {
            return Ok(ctx.waiting_for_a_permit(object.get(), driver));
        }
    }
    let during = plan.during();
    let outcome = match carry_out(ctx, object, permit.as_mut(), plan).await {
        Ok(outcome) => outcome.unless_not_leading(),
        Err(Stopped::Secret(cause)) => Outcome::NoSecrets { during, cause },
        Err(Stopped::Error(error)) => return Err(error),
    };
    Ok(without_bootstrap_data(ctx, object.get(), gathered, outcome).await)
}

async fn carry_out(
    ctx: &Context,
    object: &mut Object<'_>,
    permit: Option<&mut Permit<'_>>,
    plan: Plan,
) -> Result<Outcome, Stopped> {
    match (plan, permit) {
        (Plan::NoOp(_), _) => Ok(Outcome::NoOp),
        (Plan::Requeue(again), _) => Ok(Outcome::Requeue(again)),
        (Plan::Blocked(mut block), _) => {
            if let Some(ownership) = block.ownership.take() {
                object.ensure_finalizer_and_identity(&ownership).await?;
            }
            if block.unblocks_move {
                object.unblock_move().await?;
            }
            Ok(Outcome::Blocked(block))
        }
        (Plan::Waiting(again), _) => Ok(Outcome::Waiting(again)),
        (Plan::RestoreFinalizer(ownership), _) => {
            object.ensure_finalizer_and_identity(&ownership).await?;
            tracing::warn!(
                name = object.get().metadata.name,
                "a machine that may have a VM has lost its finalizer; it is written again"
            );
            // What was written leads to the next reconcile.
            Ok(Outcome::Waiting(None))
        }
        (Plan::CapabilitiesUnknown(code, message), _) => {
            Ok(capabilities_unknown(object.get(), code, message))
        }
        (Plan::Refused { invalid, again }, _) => Ok(Outcome::Refused { invalid, again }),
        (
            Plan::UpToDate {
                reachable,
                not_updatable,
                again,
            },
            _,
        ) => Ok(Outcome::UpToDate {
            reachable,
            not_updatable,
            again,
        }),
        (Plan::Vanished(provider_id), _) => Ok(Outcome::Vanished(provider_id)),
        (Plan::Reappeared(provider_id), _) => Ok(Outcome::Provisioned(Box::new(cmi_driver::Machine::new(
            provider_id,
            "",
        )))),
        (Plan::RemoveFinalizer(release), _) => Ok(Outcome::RemoveFinalizer(release)),
        (Plan::Provision(plan), Some(permit)) => provision::provision(ctx, object, permit, *plan).await,
        (Plan::Recheck(plan), Some(permit)) => recheck::recheck(ctx, object, permit, *plan).await,
        (Plan::Update(plan), Some(permit)) => update::update(ctx, object, permit, *plan).await,
        (Plan::Delete(plan), Some(permit)) => removal::delete(ctx, object, permit, *plan).await,
        (Plan::Provision(_) | Plan::Recheck(_) | Plan::Update(_) | Plan::Delete(_), None) => {
            Ok(Outcome::NoOp)
        }
    }
}

/// The outcome without the bootstrap data that a driver may have kept from the create and say in any later
/// call (OPS-11). The guard takes out what a call carries, and only the create carries them.
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

fn capabilities_unknown(machine: &InfraMachine, code: Code, message: String) -> Outcome {
    let deleting = machine.metadata.deletion_timestamp.is_some();
    let during = if deleting {
        OperationType::Delete
    } else {
        OperationType::Create
    };
    let status = Status::new(code, message);
    Outcome::Failed(Box::new(Failure::capabilities_unknown(during, status)))
}

/// What happens after a reconcile that could not be finished.
#[allow(clippy::needless_pass_by_value)] // the controller's signature
pub fn error_policy(
    guarded: Arc<DeserializeGuard<InfraMachine>>,
    error: &Error,
    ctx: Arc<Context>,
) -> Action {
    let uid = guarded.meta().uid.as_deref().unwrap_or_default();
    let attempt = ctx.states.count_error(uid);
    if matches!(error, Error::Gone { .. }) {
        ctx.states.forget(uid);
    }
    reconciler::requeue(Kind::InfraMachine, &*guarded, error, attempt)
}
