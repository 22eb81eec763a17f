//! Parses a kubeconfig from a Secret. Any user with rights in its namespace may have written it. So it may
//! name a server and credentials, but no resource of the provider's own host.

use std::str::Utf8Error;

use http::header::{HeaderValue, USER_AGENT};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_saphyr::budget::BudgetBreach;
use tower::BoxError;

/// The largest kubeconfig that is parsed. A kubeconfig with certificates has some KiB, and parsed YAML takes
/// many times the memory of its text.
const MAX_BYTES: usize = 256 * 1024;

/// Why a kubeconfig can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKubeconfig {
    /// Parsing it would take much memory.
    #[error("the kubeconfig has {0} bytes; the limit is {MAX_BYTES}")]
    TooLarge(usize),
    /// An anchor with many references would be copied for each of them.
    #[error("the kubeconfig has a YAML anchor, which is not supported: write the value out")]
    Anchor,
    /// It is not text.
    #[error("the kubeconfig is not UTF-8")]
    NotUtf8(#[source] Utf8Error),
    /// It is not a kubeconfig. A parser's message may quote the document, and the document has credentials,
    /// so this has no source.
    #[error("the kubeconfig is not valid YAML")]
    NotYaml,
    /// It names no usable cluster or credentials.
    #[error(transparent)]
    Unusable(BoxError),
    /// It refers to a resource of the provider's own host.
    #[error(
        "{0} is not allowed in the kubeconfig: the provider reads no files, runs no programs and uses no \
            proxy"
    )]
    NotAllowed(&'static str),
}

/// The configuration of a client.
pub(super) async fn config(document: &[u8]) -> Result<Config, InvalidKubeconfig> {
    let kubeconfig = parse(document)?;
    if let Some(field) = leads_elsewhere(&kubeconfig) {
        return Err(InvalidKubeconfig::NotAllowed(field));
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| InvalidKubeconfig::Unusable(error.into()))?;
    config.default_retry = false;
    // A proxy from this process's environment must stay hidden from tenants.
    config.proxy_url = None;
    // The deadline of the connection covers the handshake too.
    config.connect_timeout = None;
    let agent = concat!("capcmi/", env!("CARGO_PKG_VERSION"));
    config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
    Ok(config)
}

/// Parses as [`Kubeconfig::from_yaml`] does, with additional limits.
fn parse(document: &[u8]) -> Result<Kubeconfig, InvalidKubeconfig> {
    if document.len() > MAX_BYTES {
        return Err(InvalidKubeconfig::TooLarge(document.len()));
    }
    let text = str::from_utf8(document).map_err(InvalidKubeconfig::NotUtf8)?;
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! { max_anchors: 0 },
    };
    let documents = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| match error {
        serde_saphyr::Error::Budget {
            breach: BudgetBreach::Anchors { .. },
            ..
        } => InvalidKubeconfig::Anchor,
        _quotes => InvalidKubeconfig::NotYaml,
    })?;
    let mut documents = documents.into_iter();
    let merged = documents.try_fold(Kubeconfig::default(), Kubeconfig::merge);
    merged.map_err(|_quotes| InvalidKubeconfig::NotYaml)
}

/// The field that names a file, a program or a proxy, if any does.
fn leads_elsewhere(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let clusters = kubeconfig
        .clusters
        .iter()
        .filter_map(|named| named.cluster.as_ref());
    let of_clusters = clusters.flat_map(|cluster| {
        let fields = [
            (
                cluster.certificate_authority.is_some(),
                "clusters[].cluster.certificate-authority",
            ),
            (cluster.proxy_url.is_some(), "clusters[].cluster.proxy-url"),
        ];
        fields
            .into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, field)| field)
    });
    let users = kubeconfig
        .auth_infos
        .iter()
        .filter_map(|named| named.auth_info.as_ref());
    let of_users = users.flat_map(|user| {
        let fields = [
            (user.exec.is_some(), "users[].user.exec"),
            (user.auth_provider.is_some(), "users[].user.auth-provider"),
            (user.token_file.is_some(), "users[].user.tokenFile"),
            (
                user.client_certificate.is_some(),
                "users[].user.client-certificate",
            ),
            (user.client_key.is_some(), "users[].user.client-key"),
        ];
        fields
            .into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, field)| field)
    });
    of_clusters.chain(of_users).next()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use cmi_driver::ErrorChain;

    fn document(cluster: &Value, user: &Value) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        })
        .to_string()
    }

    async fn refusal(document: &str) -> String {
        ErrorChain(&config(document.as_bytes()).await.unwrap_err()).to_string()
    }

    /// Otherwise a tenant could read the provider's files, or run a program in its container.
    #[tokio::test]
    async fn a_kubeconfig_with_a_file_or_program_is_refused_with_the_field() {
        let (server, token) = (json!({"server": "https://127.0.0.1:1"}), json!({"token": "t"}));
        assert!(config(document(&server, &token).as_bytes()).await.is_ok());
        let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch"}});
        let provider = json!({"auth-provider": {"name": "oidc", "config": {}}});
        for (user, field) in [
            (exec, "users[].user.exec"),
            (provider, "users[].user.auth-provider"),
            (json!({"tokenFile": "/etc/passwd"}), "users[].user.tokenFile"),
            (
                json!({"client-certificate": "/c"}),
                "users[].user.client-certificate",
            ),
            (json!({"client-key": "/k"}), "users[].user.client-key"),
        ] {
            let refused = refusal(&document(&server, &user)).await;
            assert!(
                refused.starts_with(&format!("{field} is not allowed")),
                "{refused}"
            );
        }
        for (name, value) in [
            ("certificate-authority", "/ca"),
            ("proxy-url", "http://127.0.0.1:2"),
        ] {
            let cluster = json!({"server": "https://127.0.0.1:1", name: value});
            let refused = refusal(&document(&cluster, &token)).await;
            assert!(refused.contains(name), "{refused}");
        }
    }

    /// Otherwise a Secret of 1 MiB takes 64 MiB of the provider's memory, at each connection.
    #[tokio::test]
    async fn a_large_or_expanding_kubeconfig_is_refused_with_the_cause() {
        let token = "t".repeat(1000);
        let users = "- {name: u, user: {token: *t}}\n".repeat(70);
        let expanding = format!("users:\n- {{name: u, user: {{token: &t {token}}}}}\n{users}");
        let refused = refusal(&expanding).await;
        assert!(
            refused.starts_with("the kubeconfig has a YAML anchor"),
            "{refused}"
        );
        let padding = MAX_BYTES + 1 - "# ".len();
        let refused = refusal(&format!("# {}", "x".repeat(padding))).await;
        assert_eq!(refused, "the kubeconfig has 262145 bytes; the limit is 262144");
    }

    #[tokio::test]
    async fn what_is_no_kubeconfig_is_refused_and_none_of_it_quoted() {
        for text in ["token: s3cret: [", "s3cret", "{}", "kind: Config\nusers: s3cret"] {
            let refused = refusal(text).await;
            assert!(!refused.contains("s3cret"), "{refused}");
        }
    }
}
