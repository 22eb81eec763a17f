//! Objects that may not be what their schema says.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::core::error_boundary::InvalidObject;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object, or what can be told of one that can't be read: one malformed object does not end a watch.
///
/// What [`kube::core::DeserializeGuard`] is, without its price: that one copies every object twice as a tree before it
/// reads it, valid or not; a quarter of the provider's time was spent in the allocator, much of it for those copies. This
/// one keeps the text, and looks at it again only when it has to. Can be read from JSON alone.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, InvalidObject>);

impl<'de, K: DeserializeOwned + Resource> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        if let Ok(object) = serde_json::from_str(text.get()) {
            return Ok(Self(Ok(object)));
        }
        let partial: PartialObjectMeta<K> = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self(Err(InvalidObject {
            error: what_is_wrong::<K>(text.get()),
            metadata: partial.metadata,
        })))
    }
}

/// Where reading the object fails, as `spec.providerSpec`, and why. Read again for that: to keep track of the place costs
/// something, and objects can be read as a rule.
fn what_is_wrong<K: DeserializeOwned>(text: &str) -> String {
    match serde_path_to_error::deserialize::<_, K>(&mut serde_json::Deserializer::from_str(text)) {
        Ok(_) => "it could be read the second time".to_owned(),
        Err(error) => error.to_string(),
    }
}

impl<K: Resource> Resource for Guarded<K> {
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
        let read: Guarded<InfraMachine> = serde_json::from_str(INVALID).unwrap();
        assert_eq!(read.meta().name.as_deref(), Some("b"));
        let error = read.0.unwrap_err().error;
        assert!(
            error.starts_with("spec.providerSpec: invalid type: integer `7`"),
            "{error}"
        );
    }

    #[test]
    fn a_malformed_object_spoils_neither_a_list_nor_a_watch() {
        let list = format!(
            r#"{{"apiVersion": "v1", "kind": "List", "metadata": {{}}, "items": [{INVALID}, {VALID}]}}"#
        );
        let list: ObjectList<Guarded<InfraMachine>> = serde_json::from_str(&list).unwrap();
        let valid: Vec<bool> = list.items.iter().map(|read| read.0.is_ok()).collect();
        assert_eq!(valid, [false, true]);
        for (text, is_valid) in [(INVALID, false), (VALID, true)] {
            let event = format!(r#"{{"type": "MODIFIED", "object": {text}}}"#);
            let event: WatchEvent<Guarded<InfraMachine>> = serde_json::from_str(&event).unwrap();
            let WatchEvent::Modified(read) = event else {
                panic!("{event:?}")
            };
            assert_eq!(read.0.is_ok(), is_valid);
        }
    }
}
