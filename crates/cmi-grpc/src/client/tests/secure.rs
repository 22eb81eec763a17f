//! TLS: the plugin's authority, the client's certificate, and files that change.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::plugin::Plugin;
use super::*;

/// An authority that vouches for both sides.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    fn vouch_for(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        roots
    }
}

/// A plugin behind TLS that requests and records each caller's certificate.
struct Secured {
    plugin: Plugin,
    port: u16,
    callers: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
}

impl Secured {
    async fn start(authority: &Authority) -> Self {
        Self::start_with(authority, rustls::ALL_VERSIONS).await
    }

    async fn start_with(
        authority: &Authority,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Self {
        let (certificate, key) = authority.vouch_for("plugin.example.com");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let callers =
            WebPkiClientVerifier::builder_with_provider(Arc::new(authority.roots()), Arc::clone(&provider));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_client_cert_verifier(callers.build().unwrap())
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (acceptor, plugin) = (TlsAcceptor::from(Arc::new(config)), Plugin::absent());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let callers = Arc::default();
        let this = Self {
            plugin,
            port,
            callers: Arc::clone(&callers),
        };
        let serve = this.plugin.script();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let caller = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
                callers.lock().unwrap().push(caller);
                tokio::spawn(serve.serve(Box::new(stream)));
            }
        });
        this
    }

    fn callers(&self) -> Vec<Vec<u8>> {
        self.callers.lock().unwrap().clone()
    }
}

/// The files of a mounted Secret.
struct Files(TempDir);

impl Files {
    fn new(authority: &Authority) -> (Self, Vec<u8>) {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("ca.crt", &authority.certificate.pem());
        let certificate = files.renew(authority);
        (files, certificate)
    }

    /// Writes another certificate of ours, and gives it.
    fn renew(&self, authority: &Authority) -> Vec<u8> {
        let (certificate, key) = authority.vouch_for("provider");
        self.write("tls.crt", &certificate.pem());
        self.write("tls.key", &key.serialize_pem());
        certificate.der().to_vec()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn config(&self, port: u16, more: &str) -> GrpcConfig {
        let folder = self.path().display();
        serde_saphyr::from_str(&format!(
            "{{endpoint: 'tls://127.0.0.1:{port}', tls: {{caFile: {folder}/ca.crt, certFile: \
                {folder}/tls.crt, keyFile: {folder}/tls.key{more}}}}}"
        ))
        .unwrap()
    }

    fn driver(&self, port: u16, more: &str) -> GrpcDriver {
        driver_of(self.config(port, more).target(None).unwrap(), LONG)
    }
}

const NAMED: &str = ", serverName: plugin.example.com";

/// CMI-160, CMI-192
#[tokio::test]
async fn plugin_and_provider_show_each_other_their_certificates() {
    let authority = Authority::new();
    let secured = Secured::start(&authority).await;
    let (files, ours) = Files::new(&authority);
    let driver = files.driver(secured.port, NAMED);
    driver.create_machine(create()).await.unwrap();
    assert_eq!(secured.callers(), [ours]);
}

#[tokio::test]
async fn a_plugin_of_another_name_or_authority_gets_no_call() {
    let authority = Authority::new();
    let secured = Secured::start(&authority).await;
    let (files, _) = Files::new(&authority);
    let misnamed = files
        .driver(secured.port, "")
        .create_machine(create())
        .await
        .unwrap_err();
    assert_eq!(misnamed.code(), Code::Unavailable);
    assert!(misnamed.message().contains("not valid for name"), "{misnamed}");
    files.write("ca.crt", &Authority::new().certificate.pem());
    let unknown = files
        .driver(secured.port, NAMED)
        .create_machine(create())
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::Unavailable);
    assert!(unknown.message().contains("certificate"), "{unknown}");
    assert!(secured.plugin.calls().is_empty());
}

