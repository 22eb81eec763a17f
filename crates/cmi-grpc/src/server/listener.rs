//! Sockets that a plugin listens on.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use http::Request;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::body::Body;
use tonic::transport::server::Connected;

use super::socket_file::SocketFile;
use super::tls::{ServerTls, TlsError};
use crate::connections::{Admitted, Connections, Peer, RequestRecorder, Ticket};
use crate::endpoint::{Authority, Endpoint};

/// The limit on concurrent connections.
const MAX_CONNECTIONS: usize = 256;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The length of the HTTP/2 client preface, and how long a client may take to send it.
const PREFACE: (usize, Duration) = (24, Duration::from_secs(5));

/// A socket that is listened on.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket. Dropping the listener removes its file.
    Unix {
        /// The socket.
        listener: UnixListener,
        /// Its file.
        file: SocketFile,
    },
    /// In plain text.
    Tcp(TcpListener),
    /// With TLS.
    Tls(TcpListener, ServerTls),
}

/// Why an endpoint can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A `tls://` endpoint was given no certificates.
    #[error("{0} requires a certificate, its key and the CA certificates of the clients")]
    NoCertificates(Endpoint),
    /// An endpoint without TLS was given certificates: they show that TLS is expected.
    #[error("{0} does not use TLS, but certificates are set: use `tls://`, or remove them")]
    UnusedCertificates(Endpoint),
    /// The certificates can't be used.
    #[error("cannot use the certificates for {endpoint}")]
    Certificates {
        /// The endpoint that needs them.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: TlsError,
    },
    /// Another plugin is already listening.
    #[error("another process listens on {}: stop it, or use another endpoint", .0.display())]
    Taken(PathBuf),
    /// Something else has the path.
    #[error("{} exists and is not a socket: remove it, or use another path", .0.display())]
    NoSocket(PathBuf),
    /// The operating system refused.
    #[error("cannot listen on {endpoint}")]
    Bind {
        /// The endpoint.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Listener {
    /// Listens. Creates nothing except for the socket (CMI-171). If the socket is a file, only this user may
    /// connect to it.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn bind(endpoint: &Endpoint, tls: Option<ServerTls>) -> Result<Self, ListenError> {
        match (endpoint, tls) {
            (Endpoint::Unix(_) | Endpoint::Tcp(_), Some(_)) => {
                Err(ListenError::UnusedCertificates(endpoint.clone()))
            }
            (Endpoint::Tls(_), None) => Err(ListenError::NoCertificates(endpoint.clone())),
            (Endpoint::Unix(path), None) => {
                let (listener, file) = bind_file(endpoint, path).await?;
                Ok(Self::Unix { listener, file })
            }
            (Endpoint::Tcp(authority), None) => Ok(Self::Tcp(bind_tcp(endpoint, authority).await?)),
            (Endpoint::Tls(authority), Some(tls)) => {
                tls.check().map_err(|source| ListenError::Certificates {
                    endpoint: endpoint.clone(),
                    source,
                })?;
                Ok(Self::Tls(bind_tcp(endpoint, authority).await?, tls))
            }
        }
    }

    /// Returns the endpoint, with the actual port for port 0.
    ///
    /// # Errors
    /// The operating system does not report the address.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        let authority = |listener: &TcpListener| {
            let address = listener.local_addr()?;
            Ok::<_, io::Error>(Authority {
                host: address.ip().to_string(),
                port: address.port(),
            })
        };
        match self {
            Self::Unix { file, .. } => Ok(Endpoint::Unix(file.path().to_owned())),
            Self::Tcp(listener) => Ok(Endpoint::Tcp(authority(listener)?)),
            Self::Tls(listener, _) => Ok(Endpoint::Tls(authority(listener)?)),
        }
    }
}

async fn bind_tcp(endpoint: &Endpoint, authority: &Authority) -> Result<TcpListener, ListenError> {
    TcpListener::bind((authority.host.as_str(), authority.port))
        .await
        .map_err(|source| ListenError::Bind {
            endpoint: endpoint.clone(),
            source,
        })
}

