//! Bare gRPC, which shows details that a client hides.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use prost::Message;
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use tokio::time::Instant;
use tonic::body::Body;

use super::answer::{CaseError, CaseResult};

/// The call that shows whether a plugin is serving.
pub const PROBE: &str = "/cmi.v1.Identity/Probe";
/// The polling interval for an open connection.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// The length of a message's prefix: the compression flag and the length.
const PREFIX: usize = 5;

/// A transport to a plugin that carries any bytes.
#[async_trait]
pub trait Wire: Send + Sync + 'static {
    /// Makes a unary call with this path, this message without its prefix, and this deadline, which is sent
    /// to the plugin. Only the plugin enforces the deadline: with a status, or with a reset of the stream,
    /// which then counts as `DEADLINE_EXCEEDED`, like `CANCELLED`.
    async fn call(
        &self,
        path: &str,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> anyhow::Result<RawResponse>;

    /// Opens a connection and makes no call on it. The returned future ends when the other end closes the
    /// connection, for example because its process ends.
    async fn hold(&self) -> anyhow::Result<BoxFuture<'static, ()>>;
}

/// The answer of a plugin, byte for byte.
#[derive(Clone, Debug, Default)]
pub struct RawResponse {
    /// `grpc-status`, unchanged; `None` if absent.
    pub code: Option<String>,
    /// `grpc-message`, as it was written.
    pub message: String,
    /// Whether there were status details.
    pub has_details: bool,
    /// The values of all headers and trailers, as they were written.
    pub metadata: Vec<String>,
    /// The message without its prefix; empty if absent.
    pub body: Bytes,
}

/// Opens a connection, and returns the URI for its requests.
pub type Connect =
    Box<dyn Fn() -> BoxFuture<'static, anyhow::Result<(SendRequest<Body>, Uri)>> + Send + Sync>;

/// A wire that opens a new connection for every call: a plugin has to take many.
pub struct ConnectionWire(Connect);

impl ConnectionWire {
    /// Returns a wire that makes its connections with `connect`.
    pub fn new(connect: Connect) -> Self {
        Self(connect)
    }
}

#[async_trait]
impl Wire for ConnectionWire {
    async fn call(
        &self,
        path: &str,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> anyhow::Result<RawResponse> {
        let mut framed = BytesMut::with_capacity(message.len() + PREFIX);
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len())?);
        framed.put_slice(message);
        let (mut connection, origin) = (self.0)().await?;
        let mut target = origin.into_parts();
        target.path_and_query = Some(path.parse()?);
        let mut request = Request::post(Uri::from_parts(target)?)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(deadline) = deadline {
            request = request.header("grpc-timeout", format!("{}m", deadline.as_millis()));
        }
        let body = Full::new(framed.freeze()).map_err(|never| match never {});
        let request = request.body(Body::new(body))?;
        let sent = Instant::now();
        let answer = exchange(&mut connection, request).await;
        let was_late = deadline.is_some_and(|deadline| sent.elapsed() >= deadline);
        match answer {
            Err(error) if was_late && is_reset(&error) => Ok(RawResponse::too_late()),
            Ok(response) if was_late && response.is_cancelled() => Ok(RawResponse {
                code: RawResponse::too_late().code,
                ..response
            }),
            answer => Ok(answer?),
        }
    }

    async fn hold(&self) -> anyhow::Result<BoxFuture<'static, ()>> {
        let (connection, _) = (self.0)().await?;
        Ok(Box::pin(async move {
            while !connection.is_closed() {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        }))
    }
}

async fn exchange(
    connection: &mut SendRequest<Body>,
    request: Request<Body>,
) -> Result<RawResponse, hyper::Error> {
    let (head, body) = connection.send_request(request).await?.into_parts();
    let collected = body.collect().await?;
    // An error may have no body, and then its trailers are among the headers.
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let find = |name: &str| text(&trailers, name).or_else(|| text(&head.headers, name));
    let (code, message) = (find("grpc-status"), find("grpc-message").unwrap_or_default());
    let has_details = find("grpc-status-details-bin").is_some();
    let values = head.headers.values().chain(trailers.values());
    let metadata = values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let metadata = metadata.collect();
    let body = collected.to_bytes();
    Ok(RawResponse {
        code,
        message,
        has_details,
        metadata,
        body: body.slice(PREFIX.min(body.len())..),
    })
}

