//! Publishes a status: only the differences, on the version that they were computed from.

use http::header::ACCEPT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{Api, Patch};
use kube::core::Request;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Error, METADATA_ALONE, merge_difference, patch_params};
use crate::api::{MetadataOnly, ObjectMetaExt as _};

/// Publishes a status, and returns the object's new metadata and the status as stored, with times in whole
/// seconds. Returns `None`, without a write, when the status is unchanged.
///
/// # Errors
/// [`Error::Conflict`] when the object is no longer the version of `metadata`.
pub async fn publish_status<K, S>(
    api: &Api<K>,
    metadata: &ObjectMeta,
    before: Option<&S>,
    after: &S,
) -> Result<Option<(ObjectMeta, S)>, Error>
where
    K: Clone + Resource,
    S: Serialize + DeserializeOwned + PartialEq,
{
    // Most reconciles change nothing: they need not encode the status.
    if before == Some(after) {
        return Ok(None);
    }
    let action = "writing status";
    let encode = |status: &S| serde_json::to_value(status).map_err(|source| Error::Encode { action, source });
    let before = before.map(encode).transpose()?.unwrap_or_else(|| json!({}));
    let after = encode(after)?;
    let difference = merge_difference(&before, &after);
    if difference == json!({}) {
        return Ok(None);
    }
    let body = json!({"metadata": {"resourceVersion": metadata.resource_version}, "status": difference});
    let name = metadata.name();
    let patched = async {
        let mut request = Request::new(api.resource_url())
            .patch_subresource("status", name, &patch_params(), &Patch::Merge(&body))
            .map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(ACCEPT, METADATA_ALONE);
        let MetadataOnly(metadata) = api.clone().into_client().request(request).await?;
        Ok(metadata)
    };
    let metadata = patched.await.map_err(|error| Error::api(action, error))?;
    let status = serde_json::from_value(after).map_err(|source| Error::Encode { action, source })?;
    Ok(Some((metadata, status)))
}
