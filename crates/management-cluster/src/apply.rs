//! Server-side apply of objects of any kind.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{ApiCapabilities, Scope, pinned_kind},
};
use serde_json::Value;
use tokio::time::Instant;

/// Owner of the fields that this crate applies.
const FIELD_MANAGER: &str = "management-cluster";

/// How long the API server may take to serve a kind after its definition was applied.
const KIND_DEADLINE: Duration = Duration::from_mins(4);

/// Applies the objects of a YAML stream in order, and returns them as the API server stored them. An object
/// of a namespaced kind without a namespace goes to `default`. A kind may be defined earlier in the same
/// stream.
///
/// # Errors
/// When the text cannot be parsed as objects, when the API server does not serve a kind, or when it refuses
/// an object.
pub async fn apply_yaml(client: &Client, yaml: &str) -> Result<Vec<DynamicObject>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("reading YAML to apply")?;
    let mut applied = Vec::new();
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        applied.push(apply(client, document).await?);
    }
    Ok(applied)
}

/// Applies one object, as [`apply_yaml`] does.
///
/// # Errors
/// As those of [`apply_yaml`].
pub async fn apply(client: &Client, object: Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object).context("reading an object to apply")?;
    let name = object.name_any();
    let types = object
        .types
        .clone()
        .with_context(|| format!("{name} has no kind"))?;
    ensure!(!name.is_empty(), "an object of kind {} has no name", types.kind);
    let gvk = GroupVersionKind::try_from(&types)?;
    let (resource, capabilities) = served_kind(client, &gvk).await?;
    let api: Api<DynamicObject> = if capabilities.scope == Scope::Cluster {
        Api::all_with(client.clone(), &resource)
    } else {
        let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
        Api::namespaced_with(client.clone(), &namespace, &resource)
    };
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let applied = api.patch(&name, &params, &Patch::Apply(&object)).await;
    applied.with_context(|| format!("applying {} {name}", types.kind))
}

async fn served_kind(client: &Client, gvk: &GroupVersionKind) -> Result<(ApiResource, ApiCapabilities)> {
    let expiry = Instant::now() + KIND_DEADLINE;
    loop {
        match pinned_kind(client, gvk).await {
            Ok(kind) => return Ok(kind),
            Err(error) if !is_not_served(&error) => {
                return Err(error).with_context(|| format!("looking up {}", gvk.kind));
            }
            Err(error) if Instant::now() >= expiry => {
                bail!("{}, kind {}, is not served: {error}", gvk.api_version(), gvk.kind)
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn is_not_served(error: &Error) -> bool {
    match error {
        Error::Api(status) => matches!(status.code, 404 | 503),
        Error::Discovery(_) => true,
        _ => false,
    }
}
