//! TLS, where both sides show a certificate.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cmi_grpc::endpoint::Endpoint;
use cmi_grpc::server::{CertificateFiles, ListenError, Listener, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::support::{Connection, Served, create, simulated};

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    fn issue(&self, name: &str) -> Result<Identity> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        Ok(Identity {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn write(folder: &Path, identity: &Identity, clients: &Authority) -> Result<CertificateFiles> {
    let authorities = folder.join("ca.crt");
    let files = CertificateFiles {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        client_authorities: Some(authorities.clone()),
    };
    std::fs::write(&files.certificate, &identity.certificate)?;
    std::fs::write(&files.key, &identity.key)?;
    std::fs::write(&authorities, &clients.certificate)?;
    Ok(files)
}

/// Returns a client for servers of an authority, with an optional certificate.
fn client(servers: &Authority, identity: Option<&Identity>) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(servers.certificate.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => config.with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes())?],
            PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?,
        )?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config).into())
}

/// Makes a call, and fails unless it was answered with OK.
async fn call(served: &Served, name: &str, client: &TlsConnector) -> Result<()> {
    let Endpoint::Tls(authority) = &served.endpoint else {
        anyhow::bail!("{} does not use TLS", served.endpoint);
    };
    let stream = TcpStream::connect((authority.host.as_str(), authority.port)).await?;
    let stream = client
        .connect(ServerName::try_from(name.to_owned())?, stream)
        .await?;
    let mut connection = Connection::open(stream).await?;
    let answer = connection
        .call("/cmi.v1.Machine/CreateMachine", &create("m-0"), &[])
        .await?;
    ensure!(answer.code()? == tonic::Code::Ok, "{}", answer.code()?);
    Ok(())
}

async fn serve(files: CertificateFiles) -> Result<Served> {
    Served::at("tls://127.0.0.1:0", simulated("{}")?, Some(ServerTls::new(files))).await
}

/// OPS-17, CMI-160, CMI-164
#[tokio::test]
async fn only_clients_with_a_certificate_of_the_authority_are_served() -> Result<()> {
    let (authority, folder) = (Authority::new()?, TempDir::new()?);
    let served = serve(write(
        folder.path(),
        &authority.issue("plugin.example")?,
        &authority,
    )?)
    .await?;
    let known = authority.issue("provider")?;
    call(&served, "plugin.example", &client(&authority, Some(&known))?).await?;

    let stranger = Authority::new()?.issue("provider")?;
    for (caller, identity) in [
        ("a client without a certificate", None),
        ("a client of another authority", Some(&stranger)),
    ] {
        let answer = call(&served, "plugin.example", &client(&authority, identity)?).await;
        ensure!(answer.is_err(), "{caller} was served");
    }
    // A refused client does not block other clients.
    call(&served, "plugin.example", &client(&authority, Some(&known))?).await?;
    served.stop().await
}

/// Unfinished handshakes block no client, even if there are many and they keep coming.
#[tokio::test]
async fn a_client_is_served_while_others_hold_handshakes_open() -> Result<()> {
    let (authority, folder) = (Authority::new()?, TempDir::new()?);
    let files = write(folder.path(), &authority.issue("plugin.example")?, &authority)?;
    let served = serve(files).await?;
    let client = client(&authority, Some(&authority.issue("provider")?))?;
    let Endpoint::Tls(address) = &served.endpoint else {
        anyhow::bail!("{} does not use TLS", served.endpoint);
    };
    let mut held = VecDeque::new();
    for number in 0..1000 {
        let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        if number % 2 == 0 {
            // The beginning of a ClientHello.
            stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await?;
        }
        held.push_back(stream);
        if held.len() > 400 {
            held.pop_front();
        }
        if number % 100 == 99 {
            timeout(Duration::from_secs(3), call(&served, "plugin.example", &client))
                .await
                .with_context(|| format!("a client was locked out by {} handshakes", held.len()))??;
        }
    }
    served.stop().await
}

#[tokio::test]
async fn certificates_are_read_again_when_they_change() -> Result<()> {
    let (old, new, folder) = (Authority::new()?, Authority::new()?, TempDir::new()?);
    let served = serve(write(folder.path(), &old.issue("old.example")?, &old)?).await?;
    call(
        &served,
        "old.example",
        &client(&old, Some(&old.issue("provider")?))?,
    )
    .await?;

    write(folder.path(), &new.issue("new.example")?, &new)?;
    call(
        &served,
        "new.example",
        &client(&new, Some(&new.issue("provider")?))?,
    )
    .await?;

    // Half-written files don't stop the plugin.
    std::fs::write(folder.path().join("tls.key"), "")?;
    call(
        &served,
        "new.example",
        &client(&new, Some(&new.issue("provider")?))?,
    )
    .await?;
    served.stop().await
}

/// OPS-13
#[tokio::test]
async fn certificates_that_can_not_be_used_are_named_before_anything_is_served() -> Result<()> {
    let (authority, folder) = (Authority::new()?, TempDir::new()?);
    let endpoint: Endpoint = "tls://127.0.0.1:0".parse()?;
    let files = write(folder.path(), &authority.issue("a")?, &authority)?;

    let missing = Listener::bind(&endpoint, None)
        .await
        .err()
        .context("none are given")?;
    ensure!(matches!(missing, ListenError::NoCertificates(_)), "{missing}");
    let plain = "tcp://127.0.0.1:0".parse()?;
    let unused = Listener::bind(&plain, Some(ServerTls::new(files.clone())))
        .await
        .err();
    ensure!(
        matches!(unused, Some(ListenError::UnusedCertificates(_))),
        "{unused:?}"
    );

    let authorities = files.client_authorities.clone().context("there are none")?;
    for (file, text) in [
        (&files.key, "no key"),
        (&files.certificate, ""),
        (&authorities, ""),
        (&files.key, &authority.issue("another")?.key),
    ] {
        let kept = std::fs::read_to_string(file)?;
        std::fs::write(file, text)?;
        let error = Listener::bind(&endpoint, Some(ServerTls::new(files.clone())))
            .await
            .err();
        ensure!(
            matches!(error, Some(ListenError::Certificates { .. })),
            "{}: {error:?}",
            file.display()
        );
        std::fs::write(file, kept)?;
    }
    Listener::bind(&endpoint, Some(ServerTls::new(files))).await?;
    Ok(())
}
