//! The connections of the controllers to the API server over HTTP/2: one for watches and one for all other
//! requests.
//!
//! kube's own client speaks HTTP/1.1, where each concurrent request needs a connection. A bare client made
//! 214 machines a second over HTTP/2, and 180 to 198 over HTTP/1.1 with a quarter more CPU. kube's parts do
//! the rest (certificates, tokens, impersonation, timeouts).
//!
//! # Guarantees
//! * The protocol is HTTP/1.1 without TLS, and where the server does not offer HTTP/2.
//! * A connection that is lost silently is replaced within [`PING_INTERVAL`] and [`PING_TIMEOUT`]. Otherwise
//!   every request over it would stall.
//! * A server that answers only pings for [`STALLED_AFTER`] loses its connections. The next ones may lead to
//!   another server at the same address.
//! * A request is repeated over another connection only if the server reports that it did not process the
//!   request. This happens at most [`MAX_TRANSPARENT_RETRIES`] times. No other request is repeated, since the
//!   server may have processed it.
//! * No connection gets a write while this replica does not lead. This holds however long the connection took
//!   to establish, and for repeated writes.

mod generation;

use std::error::Error as StdError;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Ready, ready};
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use rustls::pki_types::ServerName;
use tower::retry::{Policy, RetryLayer};
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

use crate::apiserver::leadership::Leadership;

use generation::{Connections, Purpose};

/// How long the server may be silent during a request before it gets a ping.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// How long the answer to a ping may take. A process that stalls for so long loses a healthy connection, and
/// a dead connection stalls its requests for so long.
const PING_TIMEOUT: Duration = Duration::from_secs(8);
/// A cancelled request marks its connection as stalled if it has waited at least this long.
const STALLED_AFTER: Duration = Duration::from_secs(15);
/// How many bytes of the answer to one request may be in flight or unread.
const STREAM_WINDOW: u32 = 2 << 20;
/// How many bytes of all answers of a connection may be in flight or unread. Concurrent streams never reach
/// this, so that an unread answer does not stall others.
const CONNECTION_WINDOW: u32 = 256 << 20;
/// How often a request is repeated that the server has not processed. A server that stops refuses a request
/// once.
const MAX_TRANSPARENT_RETRIES: u8 = 3;

/// The service that requests are sent through, as [`kube::client::ClientBuilder`] takes it.
pub(super) type HttpService = BoxService<Request<Body>, Response<Incoming>, BoxError>;

type Connector = TimeoutConnector<HttpsConnector<HttpConnector>>;
type Http = legacy::Client<Connector, Body>;

/// Returns the connections for a configuration without a proxy. Connects only when needed.
pub(super) fn http2(config: &Config, leadership: Leadership) -> Result<HttpService, kube::Error> {
    giving_up_after(STALLED_AFTER, config, leadership)
}

fn giving_up_after(
    stalled_after: Duration,
    config: &Config,
    leadership: Leadership,
) -> Result<HttpService, kube::Error> {
    let connections = Sender {
        connections: Arc::new(Connections::new(connector(config)?, stalled_after)),
        is_version_logged: Arc::default(),
        leadership,
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(RetryLayer::new(TransparentRetry(MAX_TRANSPARENT_RETRIES)))
        .service(connections);
    Ok(service.map_err(Into::into).boxed())
}

/// Returns a connector over TLS that offers HTTP/2 and HTTP/1.1, in this order.
fn connector(config: &Config) -> Result<Connector, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Many small requests share a connection: no request may wait for another's acknowledgement.
    tcp.set_nodelay(true);
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name =
            ServerName::try_from(name.clone()).map_err(|source| kube::Error::Service(source.into()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let tls = builder.enable_all_versions().wrap_connector(tcp);
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    Ok(connector)
}

fn http(connector: Connector) -> Http {
    legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector)
}

/// Sends requests over the current connections.
#[derive(Clone)]
struct Sender {
    connections: Arc<Connections>,
    is_version_logged: Arc<AtomicBool>,
    leadership: Leadership,
}

impl Service<Request<Body>> for Sender {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Incoming>, BoxError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let purpose = if is_watch(&request) {
            Purpose::Watch
        } else {
            Purpose::Request
        };
        let unanswered = self.connections.send(purpose);
        tracing::debug!(http.method = %request.method(), http.url = %request.uri(), "requesting");
        let leadership = is_write(request.method()).then(|| self.leadership.clone());
        let connection = capture_connection(&mut request);
        let mut answer = unanswered.http().request(request);
        let is_version_logged = Arc::clone(&self.is_version_logged);
        Box::pin(async move {
            // A ready connection gets the request in the same poll. After that, the answer counts.
            let answer = poll_fn(|cx| {
                if let Some(leadership) = &leadership
                    && connection.connection_metadata().is_none()
                {
                    leadership.check()?;
                }
                answer.poll_unpin(cx).map_err(BoxError::from)
            });
            let answer = answer.await?;
            unanswered.answered();
            if !is_version_logged.swap(true, Ordering::Relaxed) {
                tracing::info!(version = ?answer.version(), "connected to the API server");
            }
            Ok(answer)
        })
    }
}

/// Repeats a request that the server has not processed, over the next connection.
#[derive(Clone)]
struct TransparentRetry(u8);

impl<R> Policy<Request<Body>, R, BoxError> for TransparentRetry {
    type Future = Ready<()>;

    fn retry(&mut self, request: &mut Request<Body>, result: &mut Result<R, BoxError>) -> Option<Ready<()>> {
        let error = result.as_ref().err()?;
        if !is_unprocessed(&**error) {
            return None;
        }
        self.0 = self.0.checked_sub(1)?;
        tracing::debug!(method = %request.method(), path = request.uri().path(),
            "the API server closed the connection before it received the request; sending it again");
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let mut copy = Request::new(request.body().try_clone()?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        copy.headers_mut().clone_from(request.headers());
        *copy.extensions_mut() = request.extensions().clone();
        Some(copy)
    }
}

/// Whether the server reported that it has not processed a request (RFC 9113, 6.8 and 8.7). Either it refused
/// the stream, or it closes the connection and named an earlier stream as the last one.
fn is_unprocessed(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<h2::Error>())
        .filter(|error| error.is_remote())
        .any(|error| match error.reason() {
            Some(h2::Reason::NO_ERROR) => error.is_go_away(),
            Some(h2::Reason::REFUSED_STREAM) => error.is_reset(),
            Some(_) | None => false,
        })
}

/// Whether a request is a watch, which lasts as long as its caller wants the answer.
pub(super) fn is_watch(request: &Request<Body>) -> bool {
    request.method() == Method::GET
        && request.uri().query().is_some_and(|query| {
            query
                .split('&')
                .any(|pair| pair == "watch=true" || pair == "watch=1")
        })
}

pub(super) fn is_write(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

#[cfg(test)]
mod tests;
