//! Metadata after an OK. tonic sends the metadata of a response as headers, before it. The metadata in
//! `proto/` comes after it, next to the status, where libraries of other languages look for it.

use futures::future;
use http_body_util::BodyExt as _;
use tonic::Response;
use tonic::body::Body;
use tonic::metadata::MetadataMap;

/// The metadata to send after a response.
#[derive(Clone)]
struct Trailing(MetadataMap);

/// Attaches to the response the metadata that [`send`] sends after it.
pub(super) fn beside<T>(mut response: Response<T>, metadata: MetadataMap) -> Response<T> {
    response.extensions_mut().insert(Trailing(metadata));
    response
}

/// Sends after a response the metadata that [`beside`] has attached to it.
pub(super) fn send(mut response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions_mut().remove::<Trailing>() {
        None => response,
        Some(Trailing(metadata)) => response.map(|body| {
            let trailers = future::ready(Some(Ok(metadata.into_headers())));
            Body::new(body.with_trailers(trailers))
        }),
    }
}
