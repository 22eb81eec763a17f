//! The process around the reconcilers: client, leader election, health, metrics, and an orderly shutdown.
//!
//! The manager knows no concrete driver. Configuration, drivers, listeners and the signal to stop come from
//! outside, so that a test runs the same manager as `capcmi-manager`.
//!
//! # Guarantees
//!
//! * No write and no driver call leaves this process while it does not lead.
//! * The manager ends when it loses leadership. When it is stopped, it hands over the lease.

pub mod cli;
mod client;
mod connection;
pub mod controllers;
mod diagnostics;
mod elector;
mod health;
mod prepared;
mod reviewer;
mod serve;
mod tasks;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::apiserver::leadership::Leadership;
use crate::driver::{ConfiguredDriver, ConfiguredDrivers, DuplicateName, Settings};
use crate::in_place::runtime_extension;
use crate::nodes::workload_cluster::Dial;
use crate::telemetry::metrics::Metrics;
use cmi_driver::Driver;
use cmi_grpc::server::ServerTls;

pub use client::{ApiServer, Protocol, RequestTimedOut, reading as reading_client};
pub use elector::{Election, Timing, TimingError, holder_identity};
pub use health::{Health, Pending};
pub use prepared::{ControllerOptions, OrphanOptions};

use controllers::LeaderTasks;
use elector::Elector;
use prepared::{ControllerContext, Prepared};
use serve::Tls;
use tasks::{Task, Tasks};

/// How long the elector may take to end, the handover of the lease included.
const ELECTOR_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of a manager.
pub struct Setup {
    /// How to reach the API server.
    pub api_server: ApiServer,
    /// How to reach the API servers of workload clusters.
    pub dial: Dial,
    /// The metrics of this process.
    pub metrics: Arc<Metrics>,
    /// The drivers, checked.
    pub drivers: Vec<(Settings, Arc<dyn Driver>)>,
    /// Leader election; `None` where this is the only replica.
    pub election: Option<Election>,
    /// The options of the controllers.
    pub options: ControllerOptions,
    /// The listener for `/healthz` and `/readyz`.
    pub health: TcpListener,
    /// Where `/metrics` is served, and to whom.
    pub diagnostics: Diagnostics,
    /// The Runtime Extension that Cluster API calls, if it is served.
    pub runtime_extension: Option<RuntimeExtension>,
    /// How long running reconciles may take to end.
    pub grace: Duration,
}

/// Where `/metrics` is served, and who may read it.
pub enum Diagnostics {
    /// Nowhere.
    Off,
    /// To every caller, over HTTP.
    Insecure(TcpListener),
    /// Over HTTPS, to callers that the API server lets `get` the path.
    Secure(TcpListener),
}

/// How the Runtime Extension is served.
pub enum RuntimeExtension {
    /// Over HTTPS, to Cluster API.
    Https {
        /// The listener.
        listener: TcpListener,
        /// The server certificate and the CA whose clients may connect.
        tls: Arc<ServerTls>,
    },
    /// To the holder of the receiver, in this process.
    InProcess(oneshot::Sender<axum::Router>),
}

