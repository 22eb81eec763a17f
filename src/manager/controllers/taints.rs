//! The controller that removes the not-ready taint from Nodes.

use std::sync::Arc;

use kube_fleet::{Change, Controller};
use tokio::task::coop::consume_budget;
use tokio_util::sync::CancellationToken;

use super::enqueue::infra_machine_of;
use super::{Controllers, WORKLOAD_CLUSTER_CONCURRENCY};
use crate::api::ObjectMetaExt as _;
use crate::api::cluster_api::Machine;
use crate::manager::tasks::Task;
use crate::nodes::not_ready_taint;
use crate::reconcile::caches::CachedMachine;

impl Controllers {
    /// Runs the reconciles of InfraMachines whose Nodes have the not-ready taint. They call no driver.
    pub(super) fn taint_controller(&self, stopping: &CancellationToken) -> Task {
        let run = Controller::new(
            &self.caches.infra_machines,
            &self.taint_queue,
            WORKLOAD_CLUSTER_CONCURRENCY,
        )
        .graceful_shutdown_on(stopping.clone().cancelled_owned())
        .run(
            not_ready_taint::reconcile,
            |object, error, ctx| ctx.reconciler.error_policy(&*object, error),
            Arc::clone(&self.taint_context),
        );
        Task::new("the not-ready taint controller", run)
    }

    /// Enqueues the InfraMachine of a Machine if its Node may have a taint to remove.
    pub(super) fn on_node_change(&self) -> impl Fn(&Change<Machine>) + Send + 'static {
        let (queue, taint_context) = (self.taint_queue.clone(), Arc::clone(&self.taint_context));
        move |change| {
            let reference = infra_machine_of(change.object());
            let cache = &taint_context.caches.infra_machines;
            if cache.look_at(&reference, |entry| entry.facts().has_taint) == Some(true)
                && let Some(found) = cache.get(&reference)
                && let Ok(infra) = &found.0
                && infra.spec.not_ready_taint.is_some()
            {
                if matches!(change, Change::Updated { .. }) {
                    taint_context.changed_nodes.insert(infra.metadata.uid());
                }
                queue.enqueue(reference);
            }
        }
    }

    /// Enqueues the machines whose Nodes still had their taint when this replica began to lead.
    pub(super) async fn enqueue_tainted_nodes(&self) {
        let tainted = self.caches.infra_machines.select(|entry| entry.facts().has_taint);
        for entry in &tainted {
            consume_budget().await;
            if awaits_reconcile(&self.taint_context, entry) {
                self.taint_queue.enqueue_key(entry.key().clone());
            }
        }
    }
}

/// Whether the Node of a machine may have a taint to remove.
pub(super) fn awaits_reconcile(taint_context: &not_ready_taint::Context, entry: &CachedMachine) -> bool {
    entry.object().is_some_and(|object| {
        let machine = object.0.as_ref();
        machine.is_ok_and(|machine| taint_context.awaits_reconcile(machine))
    })
}

/// Whether the Node's name has changed, or the Node came back. A Node that stops reporting is no reason to
/// check its taints.
pub(super) fn node_predicate(change: &Change<Machine>) -> bool {
    let node = |machine: &Machine| machine.status.clone().unwrap_or_default();
    match change {
        Change::Added(_) => true,
        Change::Updated { before, now } => {
            let (before, now) = (node(before), node(now));
            before.node_name != now.node_name || now.node_is_healthy && !before.node_is_healthy
        }
        Change::Deleted(_) => false,
    }
}
