//! The version of the provider that has put a policy in place, and whether the policy is still as that
//! version made it. Pure.
//!
//! Every other version reads what is written here, so these stay as they are: the names of the annotations,
//! and how the hash is computed.

use kube::api::DynamicObject;
use semver::Version;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The annotation with the version.
pub const VERSION: &str = "infrastructure.capcmi.io/policy-version";
/// The annotation with the hash of the spec that this version has put in place.
pub const HASH: &str = "infrastructure.capcmi.io/policy-hash";

/// The version that has put a policy in place, and the hash of the spec that it has put there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedVersion {
    /// The version.
    pub version: Version,
    hash: String,
}

impl AppliedVersion {
    /// The version that puts this spec in place, with the spec's hash.
    pub fn new(version: Version, spec: &Value) -> Self {
        Self {
            version,
            hash: hash(spec),
        }
    }

    /// The version that an object carries, if its spec is still the one that this version has put there. A
    /// spec that others have changed since says nothing about a version.
    pub fn unchanged_of(object: &DynamicObject) -> Option<Self> {
        let annotations = object.metadata.annotations.as_ref()?;
        let applied = Self {
            version: Version::parse(annotations.get(VERSION)?).ok()?,
            hash: annotations.get(HASH)?.clone(),
        };
        (applied.hash == hash(&object.data["spec"])).then_some(applied)
    }

    /// The version and hash as annotations.
    pub fn annotations(&self) -> Value {
        json!({VERSION: self.version.to_string(), HASH: self.hash})
    }
}

fn hash(spec: &Value) -> String {
    let mut text = String::new();
    canonical(spec, &mut text);
    format!("sha256:{:x}", Sha256::digest(text))
}

/// JSON with sorted keys and without what is empty, which the API server adds by default.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(_, value)| !is_empty(value)).collect();
            fields.sort_by_key(|(key, _)| *key);
            text.push('{');
            for (key, value) in fields {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
        }
    }
}

/// Whether a value says the same as if it were missing.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every version reads the hashes of every other, so they may never be computed in another way.
    #[test]
    fn a_hash_is_computed_as_it_always_was() {
        let spec = json!({"b": [{"y": "\"", "x": {}}, []], "a": true, "none": null, "c": {"n": 1}});
        let mut text = String::new();
        canonical(&spec, &mut text);
        assert_eq!(text, r#"{"a":true,"b":[{"y":"\"",},[],],"c":{"n":1,},}"#);
        assert_eq!(
            hash(&spec),
            "sha256:c0b7bde40891de019aa07b701dd9afaf401cad0b50b1132bbb90bbe0bf1badce"
        );
    }
}