#[tokio::test]
async fn a_provider_that_the_plugin_does_not_know_is_unavailable_and_says_why() {
    let authority = Authority::new();
    let secured = Secured::start(&authority).await;
    let (files, _) = Files::new(&authority);
    files.renew(&Authority::new());
    let status = files
        .driver(secured.port, NAMED)
        .create_machine(create())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("alert"), "{status}");
    assert!(secured.plugin.calls().is_empty());
}

/// The error names the missing flag instead of `CertificateRequired` or a broken pipe.
#[tokio::test]
async fn a_missing_client_certificate_is_named_with_its_flags() {
    let authority = Authority::new();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let secured = Secured::start_with(&authority, &[version]).await;
        let (files, _) = Files::new(&authority);
        let ca_file = files.path().join("ca.crt");
        let anonymous = |name: &str| {
            let (port, ca_file) = (secured.port, ca_file.display());
            let yaml = format!("{{endpoint: 'tls://127.0.0.1:{port}', tls: {{caFile: {ca_file}{name}}}}}");
            let config: GrpcConfig = serde_saphyr::from_str(&yaml).unwrap();
            driver_of(config.target(None).unwrap(), LONG)
        };
        let status = anonymous(NAMED).probe().await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        for part in ["requires a client certificate", "--cert-file", "`tls.keyFile`"] {
            assert!(status.message().contains(part), "{version:?}: {status}");
        }
        // Other mistakes are not blamed on the client certificate.
        let status = anonymous("").probe().await.unwrap_err();
        assert!(
            status.message().contains("not valid for name"),
            "{version:?}: {status}"
        );
        assert!(!status.message().contains("--cert-file"), "{version:?}: {status}");
    }
}

#[tokio::test]
async fn changed_certificate_files_apply_from_the_next_probe_if_valid() {
    let authority = Authority::new();
    let secured = Secured::start(&authority).await;
    let (files, first) = Files::new(&authority);
    let driver = files.driver(secured.port, NAMED);
    driver.probe().await.unwrap();
    driver.probe().await.unwrap();
    files.write("tls.crt", "half of a file");
    driver.probe().await.unwrap();
    driver.create_machine(create()).await.unwrap();
    assert_eq!(secured.callers(), std::slice::from_ref(&first));
    let second = files.renew(&authority);
    driver.probe().await.unwrap();
    driver.create_machine(create()).await.unwrap();
    assert_eq!(secured.callers(), [first, second]);
    assert_eq!(driver.connection_generation(), 1, "it is the same plugin");
}

#[tokio::test]
async fn files_that_are_not_there_or_hold_something_else_are_named() {
    let authority = Authority::new();
    let secured = Secured::start(&authority).await;
    for (name, text, expected) in [
        ("tls.key", "no key", "tls.key is not a PEM file of a private key"),
        ("tls.crt", "", "tls.crt has no certificate"),
        ("ca.crt", "", "ca.crt has no certificate"),
    ] {
        let (files, _) = Files::new(&authority);
        files.write(name, text);
        let status = files.driver(secured.port, NAMED).probe().await.unwrap_err();
        assert!(status.message().contains(expected), "{status}");
    }
    let (files, _) = Files::new(&authority);
    std::fs::remove_file(files.path().join("ca.crt")).unwrap();
    let status = files.driver(secured.port, NAMED).probe().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("ca.crt: No such file"), "{status}");
}

/// CMI-160: the error names the side without TLS, and no call is made.
#[tokio::test]
async fn tls_on_one_side_alone_is_named() {
    let authority = Authority::new();
    let secured = Secured::start(&authority).await;
    let plain = Target::Tcp(crate::endpoint::Authority {
        host: "127.0.0.1".to_owned(),
        port: secured.port,
    });
    let status = driver_of(plain, LONG).create_machine(create()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("use a tls:// endpoint"), "{status}");

    let (files, _) = Files::new(&authority);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let open = Plugin::absent();
    let serve = open.script();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve.serve(Box::new(stream)));
        }
    });
    let status = files
        .driver(port, NAMED)
        .create_machine(create())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("HTTP/2 server without TLS"), "{status}");
    assert!(secured.plugin.calls().is_empty() && open.calls().is_empty());
}
