//! The controllers that the manager runs, and their context.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Health, Pending};
use crate::admission::Installation;
use crate::apiserver::leadership::Leadership;
use crate::driver::ConfiguredDrivers;
use crate::manager::controllers::Controllers;
pub use crate::manager::controllers::{Options as ControllerOptions, OrphanOptions};
use crate::nodes::workload_cluster::Dial;
use crate::telemetry::metrics::Metrics;

/// The context of every controller.
#[derive(Clone)]
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

/// A task that runs with the process. It is polled from the start, and ends after
/// [`ControllerContext::stopping`] was cancelled. If it ends earlier or panics, the process ends.
pub struct Task {
    /// The name that is reported when the task ends unexpectedly: `the InfraMachine controller`.
    pub name: &'static str,
    /// The controller.
    pub run: BoxFuture<'static, ()>,
}

/// The controllers before they begin.
pub(super) struct Prepared {
    pub controllers: Controllers,
    caches: Pending,
    /// Ends the tasks beside the controllers, but only after the controllers. The watches have to deliver the
    /// writes of the last reconcile. A controller that panics does not end the tasks, so that the process
    /// reports the panic.
    pub done: CancellationToken,
}

impl Prepared {
    /// Prepares the controllers and the tasks beside them: the watches, which fill the caches before this
    /// replica leads, and the check of the admission policies.
    pub fn new(context: &ControllerContext) -> (Self, Vec<Task>) {
        let (controllers, watches) = Controllers::new(
            context.client.clone(),
            context.dial.clone(),
            context.options.as_ref().clone(),
            context.drivers.clone(),
            Arc::clone(&context.metrics),
            context.leadership.clone(),
        );
        context.metrics.machines(controllers.machine_counter());
        let done = CancellationToken::new();
        let caches = context.health.wait_for("the caches");
        let (policies, leadership) = (controllers.policies(), context.leadership.clone());
        let in_force = context.health.wait_for("the admission policies to be in force");
        let shown = show_policies(policies.installation(), in_force);
        let keep = async move { policies.run(&leadership).await };
        let tasks = vec![
            Task {
                name: "the check of the admission policies",
                run: until_done(vec![keep.boxed(), shown.boxed()], done.clone()).boxed(),
            },
            Task {
                name: "the watches",
                run: until_done(watches, done.clone()).boxed(),
            },
        ];
        let prepared = Self {
            controllers,
            caches,
            done,
        };
        (prepared, tasks)
    }

    /// Waits until the caches are filled and this replica leads; false if the process is to end first.
    pub async fn wait_until_leading(&self, context: &ControllerContext) -> bool {
        let begin = async {
            if let Err(error) = self
                .controllers
                .synced(|kinds| self.caches.set_reason(kinds))
                .await
            {
                tracing::error!(%error, "cannot fill a cache");
                return false;
            }
            self.caches.ready();
            context.leadership.acquired().await;
            // Otherwise a start would report for every machine that the policies are unknown.
            self.controllers
                .policies()
                .enforcement_since(Instant::now())
                .await;
            true
        };
        tokio::select! {
            leads = begin => leads,
            () = context.stopping.cancelled() => false,
        }
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

async fn until_done(watches: Vec<BoxFuture<'static, ()>>, done: CancellationToken) {
    tokio::select! {
        _ = futures::future::select_all(watches) => {}
        () = done.cancelled() => {}
    }
}
