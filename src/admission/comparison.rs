//! Whether a policy or binding is what it should be. Pure.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use semver::Version;
use serde_json::Value;

use super::applied_version::{AppliedVersion, is_empty};
use crate::api::labels;

/// The policy with the annotation that identities are unconfirmed.
pub const CARRIER: &str = "capcmi-reserved-annotations";
/// The policies without which an identity can be forged. A version may add others: those are put in
/// place beside them. No version takes one away, or lets one guard less than the version before: an
/// older provider relies on it.
const GUARDS: [&str; 2] = [CARRIER, "capcmi-provider-id"];
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// A policy or binding as this version of the provider has it.
pub struct Expected {
    /// Its name.
    pub name: String,
    /// Its kind at the API server.
    pub resource: ApiResource,
    /// The whole object, without its version and hash.
    pub object: Value,
    /// What says that this version has put it in place.
    pub applied: AppliedVersion,
}

/// What was found in its place.
#[derive(Debug, PartialEq, Eq)]
pub enum PolicyFinding {
    /// What should be there, or the same with defaults.
    AsExpected,
    /// The same, without the annotations of this version.
    Unversioned,
    /// What a newer version has put there, and nothing has changed since. It guards all
    /// that this version's does.
    Newer,
    /// What an older version has put there, or another build of this one, and nothing has changed since.
    Older,
    /// Nothing.
    Missing,
    /// Something that no version has put there, first of all in this place.
    Different(String),
}

impl PolicyFinding {
    /// Whether a version of the provider has put it there, so that none of what that version
    /// guards can have been forged.
    pub fn is_of_a_version(&self) -> bool {
        match self {
            Self::AsExpected | Self::Unversioned | Self::Newer | Self::Older => true,
            Self::Missing | Self::Different(_) => false,
        }
    }

    /// Whether it has to be written: a newer version's is left alone.
    pub fn has_to_be_put(&self) -> bool {
        match self {
            Self::AsExpected | Self::Newer => false,
            Self::Unversioned | Self::Older | Self::Missing | Self::Different(_) => true,
        }
    }
}

impl Expected {
    /// As this version of the provider puts it in place; `None` for what is no named object.
    pub fn new(object: Value, version: &Version) -> Option<Self> {
        let (api_version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
        let (group, api_version) = api_version.split_once('/')?;
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, api_version, kind));
        Some(Self {
            name,
            resource,
            applied: AppliedVersion::new(version.clone(), &object["spec"]),
            object,
        })
    }

    /// Names it for operators, and in a map.
    pub fn key(&self) -> String {
        format!("{} {}", self.resource.kind, self.name)
    }

    /// Whether an identity can be forged without it.
    pub fn guards_identities(&self) -> bool {
        GUARDS.contains(&self.name.as_str())
    }

    /// Whether it is a binding.
    pub fn is_binding(&self) -> bool {
        self.resource.kind == BINDING
    }

    /// Whether the annotation that identities are unconfirmed is here.
    pub fn carries_annotation(&self) -> bool {
        self.name == CARRIER && !self.is_binding()
    }
}

/// Compares what was found with what should be there. What the API server adds by default changes nothing;
/// whatever else is there makes the policy apply to less.
pub fn compare(expected: &Expected, found: Option<&DynamicObject>) -> PolicyFinding {
    let Some(found) = found else {
        return PolicyFinding::Missing;
    };
    let applied = AppliedVersion::unchanged_of(found);
    let is_newer =
        |applied: &AppliedVersion| applied.version.cmp_precedence(&expected.applied.version).is_gt();
    let place = difference(&expected.object["spec"], &found.data["spec"], "spec");
    match (applied, place) {
        (Some(applied), _) if is_newer(&applied) => PolicyFinding::Newer,
        (Some(applied), None) if applied == expected.applied => PolicyFinding::AsExpected,
        (_, None) => PolicyFinding::Unversioned,
        (Some(_), Some(_)) => PolicyFinding::Older,
        (None, Some(place)) => PolicyFinding::Different(place),
    }
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

/// Whether an annotation says which VM is whose.
pub fn takes_part(key: &str) -> bool {
    labels::RESERVED_ANNOTATIONS.contains(&key)
}
