//! The not-ready taint of a Node: gather → plan → execute → publish.
//!
//! A kubelet may register with a taint that keeps workload away until its VM is initialized (INI-02). Where
//! an InfraMachine names it, it is removed from the Node, once, when the VM is initialized and Cluster API
//! has found the Node. Nothing else of the Node is touched, and no reconcile of a machine waits for a
//! workload cluster.

mod node;
mod plan;
mod status;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use kube::runtime::controller::Action;
use serde_json::json;

use self::node::{TaintRemoval, remove_taint};
use self::plan::{Observed, Plan, Removal, plan};
use self::status::Progress;
use crate::api::DeserializeGuard;
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::labels;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::{Error, Events, patch_metadata, publish_status};
use crate::caches::Caches;
use crate::leadership::Leadership;
use crate::reconciler::{Again, Reconciler};
use crate::retry::LONG_WAIT;
use crate::workload_cluster::{Visit, WorkloadClusters};

pub use self::plan::awaits_removal;

/// When a machine is looked at again for which the workload cluster had no room.
const BUSY: Duration = Duration::from_secs(1);

/// What every reconcile works with.
pub struct Context {
    /// Writes.
    pub client: Client,
    /// What is watched.
    pub caches: Caches,
    /// Where the Nodes are.
    pub workload_clusters: WorkloadClusters,
    /// Whether this replica may change a Node.
    pub leadership: Leadership,
    /// Events.
    pub events: Events,
    /// Failures and metrics.
    pub reconciler: Reconciler,
    /// InfraMachines, by UID, whose Node came back or is another since it was last looked at.
    pub changed_nodes: ChangedNodes,
}

/// InfraMachines, by UID, whose Node has to be looked at although it was freed of the taint: another may have
/// registered under its name.
#[derive(Debug, Default)]
pub struct ChangedNodes(Mutex<HashSet<String>>);

impl ChangedNodes {
    /// The Node of a machine came back, or is another.
    pub fn insert(&self, uid: &str) {
        self.lock().insert(uid.to_owned());
    }

    /// The Node was looked at, or the machine is gone.
    pub fn remove(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn contains(&self, uid: &str) -> bool {
        self.lock().contains(uid)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One reconcile of the Node of one machine.
///
/// # Errors
/// The API server of the management cluster refused or could not be reached.
pub async fn reconcile(
    guarded: Arc<DeserializeGuard<InfraMachine>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let run = ctx
        .reconciler
        .run(&guarded, |machine| reconcile_node(machine, &ctx));
    run.await
}

/// What happens after a reconcile that could not be finished.
#[allow(clippy::needless_pass_by_value)] // the controller's signature
pub fn error_policy(
    guarded: Arc<DeserializeGuard<InfraMachine>>,
    error: &Error,
    ctx: Arc<Context>,
) -> Action {
    ctx.reconciler.error_policy(&*guarded, error)
}

async fn reconcile_node(machine: &InfraMachine, ctx: &Context) -> Result<Again, Error> {
    let (owner, cluster) = gather(machine, ctx);
    let observed = Observed {
        owner: owner.as_deref(),
        cluster: cluster.as_deref(),
        node_changed: ctx.changed_nodes.contains(uid(machine)),
    };
    let (removal, cluster) = match plan(machine, &observed) {
        Plan::NoOp => return Ok(Again::OnChange),
        Plan::Remove(removal, cluster) => (removal, cluster),
    };
    let visit = async |client| remove_taint(client, &removal, &ctx.leadership).await;
    let visited = ctx.workload_clusters.visit(cluster, visit).await?;
    publish(machine, ctx, &removal, visited).await
}

/// The Machine that owns a machine, and its Cluster.
fn gather(machine: &InfraMachine, ctx: &Context) -> (Option<Arc<Machine>>, Option<Arc<Cluster>>) {
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
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
    visited: Visit<TaintRemoval>,
) -> Result<Again, Error> {
    let (progress, again) = match visited {
        Visit::Busy => return Ok(Again::After(BUSY)),
        Visit::Failed { cause, again } => (Progress::Unreachable(cause), Again::After(again)),
        Visit::Made(TaintRemoval::Raced | TaintRemoval::NotLeading) => {
            return Ok(Again::BackOff(Duration::ZERO));
        }
        Visit::Made(TaintRemoval::ForeignNode(provider_id)) => {
            (Progress::ForeignNode(provider_id), Again::After(LONG_WAIT))
        }
        // Cluster API names a Node that is gone: it says so when another registers.
        Visit::Made(TaintRemoval::NoNode) => return Ok(Again::After(LONG_WAIT)),
        Visit::Made(TaintRemoval::RemovedBefore) => (Progress::RemovedBefore, Again::OnChange),
        Visit::Made(TaintRemoval::Removed { node_uid }) => (Progress::Removed(node_uid), Again::OnChange),
        Visit::Made(TaintRemoval::NotTainted { node_uid }) => {
            (Progress::NotTainted(node_uid), Again::OnChange)
        }
    };
    let mut machine = machine.clone();
    if let Progress::Removed(node_uid) | Progress::NotTainted(node_uid) = &progress {
        record(&mut machine, ctx, node_uid).await?;
    }
    let after = status::after(&machine, removal, &progress, Timestamp::now());
    let note = status::event(&machine, removal, &progress);
    publish_status(
        &api(&machine, ctx),
        &machine.metadata,
        machine.status.as_ref(),
        &after,
    )
    .await?;
    if let Some(note) = note {
        ctx.events.publish(&machine, note).await;
    }
    if again == Again::OnChange {
        ctx.changed_nodes.remove(uid(&machine));
    }
    Ok(again)
}

/// Records which Node was freed of its taint.
async fn record(machine: &mut InfraMachine, ctx: &Context, node_uid: &str) -> Result<(), Error> {
    let action = "recording the Node that was freed of its taint";
    let body = json!({"metadata": {
        "uid": machine.metadata.uid,
        "annotations": {labels::NOT_READY_TAINT_REMOVED_FROM: node_uid},
    }});
    let name = machine.metadata.name.clone().unwrap_or_default();
    let patched = patch_metadata(&api(machine, ctx), &name, &body).await;
    machine.metadata = patched.map_err(|error| Error::api(action, error))?;
    Ok(())
}

fn api(machine: &InfraMachine, ctx: &Context) -> Api<InfraMachine> {
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    Api::namespaced(ctx.client.clone(), namespace)
}

fn uid(machine: &InfraMachine) -> &str {
    machine.metadata.uid.as_deref().unwrap_or_default()
}
