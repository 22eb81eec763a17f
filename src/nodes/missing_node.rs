//! Machines whose Node does not appear: gather → plan → look → publish.
//!
//! When the time of a bootstrap is over and Cluster API has found no Node, the provider looks for the cause.
//! It tries the control plane endpoint, and reads the ProviderID of the Node and the console of the VM. The
//! condition `NodeJoined` shows the result. It does not count for `Ready`, and goes when the Node is there.
//!
//! A machine whose Node appears in time costs no request. Looks at one machine are rare: the pause grows up
//! to an hour, and only a new process starts with a short one. A look that finds the same writes nothing.
//! Console text goes to the condition alone, without the secrets of the machine.

mod console;
mod look;
mod plan;
mod schedule;
mod status;

use std::sync::Arc;

use kube::Client;
use kube::api::Api;

use self::look::look;
use self::plan::{Awaited, Observed, Plan, first_look, pause, plan};
use crate::admission::AdmissionPolicies;
use crate::api::DeserializeGuard;
use crate::api::ObjectMetaExt as _;
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus};
use crate::api::wall_clock;
use crate::apiserver::{Error, publish_status};
use crate::driver::ConfiguredDrivers;
use crate::nodes::workload_cluster::WorkloadClusters;
use crate::reconcile::caches::Caches;
use crate::reconcile::{Action, Enqueue, Reconciler, Requeue};

pub use self::plan::is_reported;
pub use self::schedule::Schedule;

/// The context of every reconcile.
pub struct Context {
    /// The client for writes, and for Secrets.
    pub client: Client,
    /// The caches of all watched kinds.
    pub caches: Caches,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// The workload clusters, where the Nodes are.
    pub workload_clusters: Arc<WorkloadClusters>,
    /// The policies that decide whether identities may be trusted.
    pub policies: Arc<AdmissionPolicies>,
    /// Counts failures and metrics.
    pub reconciler: Reconciler,
    /// Enqueues a machine.
    pub enqueue: Enqueue,
    /// When the next look at each machine is due.
    pub schedule: Schedule,
}

/// Runs one reconcile of one machine.
///
/// # Errors
/// The API server of the management cluster refused or could not be reached.
pub async fn reconcile(
    object: Arc<DeserializeGuard<InfraMachine>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let run = ctx
        .reconciler
        .run(&object, |machine| reconcile_machine(machine, &ctx));
    run.await
}

async fn reconcile_machine(machine: &InfraMachine, ctx: &Context) -> Result<Requeue, Error> {
    let uid = machine.metadata.uid();
    let owner = ctx.caches.owner_machine(&machine.metadata);
    let cluster = owner.as_deref().and_then(|owner| {
        let namespace = machine.metadata.namespace();
        ctx.caches.cluster(namespace, &owner.spec.cluster_name)
    });
    let observed = Observed {
        owner: owner.as_deref(),
        cluster: cluster.as_deref(),
    };
    match plan(machine, &observed) {
        Plan::Nothing => {
            ctx.schedule.forget(uid);
            Ok(Requeue::OnChange)
        }
        Plan::Joined => {
            ctx.schedule.forget(uid);
            publish(machine, ctx, &status::joined(machine)).await?;
            Ok(Requeue::OnChange)
        }
        Plan::OnHold => Ok(Requeue::After(plan::BOOTSTRAP_TIME)),
        Plan::Awaited(awaited) => await_node(machine, ctx, &awaited).await,
    }
}

/// Looks for the cause if that is due.
async fn await_node(machine: &InfraMachine, ctx: &Context, awaited: &Awaited<'_>) -> Result<Requeue, Error> {
    let (uid, now) = (machine.metadata.uid(), wall_clock::now());
    let wait = ctx.schedule.wait(uid, || first_look(uid, awaited.since, now));
    if !wait.is_zero() {
        return Ok(Requeue::After(wait));
    }
    let findings = match look(machine, ctx, awaited).await? {
        Ok(findings) => findings,
        Err(busy) => return Ok(Requeue::After(busy)),
    };
    publish(machine, ctx, &status::missing(machine, awaited, &findings, now)).await?;
    let pause = pause(awaited.since, now);
    ctx.schedule.set(uid, pause);
    Ok(Requeue::After(pause))
}

async fn publish(machine: &InfraMachine, ctx: &Context, after: &InfraMachineStatus) -> Result<(), Error> {
    let api = Api::<InfraMachine>::namespaced(ctx.client.clone(), machine.metadata.namespace());
    publish_status(&api, &machine.metadata, machine.status.as_ref(), after).await?;
    Ok(())
}
