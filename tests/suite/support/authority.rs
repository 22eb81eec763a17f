//! Certificates for a plugin, its provider, and Cluster API.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};

/// The name in the plugin's certificate.
pub const PLUGIN: &str = "plugin.example.com";

/// An authority that vouches for a plugin and its provider.
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// Where certificates are, below the folder of a case.
pub struct CertificateFiles {
    /// Of the authority.
    pub authority: PathBuf,
    /// Of the plugin, and its key.
    pub plugin: (PathBuf, PathBuf),
    /// Of the provider, and its key.
    pub provider: (PathBuf, PathBuf),
}

impl CertificateFiles {
    /// The files in this folder.
    pub fn of(folder: &Path) -> Self {
        let pair = |name: &str| {
            (
                folder.join(format!("{name}.crt")),
                folder.join(format!("{name}.key")),
            )
        };
        Self {
            authority: folder.join("ca.crt"),
            plugin: pair("plugin"),
            provider: pair("provider"),
        }
    }
}

impl Authority {
    /// An authority that is trusted nowhere yet.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?,
            issuer: Issuer::new(params, key),
        })
    }

    /// Its certificate, as PEM.
    pub fn certificate(&self) -> String {
        self.certificate.pem()
    }

    /// Writes its certificate, and new ones of both sides.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let files = CertificateFiles::of(folder);
        replace(&files.authority, &self.certificate.pem())?;
        self.vouch_for(PLUGIN, &files.plugin)?;
        self.vouch_for("provider", &files.provider)
    }

    /// Writes a new certificate for a name or an address, and its key.
    pub fn vouch_for(&self, name: &str, (certificate, key): &(PathBuf, PathBuf)) -> Result<()> {
        let pair = KeyPair::generate()?;
        let params = CertificateParams::new(vec![name.to_owned()])?;
        replace(certificate, &params.signed_by(&pair, &self.issuer)?.pem())?;
        replace(key, &pair.serialize_pem())
    }
}

/// In one step, as a mounted Secret is replaced.
fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).context("writing a certificate")?;
    std::fs::rename(&beside, path).context("putting a certificate in place")
}
