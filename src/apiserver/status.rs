//! Writing a status: what differs, on the version that it was made from.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Error, merge_difference, patch_params};

/// Writes a status over the one before; `None` when they are the same, and nothing was written.
///
/// # Errors
/// [`Error::Conflict`] when the object is not the version of `metadata` any more.
pub async fn publish_status<K, S>(
    api: &Api<K>,
    metadata: &ObjectMeta,
    before: Option<&S>,
    after: &S,
) -> Result<Option<K>, Error>
where
    K: Clone + DeserializeOwned + Debug,
    S: Serialize,
{
    let action = "writing status";
    let encode = |status: &S| serde_json::to_value(status).map_err(|source| Error::Encode { action, source });
    let before = before.map(encode).transpose()?.unwrap_or_else(|| json!({}));
    let difference = merge_difference(&before, &encode(after)?);
    if difference == json!({}) {
        return Ok(None);
    }
    let body = json!({"metadata": {"resourceVersion": metadata.resource_version}, "status": difference});
    let name = metadata.name.as_deref().unwrap_or_default();
    api.patch_status(name, &patch_params(), &Patch::Merge(&body))
        .await
        .map(Some)
        .map_err(|error| Error::api(action, error))
}