/// Whether the plugin reset this stream alone. The end of a connection is not the end of a call.
fn is_reset(error: &hyper::Error) -> bool {
    error
        .source()
        .and_then(|source| source.downcast_ref::<h2::Error>())
        .is_some_and(|error| error.is_reset() && error.is_remote())
}

impl RawResponse {
    /// Returns the status that a gRPC client gives to a stream that is reset at its deadline. grpc-go and
    /// grpc-java then leave the status to the client, and send a reset instead.
    fn too_late() -> Self {
        Self {
            code: Some((tonic::Code::DeadlineExceeded as i32).to_string()),
            message: "the plugin reset the stream at its deadline".to_owned(),
            ..Self::default()
        }
    }

    /// Whether the call was cancelled on the plugin's side. grpc-go cancels a handler before it resets the
    /// stream at the deadline, and a quick handler gets its status sent in between.
    fn is_cancelled(&self) -> bool {
        self.code.as_deref() == Some((tonic::Code::Cancelled as i32).to_string().as_str())
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// An answer that ended in a status.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    path: &'static str,
    /// `grpc-status`, as it was written.
    pub code: String,
    response: RawResponse,
}

/// Makes a call that must end in a status (CMI-23).
///
/// # Errors
/// [`CaseError::Failed`] when the connection breaks, or there is no status.
pub async fn call(
    wire: &dyn Wire,
    path: &'static str,
    message: &[u8],
    deadline: Option<Duration>,
) -> CaseResult<RawAnswer> {
    let response = wire.call(path, message, deadline).await.map_err(|error| {
        CaseError::Failed(format!(
            "{path} must end with a gRPC status, but broke off: {error:#}"
        ))
    })?;
    let Some(code) = response.code.clone() else {
        return Err(CaseError::Failed(format!("{path} ended without `grpc-status`")));
    };
    Ok(RawAnswer { path, code, response })
}

impl RawAnswer {
    /// Returns the response; anything but OK is a failure.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call was refused, or its response is of another kind.
    pub fn ok<T: Message + Default>(&self) -> CaseResult<T> {
        self.is(tonic::Code::Ok)?;
        T::decode(self.response.body.clone())
            .map_err(|error| CaseError::Failed(format!("cannot read the response of {}: {error}", self.path)))
    }

    /// Fails unless the answer has this code.
    ///
    /// # Errors
    /// [`CaseError::Failed`] with the actual code.
    pub fn is(&self, code: tonic::Code) -> CaseResult {
        self.is_one_of(&[code])
    }

    /// Fails unless the answer has one of these codes.
    ///
    /// # Errors
    /// [`CaseError::Failed`] with the actual code.
    pub fn is_one_of(&self, codes: &[tonic::Code]) -> CaseResult {
        if codes.iter().any(|code| self.is_code(*code)) {
            return Ok(());
        }
        Err(CaseError::Failed(format!(
            "{} must answer {codes:?}, but answered code {}: {}",
            self.path,
            self.code,
            self.message()
        )))
    }

    /// Whether the answer has this code.
    pub fn is_code(&self, code: tonic::Code) -> bool {
        self.code == (code as i32).to_string()
    }

    /// Whether the code is one of gRPC's.
    pub fn is_canonical(&self) -> bool {
        self.code.parse().is_ok_and(|number: u8| number <= 16)
    }

    /// Returns the path of the call.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// Returns `grpc-message`, decoded: on the wire, bytes that are no printable ASCII are percent-encoded,
    /// and so is `%`.
    pub fn message(&self) -> String {
        percent_encoding::percent_decode_str(&self.response.message)
            .decode_utf8_lossy()
            .into_owned()
    }

    /// Returns `grpc-message`, byte for byte.
    pub fn message_as_written(&self) -> &str {
        &self.response.message
    }

    /// Returns the readable text in the response.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.response.body).into_owned()
    }

    /// Returns the values of headers and trailers, as they were written.
    pub fn metadata(&self) -> &[String] {
        &self.response.metadata
    }

    /// Whether there were status details.
    pub fn has_details(&self) -> bool {
        self.response.has_details
    }
}
