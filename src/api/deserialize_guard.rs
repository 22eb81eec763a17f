//! Objects that may not match their schema.
//!
//! kube's own guard copies every object twice as a tree before reading it, and a quarter of the provider's
//! time went to the allocator. Managed fields are half of an object, and took another tenth: they are skipped
//! here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object, or the metadata of an unreadable object: one malformed object does not end a watch. Reads JSON
/// only. The text is kept, and read again only for an error.
#[derive(Clone, Debug)]
pub struct DeserializeGuard<K>(pub Result<K, InvalidObject>);

/// A kind whose objects are read part by part, without managed fields.
pub trait Parts: Sized {
    /// The type of the spec.
    type Spec: DeserializeOwned;
    /// The type of the status.
    type Status: DeserializeOwned;

    /// The object of these parts.
    fn from_parts(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self;
}

impl<'de, K: Parts + DeserializeOwned> Deserialize<'de> for DeserializeGuard<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let text = text.get();
        if let Ok(object) = serde_json::from_str::<ReadParts<K::Spec, K::Status>>(text) {
            let ReadParts {
                metadata,
                spec,
                status,
            } = object;
            return Ok(Self(Ok(K::from_parts(metadata.into(), spec, status))));
        }
        Ok(Self(Err(InvalidObject {
            error: what_is_wrong::<K>(text),
            metadata: metadata(text).map_err(D::Error::custom)?,
        })))
    }
}

/// The parts of an object that are read.
#[derive(Deserialize)]
pub(super) struct ReadParts<S, T> {
    #[serde(default)]
    pub metadata: Metadata,
    pub spec: S,
    #[serde(default = "Option::default")]
    pub status: Option<T>,
}

/// Metadata without managed fields.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Metadata> for ObjectMeta {
    fn from(metadata: Metadata) -> Self {
        Self {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            creation_timestamp: metadata.creation_timestamp,
            deletion_timestamp: metadata.deletion_timestamp,
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: metadata.owner_references,
            ..Self::default()
        }
    }
}

/// The metadata of any object, without managed fields.
#[derive(Clone, Debug, Default)]
pub struct MetadataOnly(pub ObjectMeta);

impl<'de> Deserialize<'de> for MetadataOnly {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Metadata,
        }
        let Object { metadata } = Object::deserialize(deserializer)?;
        Ok(Self(metadata.into()))
    }
}

/// The metadata of any object.
///
/// An object and its managed fields may be nested deeper than JSON is read. Both are skipped here, so that
/// one such object does not make its list unreadable.
///
/// # Errors
/// It is no object, or its metadata are malformed.
pub fn metadata(text: &str) -> serde_json::Result<ObjectMeta> {
    let MetadataOnly(metadata) = serde_json::from_str(text)?;
    Ok(metadata)
}

/// Returns where reading the object fails, such as `spec.providerSpec`, and why. Reads the object a second
/// time, because tracking the place costs time.
fn what_is_wrong<K: DeserializeOwned>(text: &str) -> String {
    match serde_path_to_error::deserialize::<_, K>(&mut serde_json::Deserializer::from_str(text)) {
        Ok(_) => "the second attempt to read it succeeded".to_owned(),
        Err(error) => error.to_string(),
    }
}

impl<K: Resource> Resource for DeserializeGuard<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(invalid) => &mut invalid.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::*;
    use crate::api::v1alpha1::InfraMachine;

    const VALID: &str =
        r#"{"metadata": {"name": "a", "uid": "1"}, "spec": {"providerSpec": {"size": "small"}}}"#;
    const INVALID: &str = r#"{"metadata": {"name": "b", "uid": "2"}, "spec": {"providerSpec": 7}}"#;

    #[test]
    fn a_malformed_object_keeps_its_metadata_and_says_what_is_wrong_with_it() {
        let read: DeserializeGuard<InfraMachine> = serde_json::from_str(INVALID).unwrap();
        assert_eq!(read.meta().name.as_deref(), Some("b"));
        let error = read.0.unwrap_err().error;
        assert!(
            error.starts_with("spec.providerSpec: invalid type: integer `7`"),
            "{error}"
        );
    }

    /// The API server accepts fields deeper than JSON is read.
    #[test]
    fn a_deeply_nested_object_keeps_its_metadata_and_breaks_no_list() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(300), "}".repeat(300));
        let object = format!(
            r#"{{"metadata": {{"name": "c", "uid": "3", "annotations": {{"k": "v"}},
            "managedFields": [{{"fieldsV1": {deep}}}]}},
                "spec": {{"providerSpec": {deep}}}}}"#
        );
        let list = format!(
            r#"{{"apiVersion": "v1", "kind": "List", "metadata": {{}}, "items": [{object}, {VALID}]}}"#
        );
        let list: ObjectList<DeserializeGuard<InfraMachine>> = serde_json::from_str(&list).unwrap();
        let valid: Vec<bool> = list.items.iter().map(|read| read.0.is_ok()).collect();
        assert_eq!(valid, [false, true]);
        let metadata = list.items[0].meta();
        assert_eq!(
            (metadata.name.as_deref(), metadata.uid.as_deref()),
            (Some("c"), Some("3"))
        );
        assert_eq!(metadata.annotations.as_ref().unwrap()["k"], "v");
        let error = &list.items[0].0.as_ref().unwrap_err().error;
        assert!(error.contains("recursion limit exceeded"), "{error}");
    }

    #[test]
    fn a_malformed_object_spoils_neither_a_list_nor_a_watch() {
        let list = format!(
            r#"{{"apiVersion": "v1", "kind": "List", "metadata": {{}}, "items": [{INVALID}, {VALID}]}}"#
        );
        let list: ObjectList<DeserializeGuard<InfraMachine>> = serde_json::from_str(&list).unwrap();
        let valid: Vec<bool> = list.items.iter().map(|read| read.0.is_ok()).collect();
        assert_eq!(valid, [false, true]);
        for (text, is_valid) in [(INVALID, false), (VALID, true)] {
            let event = format!(r#"{{"type": "MODIFIED", "object": {text}}}"#);
            let event: WatchEvent<DeserializeGuard<InfraMachine>> = serde_json::from_str(&event).unwrap();
            let WatchEvent::Modified(read) = event else {
                panic!("{event:?}")
            };
            assert_eq!(read.0.is_ok(), is_valid);
        }
    }
}
