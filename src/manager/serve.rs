//! A small HTTP server, with or without TLS.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Connections at the same time; more wait in the kernel's queue.
const MOST_CONNECTIONS: usize = 64;
/// How long a client may take to greet.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to ask, again and again on the same connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// The wait after a connection could not be accepted, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A certificate and its key.
#[derive(Clone)]
pub(super) struct Tls(TlsAcceptor);

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It could not be signed.
    #[error("signing failed")]
    Sign(#[from] rcgen::Error),
    /// It can't be served.
    #[error("the certificate can't be served")]
    Serve(#[from] rustls::Error),
}

impl Tls {
    /// A certificate that nobody vouches for: who scrapes metrics is known by its token, and does not send secrets.
    pub(super) fn self_signed() -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "capcmi".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, tls: Option<Tls>, router: Router) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _peer)) => {
                let (tls, router) = (tls.clone(), router.clone());
                tokio::spawn(async move {
                    greet(stream, tls, router).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn greet(stream: TcpStream, tls: Option<Tls>, router: Router) {
    match tls {
        None => answer(stream, router).await,
        Some(Tls(acceptor)) => match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => answer(stream, router).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_elapsed) => tracing::debug!("TLS handshake took too long"),
        },
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}
