//! The controller of InfraClusters.

use std::sync::Arc;

use kube_fleet::Controller;
use tokio_util::sync::CancellationToken;

use super::{Controllers, enqueue};
use crate::cluster;
use crate::manager::tasks::Task;
use crate::telemetry::metrics::ControllerName;

impl Controllers {
    /// Runs the reconciles of InfraClusters.
    pub(super) fn cluster_controller(&self, stopping: &CancellationToken) -> Task {
        let run = Controller::new(
            &self.caches.infra_clusters,
            &self.infra_cluster_queue,
            self.workers(self.options.cluster_concurrency),
        )
        .with_backlog(|()| true)
        .graceful_shutdown_on(stopping.clone().cancelled_owned())
        .run(
            cluster::reconcile,
            |object, error, ctx| ctx.reconciler.error_policy(&*object, error),
            self.cluster_context(),
        );
        Task::new("the InfraCluster controller", run)
    }

    fn cluster_context(&self) -> Arc<cluster::Context> {
        Arc::new(cluster::Context {
            client: self.client.clone(),
            caches: self.caches.clone(),
            cluster_ids: Arc::clone(&self.machine_context.cluster_ids),
            drivers: self.drivers.clone(),
            events: self.machine_context.events.clone(),
            reconciler: self.reconciler(ControllerName::InfraCluster),
            enqueue: enqueue(&self.infra_cluster_queue),
            watch_filter: self.options.watch_filter.clone(),
        })
    }
}
