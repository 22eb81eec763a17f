//! Executes a plan: calls the driver, and writes the record before each call with side effects.

mod adopt;
mod confirm_deletion;
mod delete;
mod initialize;
mod look_up;
mod provision;
mod refresh;
mod shut_down;
mod update;
mod vm;

use super::gather::Gathered;
use super::object::Object;
use super::outcome::{Failure, Outcome};
use super::plan::{DriverPlan, Plan};
use super::{Context, claims};
use crate::api::v1alpha1::InfraMachine;
use crate::api::{ObjectMetaExt as _, conditions};
use crate::apiserver::secrets::without_bootstrap_data;
use crate::apiserver::{Error, InvalidSecret};
use crate::driver::Permit;

/// Why a plan was not completed.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The secrets can't be assembled. The status reports this.
    #[error("cannot assemble the secrets")]
    Secret(#[from] InvalidSecret),
    /// The reconcile could not be completed.
    #[error("the reconcile cannot continue")]
    Unfinished(#[from] Error),
}

/// Executes a plan. Returns its outcome and its permit, which is held until the outcome is published. This
/// limits how many machines are provisioned concurrently.
pub async fn execute<'a>(
    ctx: &Context,
    object: &mut Object<'_>,
    gathered: &'a Gathered,
    plan: Plan,
) -> Result<(Outcome, Option<Permit<'a>>), Error> {
    tracing::debug!(name = object.name(), ?plan, "planned");
    let plan = match plan {
        Plan::CallDriver(plan) => plan,
        Plan::Outcome(mut outcome) => {
            write_before(object, &mut outcome).await?;
            return Ok((outcome, None));
        }
        // The writes trigger the next reconcile.
        Plan::RestoreFinalizer => {
            object.restore_finalizer().await?;
            let name = object.name();
            tracing::warn!(
                name,
                "the finalizer of a machine with a VM was removed; added it again"
            );
            return Ok((Outcome::Waiting(None), None));
        }
        Plan::ReadClaims => return Ok((Outcome::Unchanged(None), None)),
        Plan::Claim(plan) => {
            let wait = claims::claim(ctx, object, *plan).await?;
            return Ok((wait.into(), None));
        }
        Plan::ReportInPlaceUpdate => {
            object.record_in_place_update().await?;
            return Ok((Outcome::Waiting(None), None));
        }
    };
    let Some(driver) = gathered.configured_driver() else {
        return Ok((Outcome::Unchanged(None), None));
    };
    let (namespace, waker) = (object.get().metadata.namespace(), ctx.waker(object.get()));
    let Some(mut permit) = driver.try_acquire(plan.priority(), object.uid(), namespace, waker) else {
        return Ok((ctx.waiting_for_a_permit(object.get(), driver), None));
    };
    let during = plan.during();
    let mut executor = Executor {
        ctx,
        object: &mut *object,
        permit: &mut permit,
    };
    let called = match plan {
        DriverPlan::Provision(plan) => executor.provision(*plan).await,
        DriverPlan::Adopt(plan) => executor.adopt(*plan).await,
        DriverPlan::Refresh(plan) => executor.refresh(*plan).await,
        DriverPlan::Update(plan) => executor.update(*plan).await,
        DriverPlan::Delete(plan) => executor.delete(*plan).await,
    };
    let outcome = match called {
        Ok(outcome) => outcome.unless_not_leading(),
        Err(ExecuteError::Secret(cause)) => Failure::no_secrets(during, &cause).into(),
        Err(ExecuteError::Unfinished(error)) => return Err(error),
    };
    let outcome = redacted(ctx, object.get(), gathered, outcome).await;
    Ok((outcome, Some(permit)))
}

/// Writes the metadata of a blocked machine. The caller publishes the status.
async fn write_before(object: &mut Object<'_>, outcome: &mut Outcome) -> Result<(), Error> {
    let Outcome::Blocked(block) = outcome else {
        return Ok(());
    };
    if let Some(record) = block.record.take() {
        object.own(&record).await?;
    }
    // clusterctl pauses a Cluster before it moves it, and then waits for each machine. No call is in flight.
    if block.condition == conditions::PAUSED {
        object.unblock_move().await?;
    }
    Ok(())
}

/// Executes a plan that calls the driver, with the necessary writes.
struct Executor<'r, 'o, 'p> {
    ctx: &'r Context,
    object: &'r mut Object<'o>,
    /// The permit to call the driver.
    permit: &'r mut Permit<'p>,
}

/// Removes bootstrap data from the outcome (OPS-11). A driver may store the bootstrap data of a create and
/// repeat it in the answer to a later call. The driver guard redacts only the secrets of the current call,
/// and only a create carries bootstrap data.
async fn redacted(ctx: &Context, machine: &InfraMachine, gathered: &Gathered, outcome: Outcome) -> Outcome {
    let (Some(message), Some(name)) = (outcome.quoted_message(), gathered.bootstrap_secret()) else {
        return outcome;
    };
    let namespace = machine.metadata.namespace();
    let message = without_bootstrap_data(&ctx.client, namespace, name, message).await;
    outcome.with_quoted_message(message)
}
