//! Secrets: read by name when they are needed, never listed, watched or kept.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::Error;
use crate::driver::{SecretValue, Secrets, USER_DATA, USER_DATA_FORMAT};

/// Cluster API's key of the bootstrap data.
const VALUE: &str = "value";
/// Cluster API's key of the bootstrap data's format.
const FORMAT: &str = "format";

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
    /// It has no bootstrap data.
    #[error("the Secret `{0}` has no key `value` with the bootstrap data")]
    NoBootstrapData(String),
    /// The credentials use a key that the bootstrap data need.
    #[error(
        "the Secret `{name}` that spec.secretRef names has the key `{key}`, which is kept for the bootstrap data"
    )]
    Collision {
        /// The Secret.
        name: String,
        /// The key.
        key: String,
    },
}

/// The driver's credentials: all keys of the Secret that `spec.secretRef` names, or none without one.
///
/// # Errors
/// The outer error when the API server can't be asked, the inner one when what it answered can't be used.
pub async fn credentials(
    client: &Client,
    namespace: &str,
    name: Option<&str>,
) -> Result<Result<Secrets, InvalidSecret>, Error> {
    let Some(name) = name else {
        return Ok(Ok(Secrets::default()));
    };
    let Some(secret) = read(client, namespace, name, "reading the Secret of spec.secretRef").await? else {
        return Ok(Err(InvalidSecret::Missing {
            name: name.to_owned(),
            field: "spec.secretRef",
        }));
    };
    let data = secret.data.unwrap_or_default();
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
    let Some(secret) = read(client, namespace, name, "reading the bootstrap data Secret").await? else {
        let field = "spec.bootstrap.dataSecretName of the Machine";
        return Ok(Err(InvalidSecret::Missing {
            name: name.to_owned(),
            field,
        }));
    };
    let mut data = secret.data.unwrap_or_default();
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
    action: &'static str,
) -> Result<Option<Secret>, Error> {
    Api::<Secret>::namespaced(client.clone(), namespace)
        .get_opt(name)
        .await
        .map_err(|error| Error::api(action, error))
}
