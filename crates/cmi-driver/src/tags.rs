//! Tags that mark a VM as the provider's, and the other keys of a provider spec that are reserved for the
//! controller.

use std::collections::BTreeMap;

use super::{Capabilities, JsonPointer, ProviderSpec, Result, Status, fields};

/// Tag with the cluster id: a driver never acts on a VM with another id (DRV-20, DRV-28).
pub const CLUSTER: &str = "kubernetes.io/cluster";
/// Tag with the role: `control-plane` or `node`.
pub const ROLE: &str = "kubernetes.io/role";
/// Tag with the identity of one machine object: a VM with the same name and another value belongs to another
/// machine.
pub const MACHINE: &str = "capcmi.io/machine";
/// Tag with a digest of the provider spec that a VM was made from. A [`BackendDriver`](crate::BackendDriver)
/// sets it.
pub const SPEC: &str = "capcmi.io/spec";
/// Field of the provider spec with the failure domain that a Machine requests.
pub const FAILURE_DOMAIN: &str = "failureDomain";

/// Field of the provider spec with the tags, unless [`Capabilities::tag_path`] names another place.
pub const FIELD: &str = "tags";

/// The tags that the controller sets; a user's spec may not hold them.
pub const RESERVED: [&str; 3] = [CLUSTER, ROLE, MACHINE];

/// Returns the cluster id in the tags of a provider spec. A call about a cluster needs nothing else (DRV-04).
///
/// # Errors
/// INVALID_ARGUMENT with the path of the tag.
pub fn cluster(all: &BTreeMap<String, String>) -> Result<&str> {
    required(all, CLUSTER)
}

/// Returns the tags that do not identify the machine: the user's own.
pub fn own(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = all.iter().filter(|(tag, _)| !RESERVED.contains(&tag.as_str()));
    own.map(|(tag, value)| (tag.clone(), value.clone())).collect()
}

pub(crate) fn required<'a>(all: &'a BTreeMap<String, String>, tag: &str) -> Result<&'a str> {
    let value = all.get(tag).map(String::as_str);
    let value = value.filter(|value| !value.trim().is_empty());
    value.ok_or_else(|| invalid(tag, "is required and must be a string"))
}

pub(crate) fn invalid(tag: &str, problem: &str) -> Status {
    fields::invalid(&JsonPointer::field(FIELD).child(tag).to_string(), problem)
}

/// A key of a provider spec that is reserved for the controller; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservedKey {
    /// A value that is no object is at the place of the tags.
    #[error("providerSpec{0} must be an object, because the provider adds its tags there")]
    TagsAreNoObject(String),
    /// The user set a tag.
    #[error("providerSpec{pointer} has the reserved tag `{tag}`: remove it, the provider sets it")]
    Tag {
        /// The place of the tags.
        pointer: String,
        /// The tag.
        tag: &'static str,
    },
    /// The user set the zone where only the Machine may.
    #[error("providerSpec/failureDomain is reserved: set spec.failureDomain of the Machine instead")]
    FailureDomain,
    /// The user set the static addresses, or a value that is no object is above their place.
    #[error("providerSpec{0} is reserved for static addresses: set spec.addressesFromPools instead")]
    Addresses(String),
}

/// Checks that a user's spec leaves the keys free that the controller sets for a driver with these
/// capabilities.
///
/// # Errors
/// The first key that is not free.
pub fn check_free(spec: &ProviderSpec, capabilities: &Capabilities) -> std::result::Result<(), ReservedKey> {
    let mut spec = spec.clone();
    let tags = spec
        .object_at(&capabilities.tag_path)
        .map_err(ReservedKey::TagsAreNoObject)?;
    if let Some(tag) = RESERVED.into_iter().find(|tag| tags.contains_key(*tag)) {
        let pointer = capabilities.tag_path.to_string();
        return Err(ReservedKey::Tag { pointer, tag });
    }
    if capabilities.zones && spec.0.contains_key(FAILURE_DOMAIN) {
        return Err(ReservedKey::FailureDomain);
    }
    match &capabilities.address_path {
        Some(place) if spec.get(place).is_some() => Err(ReservedKey::Addresses(place.to_string())),
        Some(_) | None => Ok(()),
    }
}
