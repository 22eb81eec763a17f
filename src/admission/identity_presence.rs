//! Reads from an object whether it says which VM is whose.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::comparison::takes_part;

/// Whether an object has an identity or a providerID. The rest of the object is skipped, however large and
/// deep it is, so that it takes no memory and the object need not fit its definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdentityPresence {
    pub is_there: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
// A set is read from a list, and these are the keys of an object.
#[allow(clippy::zero_sized_map_values)]
struct Metadata {
    annotations: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "providerID")]
    provider_id: Option<IgnoredAny>,
}

impl<'de> Deserialize<'de> for IdentityPresence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Object { metadata, spec } = Object::deserialize(deserializer)?;
        let mut annotations = metadata.annotations.iter().flatten();
        let is_there = spec.provider_id.is_some() || annotations.any(|(key, _)| takes_part(key));
        Ok(Self { is_there })
    }
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectList;
    use serde_json::json;

    use super::*;
    use crate::api::annotations;

    #[test]
    fn an_identity_or_a_provider_id_is_found_whatever_else_an_object_holds() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(300), "}".repeat(300));
        let large = json!({"note": "x".repeat(200_000)});
        let objects = [
            (json!({}), json!({}), false),
            (json!({"annotations": null}), json!({"providerID": null}), false),
            (json!({"annotations": large}), json!({}), false),
            (
                json!({"annotations": {annotations::MACHINE_ID: "ns/a/u"}}),
                json!({}),
                true,
            ),
            (json!({}), json!({"providerID": "p"}), true),
        ];
        let texts = objects.iter().map(|(metadata, spec, _)| {
            let spec = spec.to_string().replacen('{', &format!(r#"{{"a":{deep},"#), 1);
            let spec = spec.replace(",}", "}");
            format!(r#"{{"kind": "InfraMachine", "metadata": {metadata}, "spec": {spec}}}"#)
        });
        let items = texts.collect::<Vec<_>>().join(",");
        let list = format!(r#"{{"apiVersion": "v1", "kind": "List", "metadata": {{}}, "items": [{items}]}}"#);
        let list: ObjectList<IdentityPresence> = serde_json::from_str(&list).unwrap();
        let found: Vec<_> = list.items.iter().map(|object| object.is_there).collect();
        assert_eq!(found, objects.map(|(_, _, is_there)| is_there));
    }
}
