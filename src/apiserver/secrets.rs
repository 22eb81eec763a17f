//! Secrets: read by name when they are needed, never listed, watched or kept.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::Error;
use crate::api::annotations;
use cmi_driver::{SecretValue, Secrets, USER_DATA, USER_DATA_FORMAT, is_dns_subdomain};

/// Cluster API's key of the bootstrap data.
const VALUE: &str = "value";
/// Cluster API's key of the bootstrap data's format.
const FORMAT: &str = "format";

/// The number of characters shown of an invalid name.
const MAX_SHOWN: usize = 253;

/// The `field` of credentials that the spec names.
pub const SECRET_REF: &str = "spec.secretRef";

/// Replaces a driver's message that may contain bootstrap data.
const UNSAFE_TO_SHOW: &str =
    "the driver's message is withheld: cannot read the bootstrap data to remove it from the message";

/// Returns a driver's message without the bootstrap data of this Secret, which the driver may have kept since
/// the create (OPS-11). A Secret that does not exist has none. Withholds the whole message where the data are
/// unknown.
pub async fn without_bootstrap_data(client: &Client, namespace: &str, name: &str, message: &str) -> String {
    match bootstrap_data(client, namespace, name, Secrets::default()).await {
        Ok(Ok(secrets)) => secrets.redact(message),
        Ok(Err(InvalidSecret::Missing { .. } | InvalidSecret::NoBootstrapData(_))) => message.to_owned(),
        Ok(Err(_)) | Err(_) => UNSAFE_TO_SHOW.to_owned(),
    }
}

/// Why the secrets of a call can't be assembled. An operator has to act.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSecret {
    /// The Secret does not exist (yet).
    #[error("Secret `{name}` in {field} does not exist")]
    Missing {
        /// Its name.
        name: String,
        /// The field that names it.
        field: &'static str,
    },
    /// The Secret does not exist, and without its credentials the driver can't prove that a VM is gone.
    #[error(
        "Secret `{name}` does not exist, and without its credentials the driver cannot confirm that the VM \
            is deleted: restore the Secret, or delete the VM by hand and set annotation {}=true",
        annotations::FORCE_DELETE
    )]
    Needed {
        /// Its name.
        name: String,
    },
    /// The API server denies the provider access to the Secret.
    #[error("cannot read Secret `{name}` in {field}: {why}")]
    Forbidden {
        /// Its name.
        name: String,
        /// The field that names it.
        field: &'static str,
        /// The API server's message.
        why: String,
    },
    /// The provider's own credentials for the driver can't be used.
    #[error(
        "cannot use the provider's own credentials for driver `{driver}`: {why}; set spec.secretRef, or \
            correct the directory"
    )]
    OfProvider {
        /// The configured driver.
        driver: String,
        /// Why they can't be used.
        why: String,
    },
    /// No Secret can have this name.
    #[error(
        "{field} is {name:?}, which is not a valid Secret name: use lower case letters, digits, `-` and \
            `.`, at most 253 characters"
    )]
    Name {
        /// The name, or its beginning.
        name: String,
        /// The field that names it.
        field: &'static str,
    },
    /// The Secret has no bootstrap data.
    #[error("Secret `{0}` has no key `value` with the bootstrap data")]
    NoBootstrapData(String),
    /// The Secret has no kubeconfig.
    #[error("Secret `{0}` has no key `value` with the kubeconfig")]
    NoKubeconfig(String),
    /// The credentials use a key that the bootstrap data need.
    #[error(
        "Secret `{name}` with the credentials has key `{key}`, which is reserved for the bootstrap data: \
            rename it"
    )]
    Collision {
        /// The Secret.
        name: String,
        /// The key.
        key: String,
    },
}

