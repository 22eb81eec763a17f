//! A body that arrives late.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Error,
    body::{Frame, Incoming},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// Passes every frame of `body` on `delay` after it arrived, so what arrives in a burst leaves in a burst.
pub(super) fn delayed(body: Incoming, delay: Duration) -> UnsyncBoxBody<Bytes, Error> {
    let (sender, receiver) = mpsc::unbounded_channel::<(Instant, Result<Frame<Bytes>, Error>)>();
    tokio::spawn(async move {
        let mut frames = BodyStream::new(body);
        loop {
            let frame = tokio::select! {
                // The client has gone: the request to the API server ends with it.
                () = sender.closed() => break,
                frame = frames.next() => frame,
            };
            let Some(frame) = frame else { break };
            if sender.send((Instant::now() + delay, frame)).is_err() {
                break;
            }
        }
    });
    let frames = stream::unfold(receiver, |mut receiver| async move {
        let (due, frame) = receiver.recv().await?;
        sleep_until(due).await;
        Some((frame, receiver))
    });
    StreamBody::new(frames).boxed_unsync()
}
