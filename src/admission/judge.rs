//! Whether a policy or binding is what it should be. Pure.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;

use crate::api::labels;

/// The policy that carries the note that identities are unconfirmed.
pub const CARRIER: &str = "capcmi-reserved-annotations";
/// The policies without which an identity can be forged. A version may add others: those are put in place beside them.
const GUARDS: [&str; 2] = [CARRIER, "capcmi-provider-id"];
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// A policy or binding as this version of the provider has it.
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Its kind at the API server.
    pub resource: ApiResource,
    /// The whole object.
    pub object: Value,
}

/// What was found in its place.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// What should be there, or the same with defaults.
    AsExpected,
    /// Nothing.
    Missing,
    /// Something else, first of all in this place.
    Different(String),
}

impl Expected {
    /// `None` for what is no named object.
    pub fn new(object: Value) -> Option<Self> {
        let (version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
        let (group, version) = version.split_once('/')?;
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Some(Self {
            name,
            resource,
            object,
        })
    }

    /// Names it for people, and in a map.
    pub fn key(&self) -> String {
        format!("{} {}", self.resource.kind, self.name)
    }

    /// Whether an identity can be forged without it.
    pub fn guards_identities(&self) -> bool {
        GUARDS.contains(&self.name.as_str())
    }

    /// Whether it is a binding, which no version of the provider changes.
    pub fn is_binding(&self) -> bool {
        self.resource.kind == BINDING
    }

    /// Whether the note that identities are unconfirmed stands here.
    pub fn carries_mark(&self) -> bool {
        self.name == CARRIER && !self.is_binding()
    }
}

/// Compares what was found with what should be there. What the API server adds by default changes nothing; whatever else is there
/// makes the policy apply to less.
pub fn judge(expected: &Expected, found: Option<&DynamicObject>) -> Finding {
    let Some(found) = found else {
        return Finding::Missing;
    };
    let place = difference(&expected.object["spec"], &found.data["spec"], "spec");
    place.map_or(Finding::AsExpected, Finding::Different)
}

/// The first place in which they differ.
fn difference(expected: &Value, found: &Value, place: &str) -> Option<String> {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let changed = expected.iter().find_map(|(key, value)| {
                difference(
                    value,
                    found.get(key).unwrap_or(&Value::Null),
                    &format!("{place}.{key}"),
                )
            });
            let added = || {
                let more = found.iter().filter(|(key, _)| !expected.contains_key(*key));
                let mut narrowing = more.filter(|(_, value)| !is_empty(value));
                narrowing.next().map(|(key, _)| format!("{place}.{key}"))
            };
            changed.or_else(added)
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => expected
            .iter()
            .zip(found)
            .enumerate()
            .find_map(|(index, (expected, found))| difference(expected, found, &format!("{place}[{index}]"))),
        (expected, found) => (expected != found).then(|| place.to_owned()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether an annotation says which VM is whose.
pub fn takes_part(key: &str) -> bool {
    labels::RESERVED_ANNOTATIONS.contains(&key)
}
