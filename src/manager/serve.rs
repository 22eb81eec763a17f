//! A small HTTP server, with or without TLS.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use cmi_grpc::connections::{Connections, Ticket};
use cmi_grpc::server::ServerTls;

/// The most concurrent connections.
const MAX_CONNECTIONS: usize = 256;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the head of a request may take, from the start of its connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of the head of a request: a token has a few KiB.
const MAX_HEADER_BYTES: usize = 32 * 1024;
/// How long a connection may last, with the review of its token and its answer.
const LIFETIME: Duration = Duration::from_secs(30);

/// The certificate for the handshake with a client.
#[derive(Clone)]
pub(super) enum Tls {
    /// A certificate that this process made for itself.
    SelfSigned(TlsAcceptor),
    /// Certificates in files, which may change.
    Files(Arc<ServerTls>),
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate could not be signed.
    #[error("signing failed")]
    Sign(#[from] rcgen::Error),
    /// The certificate can't be served.
    #[error("invalid TLS certificate")]
    Serve(#[from] rustls::Error),
}

impl Tls {
    /// Returns a certificate that no authority signed. A scraper of metrics is known by its token, and sends
    /// no secrets.
    pub(super) fn self_signed() -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "capcmi".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))?;
        Ok(Self::SelfSigned(TlsAcceptor::from(Arc::new(config))))
    }

    /// Returns the acceptor of handshakes; `None` where the files were never usable.
    fn acceptor(&self) -> Option<TlsAcceptor> {
        match self {
            Self::SelfSigned(acceptor) => Some(acceptor.clone()),
            Self::Files(files) => files.acceptor(),
        }
    }
}

/// Serves forever. Each connection takes one request, so that no connection is idle.
pub(super) async fn serve(listener: TcpListener, tls: Option<Tls>, router: Router) {
    let connections = Connections::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let ticket = Arc::new(connections.admit(peer.into()).await);
                let (tls, router) = (tls.clone(), router.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = ticket.evicted() => tracing::debug!(%peer, "closed an old connection to make \
                            room"),
                        () = handshake(stream, tls, router, &ticket) => {}
                        () = sleep(LIFETIME) => tracing::debug!(%peer, "connection timed out"),
                    }
                });
            }
            Err(error) => connections.failed_to_accept(&error).await,
        }
    }
}

async fn handshake(stream: TcpStream, tls: Option<Tls>, router: Router, ticket: &Arc<Ticket>) {
    match tls {
        None => answer(stream, router, ticket).await,
        Some(tls) => {
            let Some(acceptor) = tls.acceptor() else {
                return;
            };
            match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => answer(stream, router, ticket).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_elapsed) => tracing::debug!("TLS handshake timed out"),
            }
        }
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    ticket: &Arc<Ticket>,
) {
    let ticket = Arc::clone(ticket);
    let service = router.map_request(move |request: Request<Incoming>| {
        ticket.record_request();
        request
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended early");
    }
}

#[cfg(test)]
mod tests;
