//! A token of the provider's own ServiceAccount that one process alone has: the audit log
//! says which of several asked.

use std::path::PathBuf;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::World;
use super::provider::service_account;

/// A token that no other process has, and the way to the API server with it.
pub struct Credential {
    /// The kubeconfig.
    pub kubeconfig: PathBuf,
    /// Its name in the API server's audit log.
    pub id: String,
}

impl Credential {
    /// A new one, in the folder of the case.
    pub async fn new(world: &World) -> Result<Self> {
        let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), testbed::NAMESPACE);
        let request = TokenRequest {
            spec: TokenRequestSpec::default(),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(testbed::SERVICE_ACCOUNT, &PostParams::default(), &request)
            .await?;
        let token = answer.status.context("no token was given")?.token;

        let shared = std::fs::read_to_string(service_account(world).await?)?;
        let mut document: Value = serde_saphyr::from_str(&shared)?;
        document["users"][0]["user"]["token"] = json!(token);
        let kubeconfig = world.folder.join("own.kubeconfig");
        std::fs::write(&kubeconfig, document.to_string()).context("writing a kubeconfig")?;
        Ok(Self {
            kubeconfig,
            id: format!("JTI={}", claim(&token, "jti")?),
        })
    }
}

/// A claim of a JSON web token.
fn claim(token: &str, name: &str) -> Result<String> {
    let claims = token.split('.').nth(1).context("a token of three parts")?;
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims)?)?;
    let claim = claims[name].as_str();
    Ok(claim
        .with_context(|| format!("the token has no {name}"))?
        .to_owned())
}
