//! Kubeconfigs that name one server and one bearer token.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tempfile::NamedTempFile;

/// A kubeconfig as a YAML document.
pub(crate) fn render(server: &str, authority: &str, token: &str) -> Result<String> {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "cluster",
            "cluster": {"server": server,
            "certificate-authority-data": ByteString(authority.as_bytes().to_vec())},
        }],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    });
    serde_saphyr::to_string(&kubeconfig).context("rendering a kubeconfig")
}

/// Writes a kubeconfig document to `path`, in one step: several may write, and others read, the same path.
pub(crate) fn write(path: PathBuf, document: &str) -> Result<PathBuf> {
    let what = || format!("writing {}", path.display());
    let folder = path.parent().with_context(what)?;
    let mut file = NamedTempFile::new_in(folder).with_context(what)?;
    file.write_all(document.as_bytes()).with_context(what)?;
    file.persist(&path).with_context(what)?;
    Ok(path)
}

/// A client with the credentials of a kubeconfig document. It never repeats a request, so tests see every
/// failed answer. It belongs to the runtime that created it.
///
/// # Errors
/// When the document is no kubeconfig.
pub async fn client(document: &str) -> Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(document).context("reading a kubeconfig")?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.context("using a kubeconfig")?;
    config.default_retry = false;
    Client::try_from(config).context("making a client from a kubeconfig")
}

/// The token that a kubeconfig file has.
pub(crate) fn token(path: &Path) -> Result<String> {
    let document = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let document: serde_json::Value = serde_saphyr::from_str(&document)?;
    let token = document["users"][0]["user"]["token"].as_str();
    Ok(token
        .with_context(|| format!("{} has no token", path.display()))?
        .to_owned())
}
