//! A certificate authority for the servers of one run.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate with its key, in PEM.
pub(crate) struct ServingCertificate {
    pub certificate: String,
    pub key: String,
}

/// Issues serving certificates.
pub(crate) struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().context("generating the key of an authority")?;
        let certificate = params
            .self_signed(&key)
            .context("signing the certificate of an authority")?
            .pem();
        Ok(Self {
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// The authority's own certificate in PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate of `name` for the loopback interface.
    pub(crate) fn issue(&self, name: &str) -> Result<ServingCertificate> {
        let names = ["127.0.0.1", "localhost"].map(str::to_owned);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().with_context(|| format!("generating the key of {name}"))?;
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate
            .with_context(|| format!("signing the certificate of {name}"))?
            .pem();
        Ok(ServingCertificate {
            certificate,
            key: key.serialize_pem(),
        })
    }
}
