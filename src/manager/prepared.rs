//! The controllers that the manager runs, and their context.

use std::sync::Arc;

use kube::Client;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::tasks::Task;
use super::{Health, Pending};
use crate::admission::Installation;
use crate::apiserver::leadership::Leadership;
use crate::driver::ConfiguredDrivers;
use crate::manager::controllers::Controllers;
pub use crate::manager::controllers::{Options as ControllerOptions, OrphanOptions};
use crate::nodes::workload_cluster::Dial;
use crate::telemetry::metrics::Metrics;

/// The context of every controller.
pub struct ControllerContext {
    /// The client of the controllers. It refuses writes while this replica does not lead (see
    /// [`crate::apiserver::leadership::is_not_leader`]), never retries, and has a deadline for each request.
    pub client: Client,
    /// How to reach the API servers of workload clusters.
    pub dial: Dial,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// The metrics of this process.
    pub metrics: Arc<Metrics>,
    /// Whether this replica may act. Caches are filled earlier; reconciles begin after
    /// [`Leadership::acquired`].
    pub leadership: Leadership,
    /// Where to report that caches are filled. Leadership does not count: a standby replica is ready.
    pub health: Health,
    /// Cancelled when no new reconcile may begin. Running reconciles may end.
    pub stopping: CancellationToken,
    /// The options of the controllers.
    pub options: Arc<ControllerOptions>,
}

/// The controllers before they begin.
pub struct Prepared {
    controllers: Controllers,
    /// The condition of readiness that the caches are filled.
    caches: Pending,
    leadership: Leadership,
}

impl Prepared {
    /// Prepares the controllers, and registers their conditions of readiness. Also returns the tasks that run
    /// from the start: the watches, which fill the caches before this replica leads, and the check of the
    /// admission policies.
    pub fn new(context: &ControllerContext) -> (Self, Vec<Task>) {
        let (controllers, mut background) = Controllers::new(
            context.client.clone(),
            context.dial.clone(),
            context.options.as_ref().clone(),
            context.drivers.clone(),
            Arc::clone(&context.metrics),
            context.leadership.clone(),
        );
        context.metrics.machines(controllers.machine_counter());
        let caches = context.health.wait_for("the caches");
        let (policies, leadership) = (controllers.policies(), context.leadership.clone());
        let in_force = context.health.wait_for("the admission policies to be in force");
        background.extend([
            Task::new(
                "the readiness of the admission policies",
                show_policies(policies.installation(), in_force),
            ),
            Task::new("the check of the admission policies", async move {
                policies.run(&leadership).await;
            }),
        ]);
        let prepared = Self {
            controllers,
            caches,
            leadership: context.leadership.clone(),
        };
        (prepared, background)
    }

    /// Returns the controllers when the caches are filled and this replica leads.
    pub async fn leading(self) -> Controllers {
        let Self {
            controllers,
            caches,
            leadership,
        } = self;
        if let Err(error) = controllers.synced(|kinds| caches.set_reason(kinds)).await {
            tracing::error!(%error, "cannot fill a cache");
            // A watch has ended, and so the process ends.
            return std::future::pending().await;
        }
        caches.ready();
        leadership.acquired().await;
        // Otherwise a start would report for every machine that the policies are unknown.
        controllers.policies().enforcement_since(Instant::now()).await;
        tracing::info!("reconciling");
        controllers
    }
}

/// Keeps this replica unready until identities are guarded. Objects that are restored or moved here once it
/// is ready need no confirmation by an administrator. Never ends.
async fn show_policies(mut installation: Receiver<Installation>, policies: Pending) {
    loop {
        let now = installation.borrow_and_update().clone();
        match now {
            Installation::Seen => break,
            Installation::NotYet(why) => policies.set_reason(&why),
        }
        if installation.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
    policies.ready();
    std::future::pending::<()>().await;
}
