//! A connection to a plugin.

use std::time::Duration;

use http::Uri;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Request, Response};

use super::call_error::{self, CallError};
use super::config::Timeouts;
use super::exchange::{CallEnd, Exchange, StatusObserver};
use super::metadata_observer::Observing;
use super::target::Stream;
use super::too_late;
use cmi_driver::{ErrorChain, Operation};

/// The most bytes of the headers of an answer. Trailing metadata holds up to 4 KiB of state and 6 KiB of
/// response, in base64. Secrets are removed from a message before it is cut, so the full message must fit.
const MAX_HEADER_BYTES: u32 = 64 * 1024;
/// A list of many machines comes in large pieces.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// A plugin gets the client's deadline, too, and some gRPC libraries reset the stream when it passes. Their
/// clock may be ahead by this much. A call that breaks within this time before its deadline was too late, and
/// does not mean that the connection is broken.
const RESET_EARLY: Duration = Duration::from_millis(100);

/// A connection to a plugin. It ends with its last call after the last handle is gone.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Body>,
    origin: Uri,
    observing: Observing,
}

/// Makes a call on a [`Connection`]: `rpc!(connection, operation, deadline,
/// machine.create_machine(request))`. The name before the dot is the method of [`Exchange`] that makes the
/// client of the service.
macro_rules! rpc {
    ($connection:expr, $operation:expr, $deadline:expr, $service:ident.$method:ident($request:expr)) => {
        $connection.call($operation, $deadline, $request, |exchange, request| {
            let mut client = exchange.$service();
            async move { client.$method(request).await }
        })
    };
}
pub(super) use rpc;

impl Connection {
    /// Begins to speak HTTP/2.
    pub(super) async fn open(
        stream: Box<dyn Stream>,
        origin: Uri,
        timeouts: Timeouts,
    ) -> Result<Self, hyper::Error> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(timeouts.keepalive)
            .keep_alive_timeout(timeouts.keepalive_answer)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(4 * STREAM_WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %ErrorChain(&error), "connection to a plugin lost");
            }
        });
        Ok(Self {
            sender,
            origin,
            observing: None,
        })
    }

    /// Adds the observer to the connection.
    pub(super) fn observed_by(self, observing: Observing) -> Self {
        Self { observing, ..self }
    }

    /// The bare connection, and the URI that requests on it are for.
    pub(super) fn into_parts(self) -> (SendRequest<Body>, Uri) {
        (self.sender, self.origin)
    }

    /// Whether no more calls can be made on it.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Makes a call. The plugin gets the time that the client waits; when this future is
    /// dropped, its stream is reset.
    pub(super) async fn call<Q, A, F>(
        &self,
        operation: Operation,
        deadline: Instant,
        message: Q,
        run: impl FnOnce(Exchange, Request<Q>) -> F + Send,
    ) -> Result<Response<A>, CallError>
    where
        F: Future<Output = Result<Response<A>, tonic::Status>> + Send,
    {
        let observer = StatusObserver::of(operation, self.observing.clone());
        let exchange = Exchange::on(self.sender.clone(), self.origin.clone(), observer.clone());
        let given = left(deadline);
        let mut request = Request::new(message);
        request.set_timeout(given);
        let answer = call_error::answer(operation, &observer, run(exchange, request).await);
        if observer.ending() == Some(CallEnd::Broken) && left(deadline) < RESET_EARLY {
            return Err(CallError::NoAnswer(too_late(operation, given)));
        }
        answer
    }
}

/// Never zero: that would not be a timeout.
fn left(deadline: Instant) -> Duration {
    deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}
