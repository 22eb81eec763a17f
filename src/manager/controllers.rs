//! The controllers that the manager runs, and what they are given.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::Health;
use crate::leadership::Leadership;
use crate::metrics::Metrics;
use crate::provider::Providers;

/// What every controller is given.
#[derive(Clone)]
pub struct Context {
    /// The client to use: it refuses writes while this replica does not lead (see
    /// [`crate::leadership::is_not_leader`]), retries nothing by itself, and has a deadline for each request.
    pub client: Client,
    /// The configured drivers.
    pub providers: Providers,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether this replica may act. Caches warm up before; reconciles begin after [`Leadership::acquired`].
    pub leadership: Leadership,
    /// Where to say that caches are warm. Not that this replica leads: a replica that waits for its turn is ready.
    pub health: Health,
    /// Cancelled when no new reconcile may begin; those that run may end.
    pub stopping: CancellationToken,
    /// What was configured.
    pub options: Arc<ControllerOptions>,
}

/// What is configured of the controllers.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The only namespace to look at; all of them when there is none.
    pub namespace: Option<String>,
    /// Only objects whose label `cluster.x-k8s.io/watch-filter` has this value.
    pub watch_filter: Option<String>,
    /// InfraMachines that are reconciled at the same time.
    pub machine_concurrency: u16,
    /// InfraMachineTemplates that are reconciled at the same time.
    pub template_concurrency: u16,
    /// InfraClusters that are reconciled at the same time.
    pub cluster_concurrency: u16,
    /// Between two lists of the VMs of a driver and class.
    pub inventory_interval: Duration,
}

/// A controller: polled from the start, and until it ends by itself after [`Context::stopping`] was cancelled. One
/// that ends before, or panics, ends the process.
pub struct Controller {
    /// What it is called when it ends unexpectedly: `the InfraMachine controller`.
    pub name: &'static str,
    /// The controller.
    pub run: BoxFuture<'static, ()>,
}

/// The controllers of `capcmi run`. Each asks for its readiness handles here, before it returns.
pub fn all(_context: &Context) -> Vec<Controller> {
    Vec::new()
}
