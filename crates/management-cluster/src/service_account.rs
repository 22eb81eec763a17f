//! Kubeconfigs of service accounts.

use anyhow::{Context, Result};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams};

use crate::{api_server::ApiServer, kubeconfig};

/// Longer than any run.
const TOKEN_SECONDS: i64 = 12 * 60 * 60;

/// A kubeconfig document with a fresh token of a `ServiceAccount`.
pub(crate) async fn kubeconfig(api_server: &ApiServer, namespace: &str, name: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(api_server.admin_client().await?, namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await;
    let answer =
        answer.with_context(|| format!("requesting a token of ServiceAccount {namespace}/{name}"))?;
    let token = answer.status.context("the answer has no token")?.token;
    kubeconfig::render(&api_server.url, &api_server.authority, &token)
}
