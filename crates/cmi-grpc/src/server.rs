//! A driver as a plugin: the services of `proto/` on a socket, with health and reflection.
//!
//! Implements the common duties of every plugin: requests are checked, and undeclared calls are not made. The
//! driver's call is dropped at its deadline or when the client disconnects. A panic becomes an answer, and a
//! stop lets running calls end.

mod deadline;
mod identity;
mod listener;
mod machine;
mod plugin;
mod reply;
mod socket_file;
mod tls;
mod trailing;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Connected, Router};
use tower::util::{MapRequestLayer, MapResponseLayer};

pub use listener::{ListenError, Listener};
pub use socket_file::SocketFile;
pub use tls::{CertificateFiles, ServerTls, TlsError};

use super::MAX_MESSAGE_BYTES;
use super::proto::DESCRIPTORS;
use super::proto::capcmi::v1::machine_extension_server::MachineExtensionServer;
use super::proto::cmi::v1::identity_server::IdentityServer;
use super::proto::cmi::v1::machine_server::MachineServer;
use cmi_driver::Driver;
use deadline::DeadlineLayer;
use plugin::Plugin;

/// The interval of pings to a silent client, so that the calls of a vanished client are dropped.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// How long the answer to a ping may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long answers may take to leave, once every call has ended.
const FLUSH: Duration = Duration::from_secs(2);

/// Why serving ended before `stop`.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// gRPC could not be served.
    #[error("cannot serve gRPC")]
    Transport(#[source] tonic::transport::Error),
    /// The descriptors of `proto/` can't be shown.
    #[error("cannot set up gRPC reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
}

/// Serves the driver until `stop`. Then no further call is accepted, and running calls have the time `drain`
/// to end. Calls that exceed it are dropped and answered with UNAVAILABLE.
///
/// # Errors
/// [`ServeError`] when serving ends before `stop`.
pub async fn serve(
    driver: Arc<dyn Driver>,
    listener: Listener,
    stop: impl Future<Output = ()>,
    drain: Duration,
) -> Result<(), ServeError> {
    let service = Service::new(driver)?;
    match listener {
        Listener::Unix { listener, file } => {
            let served = service.run(listener::unix(listener), stop, drain).await;
            // Not before the last answer: a new plugin would take the path.
            drop(file);
            served
        }
        Listener::Tcp(listener) => service.run(listener::tcp(listener), stop, drain).await,
        Listener::Tls(listener, tls) => service.run(listener::tls(listener, tls), stop, drain).await,
    }
}

/// Serves the driver on connections within the process, like [`serve`] on a socket.
///
/// # Errors
/// [`ServeError`] when serving ends before `stop`.
pub async fn serve_in_memory(
    driver: Arc<dyn Driver>,
    connections: impl Stream<Item = DuplexStream>,
    stop: impl Future<Output = ()>,
    drain: Duration,
) -> Result<(), ServeError> {
    let incoming = listener::local(connections.map(Ok));
    Service::new(driver)?.run(incoming, stop, drain).await
}

/// All services of a plugin, and the tokens that stop them.
struct Service {
    router: Router<Layers>,
    health: tonic_health::server::HealthReporter,
    /// Drops every call that runs.
    abort: CancellationToken,
}

type SendTrailers = fn(http::Response<tonic::body::Body>) -> http::Response<tonic::body::Body>;
type RecordRequest = fn(http::Request<tonic::body::Body>) -> http::Request<tonic::body::Body>;
type Layers = tower::layer::util::Stack<
    MapResponseLayer<SendTrailers>,
    tower::layer::util::Stack<
        DeadlineLayer,
        tower::layer::util::Stack<MapRequestLayer<RecordRequest>, tower::layer::util::Identity>,
    >,
>;

impl Service {
    fn new(driver: Arc<dyn Driver>) -> Result<Self, ServeError> {
        let abort = CancellationToken::new();
        let plugin = Plugin::new(driver, abort.clone());
        let (health, health_service) = tonic_health::server::health_reporter();
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let router = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .layer(MapRequestLayer::new(listener::record_request as RecordRequest))
            .layer(DeadlineLayer)
            .layer(MapResponseLayer::new(trailing::send as SendTrailers))
            .add_service(IdentityServer::new(plugin.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
            .add_service(
                MachineServer::new(plugin.clone())
                    .max_decoding_message_size(MAX_MESSAGE_BYTES)
                    .max_encoding_message_size(MAX_MESSAGE_BYTES),
            )
            .add_service(
                MachineExtensionServer::new(plugin)
                    .max_decoding_message_size(MAX_MESSAGE_BYTES)
                    .max_encoding_message_size(MAX_MESSAGE_BYTES),
            )
            .add_service(health_service)
            .add_service(reflection().build_v1().map_err(ServeError::Reflection)?)
            .add_service(reflection().build_v1alpha().map_err(ServeError::Reflection)?);
        Ok(Self {
            router,
            health,
            abort,
        })
    }

    async fn run<IO>(
        mut self,
        incoming: impl Stream<Item = io::Result<IO>>,
        stop: impl Future<Output = ()>,
        drain: Duration,
    ) -> Result<(), ServeError>
    where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        self.say_serving().await;
        let (stopping, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // A sender that was dropped stops the server, too.
            let _either = stopped.await;
        };
        let mut serving = Box::pin(self.router.serve_with_incoming_shutdown(incoming, stopped));
        tokio::select! {
            ended = &mut serving => return ended.map_err(ServeError::Transport),
            () = stop => {}
        }
        tracing::info!("stopping; running calls may finish");
        say_stopping(&mut self.health).await;
        drop(stopping);
        if let Ok(ended) = timeout(drain, &mut serving).await {
            return ended.map_err(ServeError::Transport);
        }
        tracing::warn!(?drain, "canceled the calls that did not end in time");
        self.abort.cancel();
        match timeout(FLUSH, serving).await {
            Ok(ended) => ended.map_err(ServeError::Transport),
            Err(_elapsed) => Ok(()),
        }
    }

    async fn say_serving(&self) {
        self.health.set_serving::<IdentityServer<Plugin>>().await;
        self.health.set_serving::<MachineServer<Plugin>>().await;
        self.health.set_serving::<MachineExtensionServer<Plugin>>().await;
    }
}

/// Notifies the watchers of the health, and ends their streams.
async fn say_stopping(health: &mut tonic_health::server::HealthReporter) {
    use tonic::server::NamedService;
    let all = [
        "",
        <IdentityServer<Plugin> as NamedService>::NAME,
        <MachineServer<Plugin> as NamedService>::NAME,
        <MachineExtensionServer<Plugin> as NamedService>::NAME,
    ];
    for service in all {
        health
            .set_service_status(service, tonic_health::ServingStatus::NotServing)
            .await;
        health.clear_service_status(service).await;
    }
}
