//! Where a plugin is, and the connection to it: a socket, TCP, or TLS with files that are read each time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use http::Uri;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::first_bytes::{FirstBytes, Watched};
use crate::endpoint::Authority;
use crate::memory::MemoryAddress;

/// The protocol of gRPC, as TLS negotiates it.
const HTTP2: &[u8] = b"h2";

/// Where a plugin is.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// A socket on this host.
    Unix(PathBuf),
    /// A port, without any protection.
    Tcp(Authority),
    /// A port behind TLS.
    Tls(Authority, TlsFiles),
    /// An address within the process.
    Memory(MemoryAddress),
}

/// The files of a TLS connection.
#[derive(Clone, Debug)]
pub(super) struct TlsFiles {
    pub authorities: PathBuf,
    /// Certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub server_name: ServerName<'static>,
}

/// A hash of the content of the TLS files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 32]);

/// A connection, and the fingerprint of its TLS files.
pub(super) struct Dialled {
    pub stream: Box<dyn Stream>,
    pub fingerprint: Option<Fingerprint>,
}

/// Bytes both ways.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("connecting failed")]
    Connect(#[source] io::Error),
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not a PEM file of {what}", path.display())]
    Pem {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: pem::Error,
    },
    #[error("{} has no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("cannot use the TLS files")]
    Files(#[source] rustls::Error),
    #[error("TLS failed")]
    Handshake(#[source] io::Error),
    #[error("the server does not support HTTP/2 over TLS")]
    NoHttp2,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(authority) => write!(f, "tcp://{authority}"),
            Self::Tls(authority, _) => write!(f, "tls://{authority}"),
            Self::Memory(_) => f.write_str("memory"),
        }
    }
}

impl Target {
    /// Connects. `first` receives the first bytes from the network.
    pub(super) async fn dial(&self, first: &FirstBytes) -> Result<Dialled, DialError> {
        let plain = |stream| Dialled {
            stream,
            fingerprint: None,
        };
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(DialError::Connect)?;
                Ok(plain(Box::new(Watched::new(stream, first))))
            }
            Self::Tcp(authority) => Ok(plain(Box::new(Watched::new(tcp(authority).await?, first)))),
            Self::Tls(authority, files) => files.secure(tcp(authority).await?, first).await,
            Self::Memory(address) => {
                let stream = address.connect().map_err(DialError::Connect)?;
                Ok(plain(Box::new(Watched::new(stream, first))))
            }
        }
    }

    /// Whether TLS is expected there.
    pub(super) fn is_secure(&self) -> bool {
        matches!(self, Self::Tls(..))
    }

    /// The advice for a server that ends connections without an answer.
    pub(super) fn what_to_check(&self) -> &'static str {
        match self {
            Self::Unix(_) => "check that the plugin listens on this socket, and its log",
            Self::Tcp(_) => {
                "if the server requires TLS, use a tls:// endpoint; otherwise check the endpoint and the \
                    plugin's log"
            }
            Self::Tls(..) | Self::Memory(_) => "check the endpoint and the plugin's log",
        }
    }

    /// The URI of requests.
    pub(super) fn origin(&self) -> Uri {
        let origin = match self {
            Self::Unix(_) | Self::Memory(_) => None,
            Self::Tcp(authority) => format!("http://{authority}").parse().ok(),
            Self::Tls(authority, _) => format!("https://{authority}").parse().ok(),
        };
        origin.unwrap_or_else(|| Uri::from_static("http://localhost"))
    }

    /// The current fingerprint of the TLS files; `None` without TLS files.
    pub(super) async fn fingerprint(&self) -> Result<Option<Fingerprint>, DialError> {
        match self {
            Self::Unix(_) | Self::Tcp(_) | Self::Memory(_) => Ok(None),
            Self::Tls(_, files) => Ok(Some(files.read().await?.fingerprint())),
        }
    }
}

async fn tcp(Authority { host, port }: &Authority) -> Result<TcpStream, DialError> {
    let stream = TcpStream::connect((host.as_str(), *port))
        .await
        .map_err(DialError::Connect)?;
    stream.set_nodelay(true).map_err(DialError::Connect)?;
    Ok(stream)
}

/// The contents of the files.
struct Contents {
    authorities: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Contents {
    fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        let (cert, key) = self.identity.as_ref().map_or((&[][..], &[][..]), |(c, k)| (c, k));
        for part in [&self.authorities, cert, key] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        Fingerprint(hash.finalize().into())
    }
}

/// Shows no certificate, and records when the server requests one: the server's later error is less precise.
#[derive(Debug)]
struct NoCertificate(FirstBytes);

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.miss_certificate();
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

impl DialError {
    /// Whether the server refused the connection with a TLS alert.
    pub(super) fn is_refusal(&self) -> bool {
        let Self::Handshake(error) = self else {
            return false;
        };
        let cause = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<rustls::Error>());
        matches!(cause, Some(rustls::Error::AlertReceived(_)))
    }
}

impl TlsFiles {
    async fn secure(&self, stream: TcpStream, first: &FirstBytes) -> Result<Dialled, DialError> {
        let contents = self.read().await?;
        let fingerprint = contents.fingerprint();
        let connector = TlsConnector::from(Arc::new(self.client(contents, first)?));
        let stream = connector
            .connect(self.server_name.clone(), Watched::new(stream, first))
            .await
            .map_err(DialError::Handshake)?;
        // A server without ALPN may still speak HTTP/2; a server that chose another protocol does not.
        match stream.get_ref().1.alpn_protocol() {
            None | Some(HTTP2) => Ok(Dialled {
                stream: Box::new(stream),
                fingerprint: Some(fingerprint),
            }),
            Some(_) => Err(DialError::NoHttp2),
        }
    }

    async fn read(&self) -> Result<Contents, DialError> {
        let identity = match &self.identity {
            Some((cert, key)) => Some((read(cert).await?, read(key).await?)),
            None => None,
        };
        Ok(Contents {
            authorities: read(&self.authorities).await?,
            identity,
        })
    }

    fn client(&self, contents: Contents, first: &FirstBytes) -> Result<ClientConfig, DialError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.authorities, &contents.authorities)? {
            roots.add(authority).map_err(DialError::Files)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(DialError::Files)?
            .with_root_certificates(roots);
        let mut config = match (&self.identity, contents.identity) {
            (Some((cert_file, key_file)), Some((cert, key))) => {
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|source| DialError::Pem {
                    path: key_file.clone(),
                    what: "a private key",
                    source,
                })?;
                builder
                    .with_client_auth_cert(certificates(cert_file, &cert)?, key)
                    .map_err(DialError::Files)?
            }
            (_, _) => builder.with_client_cert_resolver(Arc::new(NoCertificate(first.clone()))),
        };
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, DialError> {
    tokio::fs::read(path).await.map_err(|source| DialError::Read {
        path: path.clone(),
        source,
    })
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, DialError> {
    let all = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| DialError::Pem {
            path: path.to_owned(),
            what: "certificates",
            source,
        })?;
    if all.is_empty() {
        return Err(DialError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(all)
}
