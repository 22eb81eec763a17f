//! Writing a status: what differs, on the version that it was made from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{Api, Patch};
use kube::core::Request;
use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::json;

use crate::api::{DeserializeGuard, ObjectMetaExt as _, Parts};

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
    K: Clone + Resource + Parts + DeserializeOwned,
    S: Serialize + PartialEq,
{
    // Most reconciles have nothing to say: they need not encode it.
    if before == Some(after) {
        return Ok(None);
    }
    let action = "writing status";
    let encode = |status: &S| serde_json::to_value(status).map_err(|source| Error::Encode { action, source });
    let before = before.map(encode).transpose()?.unwrap_or_else(|| json!({}));
    let difference = merge_difference(&before, &encode(after)?);
    if difference == json!({}) {
        return Ok(None);
    }
    let body = json!({"metadata": {"resourceVersion": metadata.resource_version}, "status": difference});
    let name = metadata.name();
    let patched = async {
        let request = Request::new(api.resource_url())
            .patch_subresource("status", name, &patch_params(), &Patch::Merge(&body))
            .map_err(kube::Error::BuildRequest)?;
        let DeserializeGuard(written) = api.clone().into_client().request(request).await?;
        written.map_err(|invalid| kube::Error::SerdeError(serde_json::Error::custom(invalid)))
    };
    let patched = patched.await;
    patched.map(Some).map_err(|error| Error::api(action, error))
}
