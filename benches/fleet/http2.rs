//! HTTP/2 on one connection, below any Kubernetes client: the cheapest way that is known.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::config::Kubeconfig;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The Accept header of requests whose answer is metadata alone.
const METADATA_ALONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// The Accept header of lists whose answer is metadata alone.
const LIST_OF_METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// The number of last frames of a watch that are kept, each of 16 KiB at most: an event has a few.
const TAIL_FRAMES: usize = 16;

/// One connection to the API server. Clones share it.
#[derive(Clone)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    authority: Arc<str>,
    authorization: Arc<str>,
}

impl Connection {
    /// Opens a connection with a kubeconfig that has one server and one token.
    pub async fn open(kubeconfig: &Path) -> Result<Self> {
        let document = std::fs::read_to_string(kubeconfig).context("reading the kubeconfig")?;
        let kubeconfig = Kubeconfig::from_yaml(&document).context("reading the kubeconfig")?;
        let kubeconfig = serde_json::to_value(&kubeconfig)?;
        let text = |pointer: &str| {
            let value = kubeconfig.pointer(pointer).and_then(Value::as_str);
            value
                .map(str::to_owned)
                .with_context(|| format!("the kubeconfig lacks {pointer}"))
        };
        let server = text("/clusters/0/cluster/server")?;
        let authority = server
            .strip_prefix("https://")
            .context("the API server is not at https://")?;
        let authority = authority.trim_end_matches('/');
        let tls = tls(&text("/clusters/0/cluster/certificate-authority-data")?)?;
        let stream = TcpStream::connect(authority)
            .await
            .context("connecting to the API server")?;
        stream.set_nodelay(true)?;
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let name = ServerName::try_from(host.to_owned()).context("the API server's name")?;
        let stream = TlsConnector::from(tls)
            .connect(name, stream)
            .await
            .context("the API server's TLS")?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(1 << 24)
            .handshake(TokioIo::new(stream))
            .await
            .context("speaking HTTP/2")?;
        tokio::spawn(connection);
        Ok(Self {
            sender,
            authority: authority.into(),
            authorization: format!("Bearer {}", text("/users/0/user/token")?).into(),
        })
    }

    /// Writes an object. The answer is metadata, and is discarded.
    pub async fn write(&self, method: Method, path: &str, body: &impl serde::Serialize) -> Result<()> {
        let answer = self
            .send(method, path, METADATA_ALONE, serde_json::to_vec(body)?)
            .await?;
        drain(answer.into_body()).await
    }

    /// Writes an object. Returns the metadata of the answer.
    pub async fn write_and_read(
        &self,
        method: Method,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<Bytes> {
        let answer = self
            .send(method, path, METADATA_ALONE, serde_json::to_vec(body)?)
            .await?;
        Ok(answer.into_body().collect().await?.to_bytes())
    }

    /// Reads without parsing the answer.
    pub async fn read(&self, path: &str) -> Result<()> {
        let answer = self
            .send(Method::GET, path, "application/json", Vec::new())
            .await?;
        drain(answer.into_body()).await
    }

    /// Reads without parsing the answer. Returns its last bytes, which hold at least one event of a watch.
    pub async fn read_to_tail(&self, path: &str) -> Result<Vec<u8>> {
        let answer = self
            .send(Method::GET, path, "application/json", Vec::new())
            .await?;
        let (mut body, mut tail) = (answer.into_body(), VecDeque::new());
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.context("reading a watch")?.into_data() else {
                continue;
            };
            tail.push_back(data);
            while tail.len() > TAIL_FRAMES {
                tail.pop_front();
            }
        }
        Ok(tail.into_iter().flatten().collect())
    }

    /// Returns a page of metadata.
    pub async fn metadata(&self, path: &str) -> Result<Bytes> {
        let answer = self.send(Method::GET, path, LIST_OF_METADATA, Vec::new()).await?;
        Ok(answer.into_body().collect().await?.to_bytes())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>> {
        let what = format!("{method} {path}");
        let kind = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.authority))
            .header(header::AUTHORIZATION, &*self.authorization)
            .header(header::ACCEPT, accept)
            .header(header::CONTENT_TYPE, kind)
            .header(header::USER_AGENT, "capcmi-bench")
            .body(Full::new(Bytes::from(body)))?;
        let mut sender = self.sender.clone();
        sender.ready().await.with_context(|| what.clone())?;
        let answer = sender.send_request(request).await.with_context(|| what.clone())?;
        let status = answer.status();
        if !status.is_success() {
            let body = answer.into_body().collect().await?.to_bytes();
            bail!("{what}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(answer)
    }
}

async fn drain(mut body: Incoming) -> Result<()> {
    while let Some(frame) = body.frame().await {
        frame.context("reading an answer")?;
    }
    Ok(())
}

fn tls(authority: &str) -> Result<Arc<ClientConfig>> {
    let pem = BASE64_STANDARD
        .decode(authority)
        .context("the authority is no base64")?;
    let mut roots = RootCertStore::empty();
    for certificate in <CertificateDer as rustls::pki_types::pem::PemObject>::pem_slice_iter(&pem) {
        roots.add(certificate.context("the authority is no PEM")?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
