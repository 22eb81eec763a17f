//! Asking for /metrics over HTTPS, as a Prometheus does.

use anyhow::{Context, Result};
use http::Request;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::{Client, Config};
use serde_json::json;

use super::World;

/// Makes a ServiceAccount and gives a token of it.
pub async fn token_of(world: &World, name: &str) -> Result<String> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": world.namespace},
    });
    management_cluster::apply(&world.admin, account).await?;
    let accounts = Api::<ServiceAccount>::namespaced(world.admin.clone(), &world.namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec::default(),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("no token was given")?.token)
}

/// Lets a ServiceAccount read metrics, by the role that is shipped for it.
pub async fn allow(world: &World, name: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": format!("{}-{name}", world.namespace)},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
        "name": "capcmi-metrics-reader"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": world.namespace}],
    });
    management_cluster::apply(&world.admin, binding).await?;
    Ok(())
}

/// What /metrics answers over HTTPS; no authority vouches for the certificate.
pub async fn scrape(address: &str, token: Option<&str>) -> Result<(u16, String)> {
    let mut config = Config::new(format!("https://{address}").parse()?);
    config.accept_invalid_certs = true;
    config.auth_info.token = token.map(|token| token.to_owned().into());
    let request = Request::get("/metrics").body(Vec::new())?;
    match Client::try_from(config)?.request_text(request).await {
        Ok(text) => Ok((200, text)),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
        Err(error) => Err(error).context("asking for /metrics"),
    }
}

/// The value of a sample, given with all its labels.
pub fn sample(text: &str, sample: &str) -> Result<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))
        .with_context(|| format!("no sample {sample} in\n{text}"))?;
    line.trim().parse().with_context(|| format!("reading {sample}"))
}
