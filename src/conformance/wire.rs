//! Bare gRPC: what a generated client would hide from a case.

use http::HeaderMap;
use http_body_util::{BodyExt as _, Full};
use prost::Message;
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use tonic::body::Body;
use tonic::transport::Channel;
use tower::ServiceExt as _;

use super::answer::{Halt, Outcome};

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What a plugin answered, byte for byte.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    /// What was called, for messages.
    pub path: &'static str,
    /// `grpc-status`, as it was written.
    pub code: String,
    /// `grpc-message`, as it was written.
    pub message: String,
    /// Whether there were status details.
    pub has_details: bool,
    body: Bytes,
}

/// Makes a unary call with whatever bytes.
///
/// # Errors
/// [`Halt::Failed`] when the connection breaks, or the answer is no answer of gRPC.
pub async fn call(channel: &Channel, path: &'static str, request: &[u8]) -> Outcome<RawAnswer> {
    let broken = |error: String| {
        Halt::Failed(format!(
            "{path} has to end in a gRPC status, and ended so: {error}"
        ))
    };
    let mut framed = BytesMut::with_capacity(request.len() + PREFIX);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(request.len()).map_err(|error| broken(error.to_string()))?);
    framed.put_slice(request);
    let request = http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(
            Full::new(framed.freeze()).map_err(|never| match never {}),
        ))
        .map_err(|error| broken(error.to_string()))?;
    let response = channel
        .clone()
        .oneshot(request)
        .await
        .map_err(|error| broken(error.to_string()))?;
    let (head, body) = response.into_parts();
    let collected = body.collect().await.map_err(|error| broken(error.to_string()))?;
    // An error may come without a body: then the trailers are among the headers.
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let find = |name: &str| text(&trailers, name).or_else(|| text(&head.headers, name));
    let Some(code) = find("grpc-status") else {
        return Err(broken(format!("HTTP {} without `grpc-status`", head.status)));
    };
    Ok(RawAnswer {
        path,
        code,
        message: find("grpc-message").unwrap_or_default(),
        has_details: find("grpc-status-details-bin").is_some(),
        body: collected.to_bytes(),
    })
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

impl RawAnswer {
    /// The response; anything but OK is a failure.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call was refused, or its response is of another kind.
    pub fn ok<T: Message + Default>(&self) -> Outcome<T> {
        self.is(tonic::Code::Ok)?;
        let message = self.body.get(PREFIX..).unwrap_or_default();
        T::decode(message)
            .map_err(|error| Halt::Failed(format!("the response of {} can't be read: {error}", self.path)))
    }

    /// Fails unless this is the code.
    ///
    /// # Errors
    /// [`Halt::Failed`] with the code that it is.
    pub fn is(&self, code: tonic::Code) -> Outcome {
        self.is_one_of(&[code])
    }

    /// Fails unless this is one of the codes.
    ///
    /// # Errors
    /// [`Halt::Failed`] with the code that it is.
    pub fn is_one_of(&self, codes: &[tonic::Code]) -> Outcome {
        if codes.iter().any(|code| self.number() == Some(*code as u8)) {
            return Ok(());
        }
        Err(Halt::Failed(format!(
            "{} has to answer {codes:?}, and answered code {}: {}",
            self.path, self.code, self.message
        )))
    }

    /// The code's number, when it is a canonical one.
    pub fn number(&self) -> Option<u8> {
        self.code.parse().ok().filter(|number| *number <= 16)
    }
}
