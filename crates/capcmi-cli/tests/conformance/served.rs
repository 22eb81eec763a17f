//! A driver of this process as the suite meets a plugin: behind gRPC, on a socket or within the process.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capcmi_cli::commands::conformance::connect;
use cmi_conformance::{ConnectionWire, Hook, HookCall, Hooks, Target};
use cmi_driver::{Driver, Operation};
use cmi_grpc::client::{Connector, Deadlines, GrpcConfig, GrpcDriver};
use cmi_grpc::memory::MemoryAddress;
use cmi_grpc::server::{Listener, ServeError, serve, serve_in_memory};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How long the client waits for a call: longer than the suite does.
const MAX_CALL: Duration = Duration::from_secs(25);
/// How long running calls may take to end.
const DRAIN: Duration = Duration::from_secs(1);

/// Serves a driver until it is dropped.
pub struct Server {
    driver: Arc<dyn Driver>,
    place: Place,
    running: Mutex<Running>,
}

/// The address of a server.
enum Place {
    /// A real socket, for tests in real time.
    Socket(String),
    /// An address within the process, for tests on a paused clock.
    Memory(MemoryAddress),
}

struct Running {
    stop: CancellationToken,
    ended: JoinHandle<()>,
}

impl Server {
    /// Serves on a real socket.
    pub async fn start(driver: Arc<dyn Driver>) -> Arc<Self> {
        let listener = bind("tcp://127.0.0.1:0").await;
        let place = Place::Socket(listener.endpoint().unwrap().to_string());
        let running = Mutex::new(on_socket(Arc::clone(&driver), listener));
        Arc::new(Self {
            driver,
            place,
            running,
        })
    }

    /// Serves within the process.
    pub fn in_memory(driver: Arc<dyn Driver>) -> Arc<Self> {
        let address = MemoryAddress::default();
        let running = Mutex::new(in_memory(Arc::clone(&driver), &address));
        let place = Place::Memory(address);
        Arc::new(Self {
            driver,
            place,
            running,
        })
    }

    pub fn endpoint(&self) -> &str {
        match &self.place {
            Place::Socket(endpoint) => endpoint,
            Place::Memory(_) => panic!("it has no socket"),
        }
    }

    fn config(&self) -> GrpcConfig {
        GrpcConfig {
            endpoint: Some(self.endpoint().to_owned()),
            ..GrpcConfig::default()
        }
    }

    pub fn wire(&self) -> ConnectionWire {
        let connector = match &self.place {
            Place::Socket(_) => self.config().connector().unwrap(),
            Place::Memory(address) => Connector::in_memory(address.clone()),
        };
        ConnectionWire::new(connect(connector))
    }

    pub fn client(&self) -> GrpcDriver {
        let deadlines = Deadlines::new(Operation::ALL.map(|operation| (operation, MAX_CALL)));
        match &self.place {
            Place::Socket(_) => GrpcDriver::new(&self.config(), deadlines).unwrap(),
            Place::Memory(address) => GrpcDriver::in_memory(address.clone(), deadlines),
        }
    }

    /// Ends every connection, and listens at the same address again.
    async fn restart(&self) {
        let mut running = self.running.lock().await;
        running.stop.cancel();
        (&mut running.ended).await.unwrap();
        let driver = Arc::clone(&self.driver);
        *running = match &self.place {
            Place::Socket(endpoint) => on_socket(driver, bind(endpoint).await),
            Place::Memory(address) => in_memory(driver, address),
        };
    }

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

fn on_socket(driver: Arc<dyn Driver>, listener: Listener) -> Running {
    running(|stop| serve(driver, listener, stop, DRAIN))
}

fn in_memory(driver: Arc<dyn Driver>, address: &MemoryAddress) -> Running {
    let connections = address.listen();
    running(|stop| serve_in_memory(driver, connections, stop, DRAIN))
}

fn running<F>(serve: impl FnOnce(WaitForCancellationFutureOwned) -> F) -> Running
where
    F: Future<Output = Result<(), ServeError>> + Send + 'static,
{
    let stop = CancellationToken::new();
    let serving = serve(stop.clone().cancelled_owned());
    let ended = tokio::spawn(async move { serving.await.unwrap() });
    Running { stop, ended }
}

/// The hooks of a cloud, with a `restart` that also replaces the server.
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

/// Serves a driver within the process. The returned server ends with its last owner.
pub fn served(driver: Arc<dyn Driver>) -> (Target, Arc<Server>) {
    let server = Server::in_memory(driver);
    let target = Target::plugin(
        "the plugin",
        Arc::new(server.client()),
        Arc::new(server.wire()),
        Arc::default(),
    );
    (target, server)
}