/// Why a manager ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration of the client can't be used.
    #[error("cannot create the client of the API server")]
    Client(#[source] kube::Error),
    /// Two drivers have the same name.
    #[error(transparent)]
    Drivers(#[from] DuplicateName),
    /// The certificate of the diagnostics could not be made.
    #[error("cannot create the certificate of the diagnostics address")]
    Certificate(#[source] serve::TlsError),
    /// The lease could not be renewed in time, or another replica holds it.
    #[error("lost the leader election lease: this replica exits")]
    LeadershipLost,
    /// A task that should run as long as the process ended before it.
    #[error("{0} ended unexpectedly")]
    TaskEnded(&'static str),
}

/// Runs the controllers until `stop` resolves, then lets the running reconciles end, and hands over the
/// lease.
///
/// # Errors
/// [`Error`]: the failed setup, or the reason why this replica must stop.
pub async fn run(setup: Setup, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let (running, prepared) = Running::start(setup, Prepared::new)?;
    let stopping = running.stopping.clone();
    let leading = async move {
        let controllers = prepared.leading().await;
        controllers.start(&stopping).await
    };
    running.until(stop, leading).await
}

struct Running {
    leadership: Leadership,
    health: Health,
    stopping: CancellationToken,
    /// The controllers. They end after `stopping`, when their running reconciles have ended.
    controllers: Tasks,
    /// The tasks beside the controllers. The watches deliver the writes of the last reconciles.
    background: Tasks,
    /// The tasks that outlive the controllers and the lease.
    services: Tasks,
    elector: Option<(tokio::task::JoinHandle<()>, CancellationToken)>,
    grace: Duration,
}

impl Running {
    /// Starts all but the controllers. `prepare` registers conditions of readiness, so it comes before
    /// readiness is answered. It also returns the tasks that run from the start.
    fn start<T>(
        mut setup: Setup,
        prepare: impl FnOnce(&ControllerContext) -> (T, Vec<Task>),
    ) -> Result<(Self, T), Error> {
        let context = context(&mut setup)?;
        let (prepared, tasks) = prepare(&context);
        let own_client = || client::manager_client(&setup.api_server).map_err(Error::Client);
        let leadership = context.leadership;
        let mut services = Tasks::default();
        services.spawn(
            "the health server",
            serve::serve(setup.health, None, context.health.router()),
        );
        services.spawn("the watchdog", context.health.clone().watch());
        serve_diagnostics(&mut services, setup.diagnostics, &own_client()?, &context.metrics)?;
        if let Some(extension) = setup.runtime_extension {
            let router = runtime_extension::router(runtime_extension::Context {
                client: context.client.clone(),
                drivers: context.drivers.clone(),
                leadership: leadership.clone(),
                namespace: context.options.namespace.clone(),
                watch_filter: context.options.watch_filter.clone(),
            });
            match extension {
                RuntimeExtension::Https { listener, tls } => {
                    let tls = Tls::Files(tls);
                    let name = "the Runtime Extension";
                    services.spawn(name, serve::serve(listener, Some(tls), router));
                }
                // The receiver may be gone: nothing is served then.
                RuntimeExtension::InProcess(taker) => drop(taker.send(router)),
            }
        }
        let grace = context.options.driver_unreachable_grace;
        for driver in context.drivers.iter().map(Arc::clone) {
            services.spawn("a driver's probe", async move { driver.run(grace).await });
        }
        // No other request uses the connections of the lease.
        let lease_client = own_client()?;
        let mut background = Tasks::default();
        background.spawn_all(tasks);
        services.spawn(
            "the leader's gauge",
            show_leadership(leadership.clone(), context.metrics),
        );
        let running = Self {
            leadership: leadership.clone(),
            health: context.health,
            stopping: context.stopping,
            controllers: Tasks::default(),
            background,
            services,
            elector: setup
                .election
                .map(|election| start_elector(Elector::new(lease_client, election), leadership)),
            grace: setup.grace,
        };
        Ok((running, prepared))
    }

    /// Runs the tasks of the leader, once this replica leads. Shuts down when `stop` resolves, leadership is
    /// lost, or a task ends.
    async fn until(
        mut self,
        stop: impl Future<Output = ()>,
        leading: impl Future<Output = LeaderTasks>,
    ) -> Result<(), Error> {
        let leadership = self.leadership.clone();
        let (mut stop, mut leading) = (std::pin::pin!(stop), std::pin::pin!(leading.fuse()));
        let ended = loop {
            tokio::select! {
                () = &mut stop => break Ok(()),
                () = leadership.lost() => break Err(Error::LeadershipLost),
                name = self.first_ended() => break Err(Error::TaskEnded(name)),
                tasks = &mut leading => {
                    self.controllers.spawn_all(tasks.controllers);
                    self.background.spawn_all(tasks.background);
                }
            }
        };
        self.end(ended).await
    }

    /// Waits until any task has ended. None should.
    async fn first_ended(&mut self) -> &'static str {
        tokio::select! {
            name = self.controllers.first_ended() => name,
            name = self.background.first_ended() => name,
            name = self.services.first_ended() => name,
        }
    }

    /// Shuts down in order: no new work, the running work, the lease.
    async fn end(mut self, ended: Result<(), Error>) -> Result<(), Error> {
        match &ended {
            Ok(()) => tracing::info!(grace_s = self.grace.as_secs(), "stopping"),
            Err(error) => {
                tracing::error!(%error, "stopping");
                self.health.fail(error.to_string());
            }
        }
        self.health.stop();
        self.stopping.cancel();
        let ended = tokio::select! {
            () = self.controllers.drain(self.grace) => ended,
            () = self.leadership.lost() => ended.and(Err(Error::LeadershipLost)),
        };
        // Remaining work is dropped before the lease is released: it must not run beside the next leader.
        self.controllers.abort().await;
        self.background.abort().await;
        match self.elector {
            Some((elector, release)) => {
                release.cancel();
                if tokio::time::timeout(ELECTOR_SHUTDOWN_TIMEOUT, elector)
                    .await
                    .is_err()
                {
                    tracing::warn!("the lease was not handed over in time; it expires by itself");
                }
            }
            None => self.leadership.resign(),
        }
        self.services.abort().await;
        ended
    }
}

fn context(setup: &mut Setup) -> Result<ControllerContext, Error> {
    let leadership = match setup.election {
        Some(_) => Leadership::elected(),
        None => Leadership::unelected(),
    };
    let metrics = Arc::clone(&setup.metrics);
    let drivers = std::mem::take(&mut setup.drivers);
    Ok(ControllerContext {
        client: client::controller_client(&setup.api_server, leadership.clone()).map_err(Error::Client)?,
        dial: setup.dial.clone(),
        drivers: configured(drivers, &leadership, &metrics)?,
        metrics,
        leadership,
        health: Health::new(),
        stopping: CancellationToken::new(),
        options: Arc::new(setup.options.clone()),
    })
}

fn configured(
    drivers: Vec<(Settings, Arc<dyn Driver>)>,
    leadership: &Leadership,
    metrics: &Arc<Metrics>,
) -> Result<ConfiguredDrivers, DuplicateName> {
    let drivers = drivers
        .into_iter()
        .map(|(settings, driver)| {
            ConfiguredDriver::new(settings, driver, leadership.clone(), Arc::clone(metrics))
        })
        .collect();
    ConfiguredDrivers::new(drivers)
}

fn serve_diagnostics(
    services: &mut Tasks,
    diagnostics: Diagnostics,
    client: &kube::Client,
    metrics: &Arc<Metrics>,
) -> Result<(), Error> {
    let name = "the diagnostics server";
    match diagnostics {
        Diagnostics::Off => {}
        Diagnostics::Insecure(listener) => {
            let router = diagnostics::open(Arc::clone(metrics));
            services.spawn(name, serve::serve(listener, None, router));
        }
        Diagnostics::Secure(listener) => {
            let tls = Tls::self_signed().map_err(Error::Certificate)?;
            let router = diagnostics::reviewed(Arc::clone(metrics), client.clone());
            services.spawn(name, serve::serve(listener, Some(tls), router));
        }
    }
    Ok(())
}

fn start_elector(
    elector: Elector,
    leadership: Leadership,
) -> (tokio::task::JoinHandle<()>, CancellationToken) {
    let release = CancellationToken::new();
    let task = tokio::spawn(elector.run(leadership, release.clone()));
    (task, release)
}

async fn show_leadership(leadership: Leadership, metrics: Arc<Metrics>) {
    metrics.leads(false);
    leadership.acquired().await;
    metrics.leads(true);
    leadership.lost().await;
    metrics.leads(false);
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests;
