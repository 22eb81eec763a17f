//! Patches that contain only the changes.

use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::core::Request;
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::{Value, json};

use super::Error;
use crate::api::progress::Task;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{MetadataOnly, ObjectMetaExt as _, annotations, bounded};

/// Field manager of every write, so that Cluster API's server-side apply leaves our fields alone.
pub const FIELD_MANAGER: &str = "capcmi";

/// Parameters of every patch.
pub fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Patches an object, and returns its new metadata, which can be read even where the spec can't.
///
/// # Errors
/// The API server refused or could not be reached.
pub async fn patch_metadata<K: Clone + Resource>(
    api: &Api<K>,
    name: &str,
    body: &Value,
) -> Result<ObjectMeta, kube::Error> {
    let request = Request::new(api.resource_url())
        .patch_metadata(name, &patch_params(), &Patch::Merge(body))
        .map_err(kube::Error::BuildRequest)?;
    let MetadataOnly(metadata) = api.clone().into_client().request(request).await?;
    Ok(metadata)
}

/// Returns all finalizers of this version of an object. If the cache may have truncated them, they come from
/// the answer to a patch without changes: the provider may not `get` every kind.
///
/// # Errors
/// [`Error::Conflict`] when the object has changed. The API server refused or could not be reached.
pub async fn finalizers<K: Clone + Resource>(
    api: &Api<K>,
    metadata: &ObjectMeta,
    action: &'static str,
) -> Result<Vec<String>, Error> {
    let known = metadata.finalizers.clone().unwrap_or_default();
    if known.len() < bounded::MAX_KEPT {
        return Ok(known);
    }
    let body = json!({"metadata": {"resourceVersion": metadata.resource_version}});
    let live = patch_metadata(api, metadata.name(), &body).await;
    let live = live.map_err(|error| Error::api(action, error))?;
    Ok(live.finalizers.unwrap_or_default())
}

/// Records the progress of a task in this version of an InfraMachine, and returns the patched object.
///
/// # Errors
/// [`Error::Conflict`] when the object has changed. The API server refused or could not be reached.
pub async fn record_progress(
    client: &Client,
    infra: &InfraMachine,
    task: Task,
    progress: impl Serialize,
    action: &'static str,
) -> Result<InfraMachine, Error> {
    let progress = task
        .with_progress(&infra.metadata, progress)
        .map_err(|source| Error::Encode { action, source })?;
    let body = json!({"metadata": {
        "resourceVersion": infra.metadata.resource_version, "annotations": {annotations::PROGRESS: progress},
    }});
    let api = Api::<InfraMachine>::namespaced(client.clone(), infra.metadata.namespace());
    let written = api
        .patch(infra.metadata.name(), &patch_params(), &Patch::Merge(&body))
        .await;
    written.map_err(|error| Error::api(action, error))
}

/// The JSON merge patch that makes `old` into `new` (RFC 7386).
pub fn merge_difference(old: &Value, new: &Value) -> Value {
    let (Some(old_fields), Some(new_fields)) = (old.as_object(), new.as_object()) else {
        return new.clone();
    };
    let removed = old_fields
        .keys()
        .filter(|key| !new_fields.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    let changed = new_fields
        .iter()
        .filter_map(|(key, value)| match old_fields.get(key) {
            Some(same) if same == value => None,
            Some(other) => Some((key.clone(), merge_difference(other, value))),
            None => Some((key.clone(), value.clone())),
        });
    Value::Object(removed.chain(changed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_difference_names_what_changed_and_what_went() {
        let old = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": [1], "f": 1});
        let new = json!({"a": 1, "b": {"c": 1, "d": 3}, "e": [2], "g": 1});
        assert_eq!(
            merge_difference(&old, &new),
            json!({"b": {"d": 3}, "e": [2], "f": null, "g": 1})
        );
        assert_eq!(merge_difference(&old, &old), json!({}));
    }
}
