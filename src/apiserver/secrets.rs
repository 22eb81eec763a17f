//! Secrets: read by name when they are needed, never listed, watched or kept.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::Error;
use crate::api::labels;
use crate::driver::{SecretValue, Secrets, USER_DATA, USER_DATA_FORMAT};

/// Cluster API's key of the bootstrap data.
const VALUE: &str = "value";
/// Cluster API's key of the bootstrap data's format.
const FORMAT: &str = "format";

/// `field` of credentials that the spec names.
pub const SECRET_REF: &str = "spec.secretRef";

/// Why the secrets of a call can't be put together; a person has to act.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSecret {
    /// It is not there (yet).
    #[error("the Secret `{name}` that {field} names does not exist")]
    Missing {
        /// Its name.
        name: String,
        /// Who names it.
        field: &'static str,
    },
    /// It is not there, and what the driver says without it is no proof that a VM is gone.
    #[error(
        "the Secret `{name}` does not exist, and without its credentials the driver does not see the VM, which is no proof that it is gone: restore the Secret, or delete the VM by hand and set the annotation {}=true",
        labels::FORCE_DELETE
    )]
    Needed {
        /// Its name.
        name: String,
    },
    /// The API server does not let it be read.
    #[error("the Secret `{name}` that {field} names can't be read: {why}")]
    Forbidden {
        /// Its name.
        name: String,
        /// Who names it.
        field: &'static str,
        /// What the API server says.
        why: String,
    },
    /// The provider's own credentials for the driver can't be used.
    #[error(
        "the provider's own credentials for `{provider}`, which are used where spec.secretRef names none, can't be used: {why}"
    )]
    OfProvider {
        /// The configured driver.
        provider: String,
        /// What is wrong with them.
        why: String,
    },
    /// It has no bootstrap data.
    #[error("the Secret `{0}` has no key `value` with the bootstrap data")]
    NoBootstrapData(String),
    /// The credentials use a key that the bootstrap data need.
    #[error(
        "the Secret `{name}` with the credentials has the key `{key}`, which is kept for the bootstrap data"
    )]
    Collision {
        /// The Secret.
        name: String,
        /// The key.
        key: String,
    },
}

/// The driver's credentials: all keys of the Secret. `field` says who names it.
///
/// # Errors
/// The outer error when the API server can't be asked, the inner one when what it answered can't be used.
pub async fn credentials(
    client: &Client,
    namespace: &str,
    name: &str,
    field: &'static str,
) -> Result<Result<Secrets, InvalidSecret>, Error> {
    let action = "reading the Secret with the credentials";
    let data = match read(client, namespace, name, field, action).await? {
        Ok(data) => data,
        Err(invalid) => return Ok(Err(invalid)),
    };
    if let Some(key) = data
        .keys()
        .find(|key| [USER_DATA, USER_DATA_FORMAT].contains(&key.as_str()))
    {
        return Ok(Err(InvalidSecret::Collision {
            name: name.to_owned(),
            key: key.clone(),
        }));
    }
    Ok(Ok(data
        .into_iter()
        .map(|(key, value)| (key, SecretValue::from(value.0)))
        .collect()))
}

/// The credentials with the bootstrap data and their format, for a create.
///
/// # Errors
/// As [`credentials`].
pub async fn bootstrap_data(
    client: &Client,
    namespace: &str,
    name: &str,
    mut secrets: Secrets,
) -> Result<Result<Secrets, InvalidSecret>, Error> {
    let field = "spec.bootstrap.dataSecretName of the Machine";
    let action = "reading the bootstrap data Secret";
    let mut data = match read(client, namespace, name, field, action).await? {
        Ok(data) => data,
        Err(invalid) => return Ok(Err(invalid)),
    };
    let Some(value) = data.remove(VALUE) else {
        return Ok(Err(InvalidSecret::NoBootstrapData(name.to_owned())));
    };
    // A Secret without a format is cloud-config: so Cluster API's older bootstrap providers meant it.
    let format = data
        .remove(FORMAT)
        .map_or_else(|| b"cloud-config".to_vec(), |format| format.0);
    for (key, value) in [(USER_DATA, value.0), (USER_DATA_FORMAT, format)] {
        if let Err(key) = secrets.insert(key.to_owned(), value.into()) {
            return Ok(Err(InvalidSecret::Collision {
                name: name.to_owned(),
                key,
            }));
        }
    }
    Ok(Ok(secrets))
}

async fn read(
    client: &Client,
    namespace: &str,
    name: &str,
    field: &'static str,
    action: &'static str,
) -> Result<Result<BTreeMap<String, ByteString>, InvalidSecret>, Error> {
    let name = name.to_owned();
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    match secrets.get_opt(&name).await {
        Ok(Some(secret)) => Ok(Ok(secret.data.unwrap_or_default())),
        Ok(None) => Ok(Err(InvalidSecret::Missing { name, field })),
        // Only who grants rights can change this: it has to be seen where the machine is looked at.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let why = status.message;
            Ok(Err(InvalidSecret::Forbidden { name, field, why }))
        }
        Err(error) => Err(Error::api(action, error)),
    }
}
