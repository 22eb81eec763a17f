//! The not-ready taint of a Node: gather → plan → execute → publish.
//!
//! A kubelet may register with a taint that keeps workload away until its VM is initialized (INI-02). If an
//! InfraMachine names the taint, the provider removes it from the Node, once, when the VM is initialized and
//! Cluster API has found the Node. The provider changes nothing else of the Node, and no reconcile of a
//! machine waits for a workload cluster.

mod execute;
mod plan;
mod status;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use parking_lot::Mutex;

use self::execute::remove_taint;
use self::plan::{Observed, Removal, awaits_removal, plan};
use self::status::Progress;
use crate::api::DeserializeGuard;
use crate::api::ObjectMetaExt as _;
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::identity;
use crate::api::progress::Task;
use crate::api::retry::LONG_WAIT;
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock;
use crate::apiserver::leadership::Leadership;
use crate::apiserver::{Error, Events, publish_status, record_progress};
use crate::nodes::workload_cluster::{self, ConnectionOutcome, WorkloadClusters};
use crate::reconcile::caches::Caches;
use crate::reconcile::{Action, Reconciler, Requeue};

/// The context of every reconcile.
pub struct Context {
    /// The client for writes.
    pub client: Client,
    /// The caches of all watched kinds.
    pub caches: Caches,
    /// The workload clusters, where the Nodes are.
    pub workload_clusters: Arc<WorkloadClusters>,
    /// Whether this replica may change a Node.
    pub leadership: Leadership,
    /// The publisher of events.
    pub events: Events,
    /// Counts failures and metrics.
    pub reconciler: Reconciler,
    /// InfraMachines, by UID, whose Node came back or was replaced since the last reconcile.
    pub changed_nodes: ChangedNodes,
}

/// InfraMachines, by UID, whose Node must be checked although the taint was removed: another Node may have
/// registered under its name.
#[derive(Debug, Default)]
pub struct ChangedNodes(Mutex<HashSet<String>>);

impl ChangedNodes {
    /// Records that the Node of a machine came back or was replaced.
    pub fn insert(&self, uid: &str) {
        self.0.lock().insert(uid.to_owned());
    }

    /// Forgets a machine that is deleted, or whose Node is checked now. Returns whether the Node had to be
    /// checked.
    pub fn remove(&self, uid: &str) -> bool {
        self.0.lock().remove(uid)
    }

    fn contains(&self, uid: &str) -> bool {
        self.0.lock().contains(uid)
    }
}

impl Context {
    /// Whether a change of a machine, or of its Cluster, requires a reconcile of its Node.
    pub fn awaits_reconcile(&self, machine: &InfraMachine) -> bool {
        awaits_removal(machine) || self.changed_nodes.contains(machine.metadata.uid())
    }
}

/// Runs one reconcile of the Node of one machine.
///
/// # Errors
/// The API server of the management cluster refused or could not be reached.
pub async fn reconcile(
    object: Arc<DeserializeGuard<InfraMachine>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let run = ctx
        .reconciler
        .run(&object, |machine| reconcile_node(machine, &ctx));
    run.await
}

async fn reconcile_node(machine: &InfraMachine, ctx: &Context) -> Result<Requeue, Error> {
    // Before anything is read, so that a concurrent change leads to another reconcile.
    let node_changed = ctx.changed_nodes.remove(machine.metadata.uid());
    let outcome = untaint(machine, ctx, node_changed).await;
    if node_changed && !matches!(outcome, Ok(TaintRemoval::Done)) {
        ctx.changed_nodes.insert(machine.metadata.uid());
    }
    outcome.map(|outcome| match outcome {
        TaintRemoval::Done | TaintRemoval::NotYet => Requeue::OnChange,
        TaintRemoval::Requeue(requeue) => requeue,
    })
}

enum TaintRemoval {
    /// Nothing is left to do.
    Done,
    /// Nothing can be done until a watched object changes.
    NotYet,
    /// The removal continues after this requeue.
    Requeue(Requeue),
}

async fn untaint(machine: &InfraMachine, ctx: &Context, node_changed: bool) -> Result<TaintRemoval, Error> {
    let (owner, cluster) = gather(machine, ctx);
    let observed = Observed {
        owner: owner.as_deref(),
        cluster: cluster.as_deref(),
        node_changed,
    };
    let Some((removal, cluster)) = plan(machine, &observed) else {
        return Ok(TaintRemoval::NotYet);
    };
    let remove = async |connection: &_| remove_taint(connection, &removal, &ctx.leadership).await;
    let outcome = ctx.workload_clusters.with_connection(cluster, remove).await?;
    publish(machine, ctx, &removal, outcome).await
}

/// The Machine that owns an InfraMachine, and its Cluster.
fn gather(machine: &InfraMachine, ctx: &Context) -> (Option<Arc<Machine>>, Option<Arc<Cluster>>) {
    let namespace = machine.metadata.namespace();
    let owner = ctx.caches.owner_machine(&machine.metadata);
    let cluster = owner
        .as_deref()
        .and_then(|owner| ctx.caches.cluster(namespace, &owner.spec.cluster_name));
    (owner, cluster)
}

async fn publish(
    machine: &InfraMachine,
    ctx: &Context,
    removal: &Removal,
    outcome: ConnectionOutcome<Option<Progress>>,
) -> Result<TaintRemoval, Error> {
    let later = |wait| TaintRemoval::Requeue(Requeue::After(wait));
    let (progress, wait) = match outcome {
        ConnectionOutcome::Busy => return Ok(later(workload_cluster::busy_wait(machine.metadata.uid()))),
        ConnectionOutcome::Failed { cause, retry_after } => (Progress::Unreachable(cause), retry_after),
        ConnectionOutcome::Done(None) => return Ok(TaintRemoval::Requeue(Requeue::BackOff(Duration::ZERO))),
        // Cluster API names a deleted Node. Another Node may come.
        ConnectionOutcome::Done(Some(progress)) => (progress, LONG_WAIT),
    };
    let outcome = match progress {
        Progress::Removed(_) | Progress::NotTainted(_) | Progress::RemovedBefore => TaintRemoval::Done,
        Progress::NoNode | Progress::ForeignNode(_) | Progress::Refused(_) | Progress::Unreachable(_) => {
            later(wait)
        }
    };
    if removal.is_done && !matches!(outcome, TaintRemoval::Done) {
        // A failure to check a Node does not contradict that the taint was removed.
        return Ok(outcome);
    }
    // Before the writes, which may fail: the next reconcile finds no taint.
    if let Some(note) = status::event(machine, removal, &progress) {
        let driver = identity::driver_name(machine);
        ctx.events.record_failure(machine, &driver, None, note).await;
    }
    let mut machine = machine.clone();
    if let Progress::Removed(node_uid) | Progress::NotTainted(node_uid) = &progress {
        let (action, record) = (
            "recording the Node without the not-ready taint",
            plan::record(node_uid, &removal.key),
        );
        // After a conflict, the next reconcile finds a Node without the taint, and records it.
        machine = record_progress(&ctx.client, &machine, Task::NotReadyTaint, record, action).await?;
    }
    let after = status::after(&machine, removal, &progress, wall_clock::now());
    let api = Api::<InfraMachine>::namespaced(ctx.client.clone(), machine.metadata.namespace());
    publish_status(&api, &machine.metadata, machine.status.as_ref(), &after).await?;
    Ok(outcome)
}
