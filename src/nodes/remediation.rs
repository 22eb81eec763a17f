//! InfraMachineRemediation: the provider restarts a VM whose Machine is unhealthy, up to the strategy's
//! limit, and then leaves the Machine to its owner, which replaces it. This is Cluster API's contract of
//! external remediation: a MachineHealthCheck creates the object, with the name of the Machine, and deletes
//! it when the Machine is healthy.
//!
//! There is no finalizer, because a deleted object needs no cleanup.
//!
//! # Guarantees
//! * A VM is restarted no more often than the strategy allows, also after a crash or a move. Each restart is
//!   recorded before the call. The record is removed only if certainly no restart was made.
//! * The provider restarts only a VM that it created for this Machine, by a trusted identity.

mod answer;
mod execute;
mod gather;
mod owner;
mod plan;
mod publish;
mod record;

use std::sync::Arc;

use kube::Client;
use kube_fleet::Store;

use self::gather::gather;
use self::plan::{Plan, plan};
use self::publish::{publish, publish_pause, publish_resumption};
use self::record::Record;
use crate::admission::AdmissionPolicies;
use crate::api::DeserializeGuard;
use crate::api::v1alpha1::InfraMachineRemediation;
use crate::apiserver::{Error, Events};
use crate::driver::ConfiguredDrivers;
use crate::reconcile::caches::Caches;
use crate::reconcile::{Action, Enqueue, Reconciler, Requeue};

/// The context of every reconcile.
pub struct Context {
    /// The client for writes and live reads.
    pub client: Client,
    /// The other watched objects.
    pub caches: Caches,
    /// The remediations.
    pub remediations: Store<DeserializeGuard<InfraMachineRemediation>>,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// Events.
    pub events: Events,
    /// The policies that decide whether identities may be trusted.
    pub policies: Arc<AdmissionPolicies>,
    /// Runs reconciles, and reports their failures and metrics.
    pub reconciler: Reconciler,
    /// Enqueues a remediation.
    pub enqueue: Enqueue,
}

/// One reconcile of one remediation.
///
/// # Errors
/// The API server refused or could not be reached.
pub async fn reconcile(
    object: Arc<DeserializeGuard<InfraMachineRemediation>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let run = ctx
        .reconciler
        .run(&object, |remediation| reconcile_remediation(remediation, &ctx));
    run.await
}

async fn reconcile_remediation(queued: &InfraMachineRemediation, ctx: &Context) -> Result<Requeue, Error> {
    let gathered = gather(queued, ctx).await?;
    let remediation = &gathered.remediation;
    let plan = plan(remediation, &gathered.observed);
    tracing::debug!(name = remediation.metadata.name, ?plan, "planned");
    match plan {
        Plan::NoOp => Ok(Requeue::OnChange),
        Plan::Later(requeue) => {
            publish_resumption(remediation, ctx).await?;
            Ok(requeue)
        }
        Plan::Pause(by) => {
            publish_pause(remediation, ctx, &by).await?;
            Ok(Requeue::OnChange)
        }
        Plan::Publish(outcome) => {
            let record = Record::of(remediation.metadata.annotations.as_ref());
            publish(&gathered, &remediation.metadata, ctx, record, &outcome).await?;
            Ok(outcome.requeue)
        }
        Plan::Restart(restart) => execute::restart(&gathered, ctx, *restart).await,
    }
}