/// Reads the driver's credentials: all keys of the Secret. `field` is the field that names the Secret.
///
/// # Errors
/// The outer error when the API server can't be asked, the inner one when its answer can't be used.
pub async fn credentials(
    client: &Client,
    namespace: &str,
    name: &str,
    field: &'static str,
) -> Result<Result<Secrets, InvalidSecret>, Error> {
    let action = "reading the Secret with the credentials";
    let secret = match read(client, namespace, name, field, action).await? {
        Ok(secret) => secret,
        Err(invalid) => return Ok(Err(invalid)),
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
    let secrets = data
        .into_iter()
        .map(|(key, value)| (key, SecretValue::from(value.0)))
        .collect();
    Ok(Ok(secrets))
}

/// Adds the bootstrap data and their format to the credentials, for a create.
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
        Ok(secret) => secret.data.unwrap_or_default(),
        Err(invalid) => return Ok(Err(invalid)),
    };
    let Some(value) = data.remove(VALUE) else {
        return Ok(Err(InvalidSecret::NoBootstrapData(name.to_owned())));
    };
    // Older bootstrap providers of Cluster API set no format and mean cloud-config.
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

/// The name of the Secret with the kubeconfig of a Cluster, by Cluster API's convention.
pub fn kubeconfig_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// Reads the kubeconfig of a Cluster's workload cluster from the Secret of Cluster API.
///
/// # Errors
/// As [`credentials`].
pub async fn kubeconfig(
    client: &Client,
    namespace: &str,
    cluster: &str,
) -> Result<Result<Vec<u8>, InvalidSecret>, Error> {
    let (name, action) = (kubeconfig_name(cluster), "reading the kubeconfig Secret");
    let data = match read(
        client,
        namespace,
        &name,
        "Cluster API's naming convention",
        action,
    )
    .await?
    {
        Ok(secret) => secret.data.unwrap_or_default().remove(VALUE),
        Err(invalid) => return Ok(Err(invalid)),
    };
    Ok(data.map(|value| value.0).ok_or(InvalidSecret::NoKubeconfig(name)))
}

/// A valid name of a Secret. The client puts names into the request path as they are: a slash would lead to
/// another path, and a space makes the request invalid.
struct SecretName(String);

impl SecretName {
    fn new(name: &str, field: &'static str) -> Result<Self, InvalidSecret> {
        if is_dns_subdomain(name) {
            return Ok(Self(name.to_owned()));
        }
        let name = name.chars().take(MAX_SHOWN).collect();
        Err(InvalidSecret::Name { name, field })
    }
}

async fn read(
    client: &Client,
    namespace: &str,
    name: &str,
    field: &'static str,
    action: &'static str,
) -> Result<Result<Secret, InvalidSecret>, Error> {
    let SecretName(name) = match SecretName::new(name, field) {
        Ok(name) => name,
        Err(invalid) => return Ok(Err(invalid)),
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    match secrets.get_opt(&name).await {
        Ok(Some(secret)) => Ok(Ok(secret)),
        Ok(None) => Ok(Err(InvalidSecret::Missing { name, field })),
        // Only new permissions change this, so the machine has to show the error.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let why = status.message;
            Ok(Err(InvalidSecret::Forbidden { name, field, why }))
        }
        Err(error) => Err(Error::api(action, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// A client that counts requests, and finds nothing.
    fn client() -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let status = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "reason": "NotFound", "code": 404}"#;
            let response = Response::builder()
                .status(404)
                .body(Body::from(status.as_bytes().to_vec()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        (Client::new(service, "default"), asked)
    }

    #[tokio::test]
    async fn a_name_that_no_secret_has_never_gets_into_a_request() {
        let (client, asked) = client();
        let long = "a".repeat(254);
        for name in [
            "../../team-b/secrets/creds",
            "a b\nc",
            "",
            ".",
            "..",
            "a?watch=true",
            "a#b",
            "a%2fb",
            "A",
            &long,
        ] {
            let secrets = credentials(&client, "ns", name, SECRET_REF).await.unwrap();
            let data = bootstrap_data(&client, "ns", name, Secrets::default())
                .await
                .unwrap();
            for invalid in [secrets.unwrap_err(), data.unwrap_err()] {
                assert!(matches!(invalid, InvalidSecret::Name { .. }), "{name}: {invalid}");
                let text = invalid.to_string();
                assert!(!text.contains('\n') && text.len() < 512, "{text}");
            }
        }
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        let there = credentials(&client, "ns", "a.b-1", SECRET_REF).await.unwrap();
        assert!(matches!(there, Err(InvalidSecret::Missing { .. })));
    }
}
