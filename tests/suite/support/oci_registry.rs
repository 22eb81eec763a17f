//! A registry that serves one repository from an OCI layout, as the distribution specification has it for
//! those who pull.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path as Place, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Ends with this.
pub struct OciRegistry {
    /// HOST:PORT, without TLS.
    pub address: String,
    server: JoinHandle<()>,
}

impl OciRegistry {
    /// Serves a layout under a name.
    pub async fn serve(layout: &Path, repository: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let manifests = format!("/v2/{repository}/manifests/{{reference}}");
        let blobs = format!("/v2/{repository}/blobs/{{digest}}");
        let router = Router::new()
            .route("/v2/", get(StatusCode::OK))
            .route(&manifests, get(manifest))
            .route(&blobs, get(blob))
            .with_state(Arc::new(layout.to_owned()));
        let server = tokio::spawn(async move {
            // It ends with the task.
            let _ended = axum::serve(listener, router).await;
        });
        Ok(Self { address, server })
    }
}

impl Drop for OciRegistry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// By its tag or its digest.
async fn manifest(State(layout): State<Arc<PathBuf>>, Place(reference): Place<String>) -> Response {
    let found = listed(&layout, &reference);
    served(found.and_then(|(digest, media_type)| Ok((content(&layout, &digest)?, digest, media_type))))
}

async fn blob(State(layout): State<Arc<PathBuf>>, Place(digest): Place<String>) -> Response {
    let media_type = "application/octet-stream".to_owned();
    served(content(&layout, &digest).map(|content| (content, digest, media_type)))
}

/// Digest and media type of a manifest that the index lists.
fn listed(layout: &Path, reference: &str) -> Result<(String, String)> {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let mut manifests = index["manifests"].as_array().into_iter().flatten();
    let is_meant = |manifest: &&Value| {
        let tag = &manifest["annotations"]["org.opencontainers.image.ref.name"];
        manifest["digest"] == reference || *tag == reference
    };
    let manifest = manifests.find(is_meant).context("no such manifest")?;
    let text = |field: &str| manifest[field].as_str().map(str::to_owned);
    Ok((
        text("digest").context("no digest")?,
        text("mediaType").context("no media type")?,
    ))
}

fn content(layout: &Path, digest: &str) -> Result<Vec<u8>> {
    let hash = digest.strip_prefix("sha256:").context("another kind of digest")?;
    Ok(fs::read(layout.join("blobs/sha256").join(hash))?)
}

fn served(found: Result<(Vec<u8>, String, String)>) -> Response {
    match found {
        Ok((content, digest, media_type)) => {
            ([(DIGEST, digest), (header::CONTENT_TYPE, media_type)], content).into_response()
        }
        Err(error) => (StatusCode::NOT_FOUND, format!("{error:#}")).into_response(),
    }
}
