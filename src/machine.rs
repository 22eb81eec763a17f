//! InfraMachine: gather → plan → execute → publish.
//!
//! The controller knows Kubernetes and the driver trait, but no concrete driver. [`mod@plan`] decides and is
//! pure. Only [`object::Object`] writes the machine.

mod claims;
mod context;
mod execute;
#[cfg(test)]
mod fakes;
#[cfg(test)]
mod fixtures;
mod gather;
mod invalid_object;
mod object;
mod outcome;
mod plan;
mod publish;
mod status;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

pub use context::{Context, Reference};
pub use publish::phase::{phase, phase_reason};

use kube::Resource as _;

use self::execute::execute;
use self::gather::{Gathered, gather};
use self::object::{HasStatus, Object};
use self::plan::{Plan, RequiredPolicyCheck, plan};
use self::publish::publish;
use crate::admission::Enforcement;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::Error;
use crate::reconcile::{self, Action};
use crate::telemetry::metrics::ControllerName;

/// Reconciles one machine.
pub async fn reconcile(object: &DeserializeGuard<InfraMachine>, ctx: &Context) -> Result<Action, Error> {
    let (queued, has_status) = match &object.0 {
        Ok(machine) => (Cow::Borrowed(machine), HasStatus::Yes),
        Err(invalid) => match invalid_object::to_delete(invalid, ctx).await? {
            Some(machine) => (Cow::Owned(machine), HasStatus::No),
            None => return Ok(Action::await_change()),
        },
    };
    let machine = ctx.states.newest(queued.metadata.uid(), || cached(ctx, &queued));
    let (gathered, plan) = gather_and_plan(ctx, &machine).await?;
    let mut object = Object::new(ctx, Arc::clone(&machine), has_status);
    let (outcome, _permit) = execute(ctx, &mut object, &gathered, plan).await?;
    let outcome = claims::released(ctx, &mut object, outcome).await?;
    publish(ctx, &machine, &mut object, &gathered, outcome).await
}

/// Reads the state of a machine and plans the next action.
async fn gather_and_plan(ctx: &Context, machine: &InfraMachine) -> Result<(Gathered, Plan), Error> {
    let mut gathered = gather(ctx, machine).await;
    let mut next = plan(machine, &gathered.observed);
    if matches!(next, Plan::ReadClaims) {
        next = match claims::read(ctx, machine).await? {
            Ok(claims) => {
                gathered.observed.claims = Some(claims);
                plan(machine, &gathered.observed)
            }
            Err(refused) => refused.into(),
        };
    }
    let next = check_policies(ctx, machine, &gathered, next).await;
    Ok((gathered, next))
}

/// Returns the plan. Returns a wait instead when the plan depends on an identity that may be forged.
async fn check_policies(ctx: &Context, machine: &InfraMachine, gathered: &Gathered, plan: Plan) -> Plan {
    let enforcement = match plan.required_policy_check() {
        RequiredPolicyCheck::None => return plan,
        RequiredPolicyCheck::Cached => ctx.policies.last_enforcement(),
        RequiredPolicyCheck::Fresh => ctx.policies.enforcement_since(gathered.observed.instant).await,
    };
    match enforcement {
        Enforcement::InForce => plan,
        Enforcement::NotInForce(why) => plan::not_in_force(machine, &plan, &why),
    }
}

/// Returns the cached version of a machine. The cache may have received our own last write after the machine
/// was queued.
fn cached(ctx: &Context, queued: &InfraMachine) -> Arc<InfraMachine> {
    let found = ctx.caches.infra_machines.current(&queued.metadata);
    let current = found.as_deref().and_then(|object| object.0.as_ref().ok());
    Arc::new(current.unwrap_or(queued).clone())
}

/// Returns when to retry a reconcile that failed.
pub fn error_policy(object: &DeserializeGuard<InfraMachine>, error: &Error, ctx: &Context) -> Action {
    if matches!(error, Error::Gone { .. }) {
        ctx.states.forget(object.meta().uid());
    }
    reconcile::error_policy(ControllerName::InfraMachine, object, error, &ctx.failures)
}
