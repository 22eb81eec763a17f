//! The controller that looks for the cause of missing Nodes.

use std::sync::Arc;

use kube_fleet::Controller;
use tokio::task::coop::consume_budget;
use tokio_util::sync::CancellationToken;

use super::enqueue::infra_machine_of;
use super::{Controllers, WORKLOAD_CLUSTER_CONCURRENCY};
use crate::api::cluster_api::Machine;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, fingerprint};
use crate::manager::tasks::Task;
use crate::nodes::missing_node;

impl Controllers {
    /// Runs the reconciles of InfraMachines whose Nodes are awaited. Each may ask a driver for the console.
    pub(super) fn missing_node_controller(&self, stopping: &CancellationToken) -> Task {
        let run = Controller::new(
            &self.caches.infra_machines,
            &self.missing_node_queue,
            self.workers(WORKLOAD_CLUSTER_CONCURRENCY),
        )
        .graceful_shutdown_on(stopping.clone().cancelled_owned())
        .run(
            missing_node::reconcile,
            |object, error, ctx| ctx.reconciler.error_policy(&*object, error),
            Arc::clone(&self.missing_node_context),
        );
        Task::new("the missing Node controller", run)
    }

    /// Enqueues the machines that had no Node, or whose status shows that, when this replica began to lead.
    pub(super) async fn enqueue_missing_nodes(&self) {
        let without_node = self
            .caches
            .machines
            .select(|entry| entry.facts().node_is_healthy.is_none());
        for entry in &without_node {
            consume_budget().await;
            if let Some(machine) = entry.object() {
                self.missing_node_queue.enqueue(infra_machine_of(&machine));
            }
        }
        let reported = self
            .caches
            .infra_machines
            .select(|entry| entry.facts().shows_missing_node);
        for entry in &reported {
            self.missing_node_queue.enqueue_key(entry.key().clone());
        }
    }
}

/// Whether a Node of the machine is expected.
pub(super) fn is_provisioned_predicate(object: &DeserializeGuard<InfraMachine>) -> u64 {
    fingerprint(object.0.as_ref().is_ok_and(InfraMachine::is_provisioned))
}

pub(super) fn node_name_predicate(machine: &Machine) -> u64 {
    let status = machine.status.as_ref();
    fingerprint(status.and_then(|status| status.node_name.as_deref()))
}
