//! A watch that expires.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Error,
    body::{Frame, Incoming},
};
use serde_json::json;

use super::Gate;

/// Passes every frame of `body` on until the gate opens; then says, as an API server does, that the version
/// that is watched from is too old, and ends.
pub(super) fn expiring(body: Incoming, gate: Gate) -> UnsyncBoxBody<Bytes, Error> {
    let opened = Box::pin(async move { gate.pass().await });
    let frames = stream::unfold(
        Some((BodyStream::new(body), opened)),
        async |state| -> Option<(Result<Frame<Bytes>, Error>, Option<_>)> {
            let (mut frames, mut opened) = state?;
            tokio::select! {
                frame = frames.next() => Some((frame?, Some((frames, opened)))),
                () = &mut opened => Some((Ok(Frame::data(expired())), None)),
            }
        },
    );
    StreamBody::new(frames).boxed_unsync()
}

fn expired() -> Bytes {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": "Expired",
        "message": "too old resource version", "code": 410,
    });
    Bytes::from(format!("{}\n", json!({"type": "ERROR", "object": status})))
}
