//! Compares a policy or binding with what it should be. Pure.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use semver::Version;
use serde_json::Value;

use super::applied_version::{AppliedVersion, is_empty};
use crate::api::annotations;

/// The policy with the annotation that identities are unconfirmed.
pub const CARRIER: &str = "capcmi-reserved-annotations";
/// The policies without which an identity can be forged. A version may add others: those are put in place
/// beside them. No version removes a policy, or lets one guard less than the version before: an older
/// provider relies on it.
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
    /// The version and hash that say that this version has put it in place.
    pub applied: AppliedVersion,
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub enum PolicyFinding {
    /// The object is as it should be, or has defaults besides.
    AsExpected,
    /// The object is as it should be, without the annotations of this version.
    Unversioned,
    /// A newer version has put the object in place, and nothing has changed since. It guards all that this
    /// version's does.
    Newer,
    /// An older version, or another build of this one, has put the object in place, and nothing has changed
    /// since.
    Older,
    /// There is no object.
    Missing,
    /// No version has put this object in place; the first place that differs.
    Different(String),
}

impl PolicyFinding {
    /// Whether some version of the provider has put the object in place, so that nothing which that version
    /// guards can have been forged.
    pub fn is_of_a_version(&self) -> bool {
        match self {
            Self::AsExpected | Self::Unversioned | Self::Newer | Self::Older => true,
            Self::Missing | Self::Different(_) => false,
        }
    }

    /// Whether the object has to be written: a newer version's is left alone.
    pub fn has_to_be_put(&self) -> bool {
        match self {
            Self::AsExpected | Self::Newer => false,
            Self::Unversioned | Self::Older | Self::Missing | Self::Different(_) => true,
        }
    }
}

impl Expected {
    /// The object as this version of the provider puts it in place; `None` for anything but a named object.
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

    /// Names the object for operators, and in a map.
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

/// Compares the object that was found with the expected one. Defaults of the API server change nothing;
/// anything else that is added makes the policy apply to less.
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

/// The first place in which two values differ.
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

/// Whether an annotation is reserved, so that it may claim a VM or let one be forgotten.
pub fn takes_part(key: &str) -> bool {
    annotations::RESERVED_ANNOTATIONS.contains(&key)
}
