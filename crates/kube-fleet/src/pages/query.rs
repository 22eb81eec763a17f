//! The query of a request.

use http::uri::PathAndQuery;
use http::{Request, Uri};

/// The pairs of a request's query.
pub(super) fn pairs<B>(request: &Request<B>) -> impl Iterator<Item = &str> {
    request.uri().query().unwrap_or_default().split('&')
}

/// Replaces the query of a request.
pub(super) fn set<B>(request: &mut Request<B>, query: &str) {
    let uri = request.uri();
    let mut parts = uri.clone().into_parts();
    if let Ok(path_and_query) = PathAndQuery::try_from(format!("{}?{query}", uri.path())) {
        parts.path_and_query = Some(path_and_query);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// Whether a request is a watch, which lasts as long as its caller wants the answer.
pub(super) fn is_watch<B>(request: &Request<B>) -> bool {
    pairs(request).any(|pair| pair == "watch=true" || pair == "watch=1")
}
