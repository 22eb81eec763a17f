//! Deadlines of calls: `grpc-timeout` drops the call, and the answer is DEADLINE_EXCEEDED.
//!
//! tonic enforces deadlines too, but answers CANCELLED. This layer sits inside tonic's. Its clock starts
//! first, and it is polled first when both have expired, so tonic's never answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

/// Enforces the deadlines of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeadlineLayer;

/// A service whose calls have deadlines.
#[derive(Clone, Debug)]
pub(super) struct Deadline<S>(S);

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, service: S) -> Deadline<S> {
        Deadline(service)
    }
}

impl<S, B> Service<Request<B>> for Deadline<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The timer starts here and not at the first poll: before tonic's.
        let Some(sleep) = grpc_timeout(request.headers()).map(tokio::time::sleep) else {
            return Box::pin(self.0.call(request));
        };
        let answer = self.0.call(request);
        Box::pin(async move {
            tokio::select! {
                biased;
                answer = answer => answer,
                () = sleep => Ok(Status::deadline_exceeded("the call's deadline has passed").into_http()),
            }
        })
    }
}

/// The client's deadline: at most eight digits and a unit. A malformed deadline is ignored.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 60 * 60)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Duration> {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-timeout"),
            text.parse().unwrap(),
        )]);
        grpc_timeout(&headers)
    }

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        for (text, nanos) in [
            ("2H", 7_200_000_000_000),
            ("3M", 180_000_000_000),
            ("4S", 4_000_000_000),
        ] {
            assert_eq!(read(text), Some(Duration::from_nanos(nanos)));
        }
        for (text, nanos) in [("99999999m", 99_999_999_000_000), ("5u", 5_000), ("0n", 0)] {
            assert_eq!(read(text), Some(Duration::from_nanos(nanos)));
        }
        for text in ["", "m", "1", "123456789m", "-1m", "+1m", "1 m", "1x"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
