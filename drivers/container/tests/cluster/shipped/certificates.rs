//! The certificates of the drivers and of the provider.

use std::path::Path;

use anyhow::Result;

use super::installation::NAMESPACE;
use crate::{lab::CERTIFICATES, sandbox::run, workload::Workload};

/// Makes the certificates in the folder of the run.
///
/// # Errors
/// When openssl fails.
pub fn make(folder: &Path) -> Result<()> {
    let script = super::folder().join("certificates.sh");
    let certificates = folder.join(CERTIFICATES);
    run(&script.display().to_string(), [certificates.as_os_str()]).map(drop)
}

/// Makes the Secrets that the components expect.
///
/// # Errors
/// When the API server refuses one.
pub fn apply(workload: &Workload, folder: &Path) -> Result<()> {
    let certificates = folder.join(CERTIFICATES).display().to_string();
    for name in ["capcmi-driver", "capcmi-driver-client"] {
        workload.kubectl(&[
            "create",
            "secret",
            "generic",
            name,
            &format!("--namespace={NAMESPACE}"),
            &format!("--from-file=tls.crt={certificates}/{name}.crt"),
            &format!("--from-file=tls.key={certificates}/{name}.key"),
            &format!("--from-file=ca.crt={certificates}/ca.crt"),
        ])?;
    }
    Ok(())
}
