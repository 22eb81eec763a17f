//! The driver as a separate process, behind mutual TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use management_cluster::{ManagementCluster, Process};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::lab::DEADLINE;

/// The name in the plugin's certificate.
const NAME: &str = "libvirt.example.com";

/// A running driver.
pub struct Plugin {
    endpoint: String,
    certificates: PathBuf,
    _process: Process,
}

impl Plugin {
    /// Starts the driver with this configuration, and waits until it listens. Its files are in `folder`.
    pub async fn start(
        management: &ManagementCluster,
        name: &str,
        folder: &Path,
        config: &Value,
    ) -> Result<Self> {
        issue(folder)?;
        let file = folder.join("driver.yaml");
        fs::write(&file, config.to_string())?;
        let address = testbed::free_address()?;
        let endpoint = format!("tls://{address}");
        let at = |file: &str| folder.join(file).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi-driver-libvirt"));
        command
            .arg(format!("--endpoint={endpoint}"))
            .arg(format!("--config={}", file.display()))
            .arg(format!("--tls-cert-file={}", at("plugin.crt")))
            .arg(format!("--tls-key-file={}", at("plugin.key")))
            .arg(format!("--client-ca-file={}", at("ca.crt")));
        let mut process = Process::start(management.folder(), &format!("{name}-driver"), &command)?;
        process
            .wait_until(DEADLINE, async || TcpStream::connect(&address).await.is_ok())
            .await?;
        Ok(Self {
            endpoint,
            certificates: folder.to_owned(),
            _process: process,
        })
    }

    /// The provider's drivers file, with this driver.
    pub fn drivers(&self) -> String {
        let at = |file: &str| self.certificates.join(file);
        let tls = json!({
            "caFile": at("ca.crt"), "certFile": at("provider.crt"), "keyFile": at("provider.key"),
            "serverName": NAME,
        });
        let grpc = json!({"endpoint": self.endpoint, "tls": tls});
        // On the hosts of this lab, a call takes effect within a second, or never.
        json!({"drivers": [{"name": "libvirt", "createSettleTime": "1s", "grpc": grpc}]}).to_string()
    }
}

/// Creates certificates for the plugin and the provider, and a CA that signs both.
fn issue(folder: &Path) -> Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    fs::write(folder.join("ca.crt"), params.self_signed(&key)?.pem())?;
    let authority = Issuer::new(params, key);
    for (name, file) in [(NAME, "plugin"), ("provider", "provider")] {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![name.to_owned()])?.signed_by(&key, &authority)?;
        fs::write(folder.join(format!("{file}.crt")), certificate.pem())?;
        fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).context("writing a key")?;
    }
    Ok(())
}
