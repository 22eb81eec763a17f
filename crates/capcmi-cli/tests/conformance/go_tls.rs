//! The driver in Go over TLS, tested as any other, by a client that has a certificate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::{Process, RunFolder};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use testbed::{Go, free_address};
use tokio::net::TcpStream;

use crate::go::configuration;
use crate::python::tested_at;

const DRIVER: &str = "driver.example.com";
const START_DEADLINE: Duration = Duration::from_mins(1);
/// The cases that a transport may break.
const CASES: [&str; 6] = [
    "create-makes-a-vm",
    "list-all",
    "wire-services",
    "wire-large-requests",
    "wire-create-deadline",
    "probe-unhealthy",
];

/// The files of an authority's certificate, and of a certificate that it issued with its key.
struct Files {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn write(folder: &Path, issuer: &Authority, name: &str) -> Result<Self> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer.issuer)?.pem();
        let write = |suffix: &str, content: &str| {
            let path = folder.join(format!("{name}.{suffix}"));
            std::fs::write(&path, content)?;
            anyhow::Ok(path)
        };
        Ok(Self {
            authority: write("ca", &issuer.certificate)?,
            certificate: write("crt", &certificate)?,
            key: write("key", &key.serialize_pem())?,
        })
    }
}

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
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
}

/// Returns the command that serves the driver with these certificates at this address.
fn command(go: &Go, address: &str, cloud: &Path, files: &Files) -> Command {
    let mut command = go.command(cloud);
    command
        .env("CMI_ENDPOINT", format!("tls://{address}"))
        .env("CAPCMI_TLS_CERT_FILE", &files.certificate)
        .env("CAPCMI_TLS_KEY_FILE", &files.key)
        .env("CAPCMI_CLIENT_CA_FILE", &files.authority);
    command
}

/// How a client with these certificates names the driver to `capcmi`.
fn plugin(address: &str, client: &Files) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    vec![
        format!("--endpoint=tls://{address}"),
        format!("--ca-file={}", text(&client.authority)),
        format!("--cert-file={}", text(&client.certificate)),
        format!("--key-file={}", text(&client.key)),
        format!("--server-name={DRIVER}"),
    ]
}

/// Checks that the driver refuses a client, and that the error has these words.
async fn refused(client: impl IntoIterator<Item = &String>, words: &str) -> Result<()> {
    let asked = tokio::process::Command::new(env!("CARGO_BIN_EXE_capcmi"))
        .args(["driver", "info"])
        .args(client)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&asked.stdout);
    ensure!(
        !asked.status.success() && said.contains(words),
        "{}: {said}",
        asked.status
    );
    Ok(())
}

/// OPS-17, CMI-160, CMI-164
#[tokio::test]
async fn the_go_driver_complies_over_tls_and_refuses_foreign_clients() -> Result<()> {
    let folder = RunFolder::create()?;
    let (address, cloud) = (free_address()?, folder.path().join("cloud"));
    let authority = Authority::new()?;
    let driver = Files::write(folder.path(), &authority, DRIVER)?;
    let go = Go::find().await?;
    let mut process = Process::start(&folder, "go", &command(&go, &address, &cloud, &driver))?;
    process
        .wait_until(START_DEADLINE, async || {
            TcpStream::connect(&address).await.is_ok()
        })
        .await?;

    let client = plugin(&address, &Files::write(folder.path(), &authority, "client")?);
    let report = tested_at(&folder, &client, &configuration(&cloud, None)?, &CASES).await?;
    let cases = report["cases"].as_array().context("there are cases")?;
    ensure!(cases.len() == CASES.len(), "{report}");

    let mut stranger = Files::write(folder.path(), &Authority::new()?, "stranger")?;
    // The client trusts the driver, but the driver does not trust the client.
    stranger.authority = driver.authority;
    let stranger = plugin(&address, &stranger);
    let without = stranger
        .iter()
        .filter(|argument| !argument.starts_with("--cert-file") && !argument.starts_with("--key-file"));
    // Go may close the connection before its word about the certificate has arrived.
    refused(&stranger, "cannot reach").await?;
    refused(without, "requires a client certificate: set --cert-file").await
}

/// OPS-03: at the start, by name, and not at the first connection.
#[tokio::test]
async fn the_driver_in_go_ends_when_a_certificate_is_missing() -> Result<()> {
    let folder = RunFolder::create()?;
    let (address, cloud) = (free_address()?, folder.path().join("cloud"));
    let mut files = Files::write(folder.path(), &Authority::new()?, DRIVER)?;
    files.key = folder.path().join("missing.key");
    let go = Go::find().await?;
    let ended = tokio::process::Command::from(command(&go, &address, &cloud, &files))
        .kill_on_drop(true)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(
        ended.status.code() == Some(1) && said.contains("missing.key"),
        "{}: {said}",
        ended.status
    );
    Ok(())
}
