//! A proxy in front of a kube-apiserver that holds or refuses requests, for tests of how a client reacts.

mod fault;
mod forward;
mod request;

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use self::forward::Upstream;
pub use self::{
    fault::{Fault, Gate},
    request::ProxiedRequest,
};
use crate::{ManagementCluster, authority::Authority, kubeconfig};

/// A TLS reverse proxy, HTTP/1.1 only, in the runtime that it was started in. Credentials in a request's
/// headers pass through; client certificates do not. Answers pass through as they arrive, so watches work.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    authority: String,
    folder: PathBuf,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the API server of `management`. It calls `hook` for each request in order
    /// of arrival, and applies the returned fault.
    ///
    /// # Errors
    /// When no port or certificate can be had.
    pub async fn start(
        management: &ManagementCluster,
        hook: impl Fn(&ProxiedRequest) -> Fault + Send + Sync + 'static,
    ) -> Result<Self> {
        let (url, authority) = (management.url(), management.authority());
        let upstream = Arc::new(Upstream::new(url, authority, Box::new(hook))?);
        let authority = Authority::new("proxy")?;
        let acceptor = acceptor(&authority)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("opening the proxy's port")?;
        let url = format!("https://127.0.0.1:{}", listener.local_addr()?.port());
        let task = tokio::spawn(accept(listener, acceptor, upstream));
        let folder = management.folder().path().to_owned();
        Ok(Self {
            url,
            authority: authority.certificate().to_owned(),
            folder,
            task,
        })
    }

    /// Address of the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Writes a kubeconfig that has the token of `original` and reaches the API server through this proxy.
    ///
    /// # Errors
    /// When `original` is not one that this crate wrote.
    pub fn kubeconfig(&self, original: &Path) -> Result<PathBuf> {
        let document = kubeconfig::render(&self.url, &self.authority, &kubeconfig::token(original)?)?;
        let port = self.url.rsplit(':').next().unwrap_or_default();
        let name = original
            .file_name()
            .context("the kubeconfig has no name")?
            .to_string_lossy();
        kubeconfig::write(self.folder.join(format!("proxy-{port}-{name}")), &document)
    }

    /// A client that reaches the API server through this proxy with the token of `original`.
    ///
    /// # Errors
    /// When `original` is not one that this crate wrote.
    pub async fn client(&self, original: &Path) -> Result<kube::Client> {
        let path = self.kubeconfig(original)?;
        kubeconfig::client(&fs::read_to_string(path)?).await
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn acceptor(authority: &Authority) -> Result<TlsAcceptor> {
    let serving = authority.issue("proxy")?;
    let certificate = CertificateDer::from_pem_slice(serving.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(serving.key.as_bytes())?;
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .context("using the proxy's certificate")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, upstream: Arc<Upstream>) {
    // Connections end with the proxy: dropping the set aborts them.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(serve(stream, acceptor.clone(), Arc::clone(&upstream)));
            }
            Err(error) => tracing::warn!("accepting a connection to the proxy: {error}"),
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection. When the client disconnects, its waiting request is dropped. A request that is held
/// before being forwarded is then never forwarded.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, upstream: Arc<Upstream>) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(|request| {
        let upstream = Arc::clone(&upstream);
        async move { Ok::<_, std::convert::Infallible>(upstream.answer(request).await) }
    });
    if let Err(error) = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        tracing::debug!("a connection to the proxy ended: {error}");
    }
}
