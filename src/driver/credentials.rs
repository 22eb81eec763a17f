//! The credentials of a driver call: from the named Secret, or else the provider's own for that driver.
//!
//! Only this module decides between the two. A missing Secret never leads to the provider's own credentials:
//! with another account, the driver would report that the VM is gone.

use kube::Client;

use crate::apiserver::{Error, InvalidSecret, secrets};
use crate::driver::ConfiguredDriver;
use cmi_driver::{MachineClass, ProviderSpec, Secrets};

/// Reads the credentials for a call of the provider's driver: all keys of the Secret or, where no Secret is
/// named, the credentials from the drivers file. They are empty without either. `field` is the field that
/// names the Secret.
///
/// # Errors
/// The outer error when the API server can't be asked, the inner one when the credentials can't be used.
pub async fn read(
    client: &Client,
    driver: &ConfiguredDriver,
    namespace: &str,
    secret: Option<&str>,
    field: &'static str,
) -> Result<Result<Secrets, InvalidSecret>, Error> {
    match secret {
        Some(name) => secrets::credentials(client, namespace, name, field).await,
        None => Ok(driver
            .credentials()
            .await
            .map_err(|error| InvalidSecret::OfProvider {
                driver: driver.name().to_owned(),
                why: error.to_string(),
            })),
    }
}

/// Returns the class of a call: the provider spec, with the credentials as [`read`] reads them.
///
/// # Errors
/// As [`read`].
pub async fn machine_class(
    client: &Client,
    driver: &ConfiguredDriver,
    namespace: &str,
    secret: Option<&str>,
    provider_spec: ProviderSpec,
) -> Result<Result<MachineClass, InvalidSecret>, Error> {
    let read = read(client, driver, namespace, secret, secrets::SECRET_REF).await?;
    Ok(read.map(|secrets| MachineClass {
        provider_spec,
        secrets,
    }))
}
