//! One observed call on a connection: the way it ended decides the meaning of its status.
//!
//! tonic makes up a status for every transport failure: CANCELLED for a stream that was reset, UNIMPLEMENTED
//! for a page of HTML, OUT_OF_RANGE for a message that is too long. A stream that ended without a status
//! becomes OK. Mistaken for the plugin's answer, these would end machines. So the exchange records the
//! plugin's own status.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tonic::body::Body;
use tower::Service;

use super::metadata_observer::Observing;
use crate::MAX_MESSAGE_BYTES;
use crate::proto::capcmi::v1::machine_extension_client::MachineExtensionClient;
use crate::proto::cmi::v1::identity_client::IdentityClient;
use crate::proto::cmi::v1::machine_client::MachineClient;
use cmi_driver::Operation;

const GRPC_STATUS: &str = "grpc-status";
const USER_AGENT: &str = concat!("capcmi/", env!("CARGO_PKG_VERSION"));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// The plugin answered OK.
    Ok,
    /// The plugin answered with an error.
    Status,
    /// The server has nothing at the path of the call. A gRPC server answers UNIMPLEMENTED for an unknown
    /// service; a server that mixes gRPC with other content answers 404.
    NoRoute,
    /// The connection or the stream broke, or something else than a gRPC server answered.
    Broken,
    /// The connection had ended before the request was sent on it, or the plugin's server refused the stream
    /// before it did anything with it.
    NeverSent,
    /// The stream ended in order, but without a status.
    NoStatus,
}

/// The observed end of one call. The first observation counts.
#[derive(Clone, Debug)]
pub(super) struct StatusObserver {
    operation: Operation,
    ending: Arc<OnceLock<CallEnd>>,
    observing: Observing,
}

/// The error that broke a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    #[error("the connection to the plugin was lost")]
    Connection(#[source] hyper::Error),
    #[error(
        "the response is not gRPC (HTTP status {status}, content type `{content_type}`): check the \
            endpoint, and the routes of a proxy in front of the plugin"
    )]
    NotGrpc {
        status: StatusCode,
        content_type: String,
    },
}

/// The most bytes of an answer that is no list: a schema of 1 MiB fits in, and many such answers at a time
/// fit into the memory of a small process.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

fn max_answer_bytes(operation: Operation) -> usize {
    match operation {
        Operation::ListMachines => MAX_MESSAGE_BYTES,
        _ => MAX_ANSWER_BYTES,
    }
}

/// A connection that makes one call.
#[derive(Clone)]
pub(super) struct Exchange {
    sender: SendRequest<Body>,
    origin: Uri,
    observer: StatusObserver,
}

impl TransportError {
    fn ending(&self) -> CallEnd {
        match self {
            Self::NotGrpc {
                status: StatusCode::NOT_FOUND,
                ..
            } => CallEnd::NoRoute,
            // hyper reports this for a request that it still held when its connection ended.
            Self::Connection(error) if error.is_canceled() || is_refused(error) => CallEnd::NeverSent,
            Self::NotGrpc { .. } | Self::Connection(_) => CallEnd::Broken,
        }
    }
}

/// HTTP/2 promises that nothing was done with a stream that is refused: a server that stops, or has as many
/// streams as it takes, does so.
fn is_refused(error: &hyper::Error) -> bool {
    error
        .source()
        .and_then(|source| source.downcast_ref::<h2::Error>())
        .is_some_and(|error| error.is_remote() && error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

impl StatusObserver {
    /// The observer of a call that begins, with the observer of its metadata.
    pub(super) fn of(operation: Operation, observing: Observing) -> Self {
        Self {
            operation,
            ending: Arc::default(),
            observing,
        }
    }

    /// How the call ended; nothing when its answer was never read to the end.
    pub(super) fn ending(&self) -> Option<CallEnd> {
        self.ending.get().copied()
    }

    fn note(&self, ending: CallEnd) {
        // The first observation counts.
        let _ = self.ending.set(ending);
    }

    fn read(&self, headers: &HeaderMap) -> bool {
        if let Some(observer) = &self.observing {
            observer.observe(self.operation, headers);
        }
        let Some(status) = headers.get(GRPC_STATUS) else {
            return false;
        };
        self.note(if status == "0" {
            CallEnd::Ok
        } else {
            CallEnd::Status
        });
        true
    }
}

impl Exchange {
    /// Returns a call on this connection. The observer records how the call ended.
    pub(super) fn on(sender: SendRequest<Body>, origin: Uri, observer: StatusObserver) -> Self {
        Self {
            sender,
            origin,
            observer,
        }
    }

    /// For the calls of the Identity service.
    pub(super) fn identity(self) -> IdentityClient<Self> {
        let origin = self.origin.clone();
        IdentityClient::with_origin(self, origin)
    }

    /// For the published calls.
    pub(super) fn machine(self) -> MachineClient<Self> {
        let limit = max_answer_bytes(self.observer.operation);
        let origin = self.origin.clone();
        MachineClient::with_origin(self, origin).max_decoding_message_size(limit)
    }

    /// For the calls of the extension.
    pub(super) fn extension(self) -> MachineExtensionClient<Self> {
        let limit = max_answer_bytes(self.observer.operation);
        let origin = self.origin.clone();
        MachineExtensionClient::with_origin(self, origin).max_decoding_message_size(limit)
    }
}

impl Service<Request<Body>> for Exchange {
    type Response = Response<ObservedBody>;
    type Error = TransportError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let ready = ready!(self.sender.poll_ready(cx));
        Poll::Ready(ready.map_err(|error| {
            self.observer.note(CallEnd::NeverSent);
            TransportError::Connection(error)
        }))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let answer = self.sender.send_request(request);
        let observer = self.observer.clone();
        Box::pin(async move {
            let answer = answer
                .await
                .map_err(TransportError::Connection)
                .inspect_err(|broken| observer.note(broken.ending()))?;
            let (head, body) = answer.into_parts();
            if !observer.read(&head.headers) {
                check_grpc(head.status, &head.headers)
                    .inspect_err(|broken| observer.note(broken.ending()))?;
            }
            Ok(Response::from_parts(head, ObservedBody { body, observer }))
        })
    }
}

fn check_grpc(status: StatusCode, headers: &HeaderMap) -> Result<(), TransportError> {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .map_or("", |value| value.to_str().unwrap_or(""));
    if status == StatusCode::OK && content_type.starts_with("application/grpc") {
        return Ok(());
    }
    Err(TransportError::NotGrpc {
        status,
        content_type: content_type.to_owned(),
    })
}

/// The body of an answer, which reports to the observer how it ends.
pub(super) struct ObservedBody {
    body: Incoming,
    observer: StatusObserver,
}

impl http_body::Body for ObservedBody {
    type Data = Bytes;
    type Error = TransportError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            None => self.observer.note(CallEnd::NoStatus),
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.observer.read(trailers);
                }
            }
            Some(Err(_)) => self.observer.note(CallEnd::Broken),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(TransportError::Connection)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
