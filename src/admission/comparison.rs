//! Compares a policy or binding with the expected one. Pure.

use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use semver::Version;
use serde_json::{Value, json};

/// The policy with the annotation that identities are unconfirmed.
pub const CARRIER: &str = "capcmi-reserved-annotations";
/// The policies that prevent forged identities. A version may add others, which are installed beside them. No
/// version removes a policy or lets a policy guard less than before: older providers rely on it.
const GUARDS: [&str; 2] = [CARRIER, "capcmi-provider-id"];
const BINDING: &str = "ValidatingAdmissionPolicyBinding";
/// The annotation with the version of the provider that wrote a policy.
const VERSION: &str = "infrastructure.capcmi.io/policy-version";

/// A policy or binding as this version of the provider has it.
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Its kind at the API server.
    pub resource: ApiResource,
    /// The whole object, with the version in an annotation.
    pub object: Value,
    version: Version,
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub enum PolicyFinding {
    /// The object is as it should be, apart from defaults.
    AsExpected,
    /// A newer version wrote the object. It guards at least as much as this version's.
    Newer,
    /// An older version wrote the object, or an administrator applied this version's.
    Older,
    /// There is no object.
    Missing,
    /// The object differs from this version's; the first difference.
    Different(String),
}

impl PolicyFinding {
    /// Whether identities may have been written without a guard.
    pub fn is_gap(&self) -> bool {
        matches!(self, Self::Missing | Self::Different(_))
    }

    /// Whether the object has to be written: a newer version's is left alone.
    pub fn has_to_be_put(&self) -> bool {
        self.is_gap() || *self == Self::Older
    }
}

impl Expected {
    /// The object as this version of the provider puts it in place; `None` for anything but a named object.
    pub fn new(mut object: Value, version: &Version) -> Option<Self> {
        let (api_version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
        let (group, api_version) = api_version.split_once('/')?;
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, api_version, kind));
        object["metadata"]["annotations"] = json!({VERSION: version.to_string()});
        Some(Self {
            name,
            resource,
            object,
            version: version.clone(),
        })
    }

    /// Names the object for operators.
    pub fn key(&self) -> String {
        format!("{} {}", self.resource.kind, self.name)
    }

    /// Whether an identity can be forged without this object.
    pub fn guards_identities(&self) -> bool {
        GUARDS.contains(&self.name.as_str())
    }

    /// Whether it is a binding.
    pub fn is_binding(&self) -> bool {
        self.resource.kind == BINDING
    }

    /// Whether this object carries the annotation that identities are unconfirmed.
    pub fn carries_annotation(&self) -> bool {
        self.name == CARRIER && !self.is_binding()
    }
}

/// Compares the object that was found with the expected one. Defaults of the API server do not count. Any
/// other addition makes the policy apply to less.
pub fn compare(expected: &Expected, found: Option<&DynamicObject>) -> PolicyFinding {
    let Some(found) = found else {
        return PolicyFinding::Missing;
    };
    let version = found.annotations().get(VERSION);
    let version = version.and_then(|version| Version::parse(version).ok());
    let age = version.map(|version| version.cmp_precedence(&expected.version));
    let place = difference(&expected.object["spec"], &found.data["spec"], "spec");
    match (age, place) {
        (Some(age), _) if age.is_gt() => PolicyFinding::Newer,
        (Some(age), _) if age.is_lt() => PolicyFinding::Older,
        (Some(_), None) => PolicyFinding::AsExpected,
        (None, None) => PolicyFinding::Older,
        (_, Some(place)) => PolicyFinding::Different(place),
    }
}

fn difference(expected: &Value, found: &Value, place: &str) -> Option<String> {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let mut keys = expected.keys().chain(found.keys());
            keys.find_map(|key| {
                let of = |fields: &serde_json::Map<_, _>| fields.get(key).cloned().unwrap_or_default();
                difference(&of(expected), &of(found), &format!("{place}.{key}"))
            })
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => expected
            .iter()
            .zip(found)
            .enumerate()
            .find_map(|(index, (expected, found))| difference(expected, found, &format!("{place}[{index}]"))),
        (expected, found) => {
            let is_same = expected == found || (is_empty(expected) && is_empty(found));
            (!is_same).then(|| place.to_owned())
        }
    }
}

/// Whether a value means the same as an absent one.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
