//! Tags that mark a VM as the provider's, and the other keys of a provider spec that are reserved for the
//! controller.

use super::{Capabilities, ProviderSpec};

/// Tag with the cluster id: a driver never acts on a VM with another id (DRV-20, DRV-28).
pub const CLUSTER: &str = "kubernetes.io/cluster";
/// Tag with the role: `control-plane` or `node`.
pub const ROLE: &str = "kubernetes.io/role";
/// Tag with the identity of one machine object: a VM with the same name and another value belongs to another
/// machine.
pub const MACHINE: &str = "capcmi.io/machine";
/// Field of the provider spec with the failure domain that a Machine requests.
pub const FAILURE_DOMAIN: &str = "failureDomain";

/// The tags that the controller sets; a user's spec may not hold them.
pub const RESERVED: [&str; 3] = [CLUSTER, ROLE, MACHINE];

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
pub fn check_free(spec: &ProviderSpec, capabilities: &Capabilities) -> Result<(), ReservedKey> {
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