async fn bind_file(endpoint: &Endpoint, path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    let failed = |source| ListenError::Bind {
        endpoint: endpoint.clone(),
        source,
    };
    make_room(path).await.map_err(|problem| match problem {
        InTheWay::Listener => ListenError::Taken(path.to_owned()),
        InTheWay::Other => ListenError::NoSocket(path.to_owned()),
        InTheWay::Unreadable(source) => failed(source),
    })?;
    SocketFile::bind(path).map_err(failed)
}

/// The obstacle at the path of a new socket.
enum InTheWay {
    Listener,
    Other,
    Unreadable(io::Error),
}

/// Removes a socket without a listener: its plugin was killed.
async fn make_room(path: &Path) -> Result<(), InTheWay> {
    use std::os::unix::fs::FileTypeExt as _;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(InTheWay::Unreadable(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(InTheWay::Other),
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(InTheWay::Listener),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "removing a stale socket");
            std::fs::remove_file(path).map_err(InTheWay::Unreadable)
        }
        Err(error) => Err(InTheWay::Unreadable(error)),
    }
}

/// Connections over the file system.
pub(super) fn unix(listener: UnixListener) -> impl Stream<Item = io::Result<Admitted<UnixStream>>> {
    local(UnixListenerStream::new(listener))
}

/// Connections from this host.
pub(super) fn local<IO>(
    incoming: impl Stream<Item = io::Result<IO>>,
) -> impl Stream<Item = io::Result<Admitted<IO>>> {
    admitted(incoming, |_| Some(Peer::Local))
        .map(|(stream, ticket)| Ok(Admitted::new(stream, ticket, PREFACE)))
}

/// Connections over TCP.
pub(super) fn tcp(listener: TcpListener) -> impl Stream<Item = io::Result<Admitted<TcpStream>>> {
    prompt(listener).map(|(stream, ticket)| Ok(Admitted::new(stream, ticket, PREFACE)))
}

/// TLS connections from clients that have shown a certificate.
pub(super) fn tls(
    listener: TcpListener,
    tls: ServerTls,
) -> impl Stream<Item = io::Result<Admitted<TlsStream<TcpStream>>>> {
    prompt(listener)
        .map(move |(stream, ticket)| {
            let acceptor = tls.acceptor();
            async move {
                let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor?.accept(stream));
                let shaken = tokio::select! {
                    shaken = handshake => shaken,
                    () = ticket.evicted() => return None,
                };
                match shaken {
                    Ok(Ok(stream)) => Some(Ok(Admitted::new(stream, ticket, PREFACE))),
                    Ok(Err(error)) => {
                        tracing::info!(%error, "rejected a client");
                        None
                    }
                    Err(_elapsed) => {
                        tracing::info!("rejected a client: TLS handshake timed out");
                        None
                    }
                }
            }
        })
        // As many as can be open: no handshake waits for another client's.
        .buffer_unordered(2 * MAX_CONNECTIONS + 1)
        .filter_map(futures::future::ready)
}

/// TCP connections with `TCP_NODELAY`.
fn prompt(listener: TcpListener) -> impl Stream<Item = (TcpStream, Ticket)> {
    // A client that has disconnected already has no address.
    admitted(TcpListenerStream::new(listener), |stream: &TcpStream| {
        stream.peer_addr().ok().map(Peer::from)
    })
    .inspect(|(stream, _)| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot disable Nagle's algorithm");
        }
    })
}

/// Admitted connections. Skips failures of single connections, which would end a server.
fn admitted<S>(
    incoming: impl Stream<Item = io::Result<S>>,
    peer: fn(&S) -> Option<Peer>,
) -> impl Stream<Item = (S, Ticket)> {
    let connections = Connections::new(MAX_CONNECTIONS);
    incoming
        .then(move |accepted| {
            let connections = connections.clone();
            async move {
                match accepted {
                    Ok(stream) => {
                        let peer = peer(&stream)?;
                        Some((stream, connections.admit(peer).await))
                    }
                    Err(error) => {
                        connections.failed_to_accept(&error).await;
                        None
                    }
                }
            }
        })
        .filter_map(futures::future::ready)
}

impl<IO> Connected for Admitted<IO> {
    type ConnectInfo = RequestRecorder;

    fn connect_info(&self) -> RequestRecorder {
        self.request_recorder()
    }
}

pub(super) fn record_request(request: Request<Body>) -> Request<Body> {
    if let Some(request_recorder) = request.extensions().get::<RequestRecorder>() {
        request_recorder.record_request();
    }
    request
}
