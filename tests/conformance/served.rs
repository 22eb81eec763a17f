//! A driver of this process as the suite meets a plugin: behind an endpoint.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capcmi::cli::conformance::connect;
use cmi_conformance::{ConnectionWire, Hook, HookCall, Hooks, Target};
use cmi_driver::{Driver, Operation};
use cmi_grpc::client::{Deadlines, GrpcConfig, GrpcDriver};
use cmi_grpc::server::{Listener, serve};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long the client waits for a call: longer than the suite does.
const MAX_CALL: Duration = Duration::from_secs(25);
/// How long running calls have to end.
const DRAIN: Duration = Duration::from_secs(1);

/// What serves a driver until this goes.
pub struct Server {
    driver: Arc<dyn Driver>,
    endpoint: String,
    running: Mutex<Running>,
}

struct Running {
    stop: CancellationToken,
    ended: JoinHandle<()>,
}

impl Server {
    pub async fn start(driver: Arc<dyn Driver>) -> Arc<Self> {
        let listener = bind("tcp://127.0.0.1:0").await;
        let endpoint = listener.endpoint().unwrap().to_string();
        Arc::new(Self {
            running: Mutex::new(run(Arc::clone(&driver), listener)),
            driver,
            endpoint,
        })
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn config(&self) -> GrpcConfig {
        GrpcConfig {
            endpoint: Some(self.endpoint.clone()),
            ..GrpcConfig::default()
        }
    }

    pub fn wire(&self) -> ConnectionWire {
        ConnectionWire::new(connect(self.config().connector().unwrap()))
    }

    pub fn client(&self) -> GrpcDriver {
        let timeouts = Operation::ALL.map(|operation| (operation, MAX_CALL));
        GrpcDriver::new(&self.config(), Deadlines::new(timeouts)).unwrap()
    }

    /// Every connection ends, and others are taken at the same endpoint.
    async fn restart(&self) {
        let mut running = self.running.lock().await;
        running.stop.cancel();
        (&mut running.ended).await.unwrap();
        *running = run(Arc::clone(&self.driver), bind(&self.endpoint).await);
    }

    /// Ends the server: nothing listens at the endpoint any more.
    pub async fn kill(&self) {
        let mut running = self.running.lock().await;
        running.stop.cancel();
        if !running.ended.is_finished() {
            (&mut running.ended).await.unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.get_mut().stop.cancel();
    }
}

async fn bind(endpoint: &str) -> Listener {
    Listener::bind(&endpoint.parse().unwrap(), None).await.unwrap()
}

fn run(driver: Arc<dyn Driver>, listener: Listener) -> Running {
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let ended = tokio::spawn(async move { serve(driver, listener, stopped, DRAIN).await.unwrap() });
    Running { stop, ended }
}

/// The hooks of a cloud, with a `restart` after which the server is another one.
pub struct RestartingHooks {
    pub cloud: Arc<dyn Hooks>,
    pub server: Arc<Server>,
}

#[async_trait]
impl Hooks for RestartingHooks {
    fn supports(&self, hook: Hook) -> bool {
        self.cloud.supports(hook)
    }

    async fn run(&self, call: &HookCall) -> anyhow::Result<Vec<u8>> {
        let answer = self.cloud.run(call).await?;
        if call.hook == Hook::Restart {
            self.server.restart().await;
        }
        Ok(answer)
    }
}

/// Serves a driver; what it is served by ends with the server.
pub async fn served(driver: Arc<dyn Driver>) -> (Target, Arc<Server>) {
    let server = Server::start(driver).await;
    let target = Target::plugin(
        "the plugin",
        Arc::new(server.client()),
        Arc::new(server.wire()),
        Arc::default(),
    );
    (target, server)
}
