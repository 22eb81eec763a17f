//! TLS of a server: 1.2 or later, with certificates from files. Both the client and the plugin show one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Certificates and a key in files, which are read again for every client, since a mounted Secret changes.
pub struct ServerTls {
    files: CertificateFiles,
    /// The protocol inside, as TLS negotiates it.
    protocol: &'static [u8],
    loaded: Mutex<Option<Loaded>>,
}

/// Where a server's certificates are, as PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The server's certificate and those that lead to its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of the clients that may call; without them, every client may.
    pub client_authorities: Option<PathBuf>,
}

/// The last content of the files, and the result of reading it.
struct Loaded {
    texts: Texts,
    config: Arc<ServerConfig>,
}

/// The content of the files.
#[derive(PartialEq, Eq)]
struct Texts {
    certificate: Vec<u8>,
    key: Vec<u8>,
    /// With the place that they were read from.
    client_authorities: Option<(PathBuf, Vec<u8>)>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerTls").field(&self.files).finish()
    }
}

/// Why certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is not PEM, or holds PEM of another kind.
    #[error("{} has unexpected PEM contents", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: pem::Error,
    },
    /// There is no certificate in a file.
    #[error("{} has no certificate", .0.display())]
    NoCertificate(PathBuf),
    /// The clients' authorities are not usable.
    #[error("cannot use the client CAs in {}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: VerifierBuilderError,
    },
    /// Certificate and key do not fit each other, or are of a kind that is not known.
    #[error("certificate and key do not work together")]
    Unusable(#[from] rustls::Error),
}

impl ServerTls {
    /// For gRPC. Reads nothing yet.
    pub fn new(files: CertificateFiles) -> Self {
        Self::inside(b"h2", files)
    }

    /// For a server of HTTP/1.1. Reads nothing yet.
    pub fn http1(files: CertificateFiles) -> Self {
        Self::inside(b"http/1.1", files)
    }

    fn inside(protocol: &'static [u8], files: CertificateFiles) -> Self {
        Self {
            files,
            protocol,
            loaded: Mutex::new(None),
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] when they can't be used.
    pub fn check(&self) -> Result<(), TlsError> {
        self.current().map(drop)
    }

    /// The acceptor for the handshake with the next client. While the files can't be used, the previous ones
    /// are.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        match self.current() {
            Ok(config) => Some(config.into()),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot use the new certificates; keeping the old ones"
                );
                let loaded = self.loaded.lock();
                loaded.as_ref().map(|loaded| Arc::clone(&loaded.config).into())
            }
        }
    }

    fn current(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let texts = self.files.read()?;
        let mut loaded = self.loaded.lock();
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.texts == texts) {
            return Ok(Arc::clone(&loaded.config));
        }
        let config = Arc::new(self.files.config(&texts, self.protocol)?);
        *loaded = Some(Loaded {
            texts,
            config: Arc::clone(&config),
        });
        Ok(config)
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<Texts, TlsError> {
        let read = |path: &Path| {
            fs::read(path).map_err(|source| TlsError::Read {
                path: path.to_owned(),
                source,
            })
        };
        Ok(Texts {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            client_authorities: match &self.client_authorities {
                Some(path) => Some((path.clone(), read(path)?)),
                None => None,
            },
        })
    }

    fn config(&self, texts: &Texts, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = match &texts.client_authorities {
            Some((path, text)) => verifier(path, text, &provider)?,
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let key = PrivateKeyDer::from_pem_slice(&texts.key).map_err(|source| TlsError::Pem {
            path: self.key.clone(),
            source,
        })?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(certificates(&self.certificate, &texts.certificate)?, key)?;
        config.alpn_protocols.push(protocol.to_vec());
        Ok(config)
    }
}

/// Lets in the clients of these authorities, and no others.
fn verifier(
    path: &Path,
    text: &[u8],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut authorities = RootCertStore::empty();
    for authority in certificates(path, text)? {
        authorities.add(authority)?;
    }
    WebPkiClientVerifier::builder_with_provider(authorities.into(), Arc::clone(provider))
        .build()
        .map_err(|source| TlsError::Authorities {
            path: path.to_owned(),
            source,
        })
}

/// Returns at least one certificate.
fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsError::Pem {
            path: path.to_owned(),
            source,
        })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate(path.to_owned()));
    }
    Ok(certificates)
}
