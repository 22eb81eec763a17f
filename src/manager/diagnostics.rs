//! `/metrics`, for every caller or for those that the API server lets in.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::reviewer::{Decision, Reviewer};
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics};
use cmi_driver::ErrorChain;

/// `/metrics` for every caller.
pub(super) fn open(metrics: Arc<Metrics>) -> Router {
    Router::new().route("/metrics", get(show)).with_state(metrics)
}

/// `/metrics` for callers that the API server lets `get` it.
pub(super) fn reviewed(metrics: Arc<Metrics>, client: kube::Client) -> Router {
    open(metrics).layer(from_fn_with_state(Arc::new(Reviewer::new(client)), review))
}

async fn show(State(metrics): State<Arc<Metrics>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.encode()).into_response()
}

async fn review(State(reviewer): State<Arc<Reviewer>>, request: Request, next: Next) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .map(str::trim)
        .filter(|token| !token.is_empty());
    let Some(token) = token else {
        return (StatusCode::UNAUTHORIZED, "bearer token required\n").into_response();
    };
    match reviewer.review(token, request.uri().path()).await {
        Ok(Decision::Allowed) => next.run(request).await,
        Ok(Decision::Unauthenticated) => (StatusCode::UNAUTHORIZED, "invalid bearer token\n").into_response(),
        Ok(Decision::Forbidden) => (StatusCode::FORBIDDEN, "access to this path is denied\n").into_response(),
        Err(error) => {
            tracing::warn!(error = %ErrorChain(&error), "cannot authorize a diagnostics request");
            (StatusCode::SERVICE_UNAVAILABLE, "cannot authorize the request\n").into_response()
        }
    }
}
