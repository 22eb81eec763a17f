//! Drains the volumes of a Node whose Machine is deleted. Pods with persistent volumes are evicted one after
//! the other (CTL-05), each when the volumes of the previous pod have left the Node. gather → plan → execute
//! and publish.
//!
//! Cluster API evicts all pods of a Node together, and waits until all volumes are detached. The volume drain
//! comes before that, if an annotation of the machine requests it. A pre-drain hook on the Machine makes
//! Cluster API wait until the provider removes the hook.
//!
//! # Guarantees
//! * The hook is always removed in the end, even if other components fail.
//! * The pod, the time and the awaited volumes are recorded before an eviction. After a restart or a move,
//!   the drain continues there.
//! * Without the feature the provider sets no hook, and removes existing hooks.

mod drain_rules;
mod end;
mod execute;
mod gather;
mod next_eviction;
mod opt_in;
mod plan;
mod publish;
mod record;
mod status;
mod volumes;
mod workload;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use self::gather::gather;
use self::plan::{Plan, plan};
use crate::api::cluster_api::Machine;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, annotations};
use crate::apiserver::leadership::Leadership;
use crate::apiserver::{Error, Events};
use crate::driver::ConfiguredDrivers;
use crate::nodes::workload_cluster::WorkloadClusters;
use crate::reconcile::caches::Caches;
use crate::reconcile::{Action, Enqueue, Reconciler, Requeue};

/// Failures further apart than this belong to different outages.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24);

/// The context of every reconcile.
pub struct Context {
    /// Whether machines may request a volume drain; otherwise hooks are only removed.
    pub enabled: bool,
    /// The client for writes and live reads.
    pub client: Client,
    /// The watched objects.
    pub caches: Caches,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// The workload clusters, where the Nodes are.
    pub workload_clusters: Arc<WorkloadClusters>,
    /// Whether this replica may change objects in a workload cluster.
    pub leadership: Leadership,
    /// Events.
    pub events: Events,
    /// Runs reconciles, and reports their failures and metrics.
    pub reconciler: Reconciler,
    /// Enqueues a Machine.
    pub enqueue: Enqueue,
    /// Since when the workload clusters of Machines, by UID, have been unreachable.
    pub outages: WorkloadOutages,
    /// Held while MachineDrainRules are read, so that only one page of them is in memory.
    pub rules_page: tokio::sync::Mutex<()>,
}

/// Since when workload clusters have been unreachable, by the UID of the Machine. Kept in memory: after a
/// restart, the time limit of the whole drain still applies.
#[derive(Debug, Default)]
pub struct WorkloadOutages(Mutex<HashMap<String, Instant>>);

impl WorkloadOutages {
    fn begin(&self, uid: &str) {
        let mut all = self.0.lock();
        all.retain(|_, since| since.elapsed() < FORGOTTEN_AFTER);
        all.entry(uid.to_owned()).or_insert_with(Instant::now);
    }

    fn end(&self, uid: &str) {
        let mut all = self.0.lock();
        all.remove(uid);
    }

    fn duration(&self, uid: &str) -> Option<Duration> {
        let all = self.0.lock();
        all.get(uid).map(Instant::elapsed)
    }
}

impl Context {
    /// Whether a change of a Machine, or of its InfraMachine or Cluster, enqueues the Machine.
    pub fn concerns(&self, machine: &Machine) -> bool {
        has_hook(machine)
            || self.enabled && gather::cached_infra(self, machine).is_some_and(|infra| is_requested(&infra))
    }
}

/// Whether a Machine has the hook.
pub fn has_hook(machine: &Machine) -> bool {
    let annotations = machine.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(annotations::VOLUME_DRAIN_HOOK))
}

/// Whether an InfraMachine requests a volume drain, or shows the condition of a drain.
pub fn is_requested(infra: &DeserializeGuard<InfraMachine>) -> bool {
    infra
        .0
        .as_ref()
        .is_ok_and(|infra| opt_in::OptIn::of(infra).timeout().is_some() || status::is_shown(infra))
}

/// One reconcile of one Machine.
///
/// # Errors
/// The API server of the management cluster refused or could not be reached.
pub async fn reconcile(machine: Arc<Machine>, ctx: Arc<Context>) -> Result<Action, Error> {
    let object = DeserializeGuard(Ok(Machine::clone(&machine)));
    let run = ctx
        .reconciler
        .run(&object, |machine| reconcile_machine(machine, &ctx));
    run.await
}

async fn reconcile_machine(queued: &Machine, ctx: &Context) -> Result<Requeue, Error> {
    let Some(observed) = gather(queued, ctx).await? else {
        return Ok(Requeue::OnChange);
    };
    let plan = plan(&observed);
    tracing::debug!(name = observed.machine.metadata.name, ?plan, "planned");
    match plan {
        Plan::NoOp => Ok(Requeue::OnChange),
        Plan::Wait(time) => Ok(Requeue::After(time)),
        Plan::Publish(report) => {
            publish::publish(&observed, ctx, report.as_ref()).await?;
            Ok(Requeue::OnChange)
        }
        Plan::SetHook => execute::set_hook(&observed, ctx).await,
        Plan::RemoveHook(end) => execute::remove_hook(&observed, ctx, &end).await,
        Plan::Drain(target, cluster) => execute::drain(&observed, ctx, &target, cluster).await,
    }
}
