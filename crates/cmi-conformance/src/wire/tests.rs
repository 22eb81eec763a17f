use futures::FutureExt as _;
use futures::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

/// A plugin's late reaction to a stream.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It resets the stream as grpc-go does.
    Reset,
    /// It answers that the call was cancelled.
    Cancelled,
    /// It closes the connection.
    Close,
}

/// A plugin that answers nothing else.
fn plugin(after: Duration, end: End) -> ConnectionWire {
    ConnectionWire::new(Box::new(move || {
        async move {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let closed = tokio_util::sync::CancellationToken::new();
            let close = closed.clone();
            let service = service_fn(move |_| {
                let close = close.clone();
                let ending = stream::once(async move {
                    tokio::time::sleep(after).await;
                    match end {
                        End::Reset => Err::<Frame<Bytes>, _>(h2::Error::from(h2::Reason::CANCEL)),
                        End::Cancelled => Ok(Frame::trailers(HeaderMap::from_iter([(
                            http::HeaderName::from_static("grpc-status"),
                            http::HeaderValue::from_static("1"),
                        )]))),
                        End::Close => {
                            close.cancel();
                            std::future::pending().await
                        }
                    }
                });
                let answer = Response::builder().header("content-type", "application/grpc");
                async move { answer.body(StreamBody::new(Box::pin(ending))) }
            });
            tokio::spawn(async move {
                let serving = server::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(theirs), service);
                closed.run_until_cancelled(serving).await
            });
            let (sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await?;
            tokio::spawn(connection);
            Ok((sender, Uri::from_static("http://localhost")))
        }
        .boxed()
    }))
}

const DEADLINE: Duration = Duration::from_millis(200);

async fn ended(after: Duration, end: End, deadline: Option<Duration>) -> anyhow::Result<RawResponse> {
    plugin(after, end)
        .call("/cmi.v1.Machine/CreateMachine", b"", deadline)
        .await
}

/// PLG-CR-04: for a call whose deadline has passed, grpc-go sends no trailers, or the trailers of the
/// cancelled handler.
#[tokio::test]
async fn a_reset_or_cancellation_at_the_deadline_is_deadline_exceeded() {
    for end in [End::Reset, End::Cancelled] {
        let answer = ended(DEADLINE, end, Some(DEADLINE)).await.unwrap();
        assert_eq!(answer.code.as_deref(), Some("4"), "{end:?}: {answer:?}");
    }
}

/// Without a deadline that has passed, CANCELLED is a code like any other.
#[tokio::test]
async fn a_call_that_is_cancelled_before_its_deadline_is_cancelled() {
    for deadline in [Some(Duration::from_mins(1)), None] {
        let answer = ended(Duration::ZERO, End::Cancelled, deadline).await.unwrap();
        assert_eq!(answer.code.as_deref(), Some("1"), "{deadline:?}: {answer:?}");
    }
}

#[tokio::test]
async fn an_early_reset_and_a_closed_connection_yield_no_status() {
    for (after, end, deadline) in [
        (Duration::ZERO, End::Reset, Some(Duration::from_mins(1))),
        (Duration::ZERO, End::Reset, None),
        (DEADLINE, End::Close, Some(DEADLINE)),
    ] {
        let error = ended(after, end, deadline).await.unwrap_err();
        assert!(error.is::<hyper::Error>(), "{end:?}: {error:#}");
    }
}
