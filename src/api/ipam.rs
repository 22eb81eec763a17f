//! The objects of Cluster API's IPAM contract: a claim for an address of a pool, and the address that an IPAM
//! provider allocates. Only the fields that this provider uses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResource, Resource as _};
use serde::{Deserialize, Serialize};

use super::ObjectMetaExt as _;
use super::conditions;
use super::v1alpha1::{AddressFromPool, InfraMachine};
use cmi_driver::AddressPool;

/// API group of IPAddressClaim and IPAddress.
pub const GROUP: &str = "ipam.cluster.x-k8s.io";

/// `IPAddressClaim.spec`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "ipam.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "IPAddressClaim",
    namespaced,
    status = "IPAddressClaimStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase", default)]
pub struct IPAddressClaimSpec {
    /// The Cluster. An IPAM provider does nothing while it is paused.
    pub cluster_name: String,
    /// The pool.
    pub pool_ref: PoolReference,
}

/// `IPAddressClaim.status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IPAddressClaimStatus {
    /// The IPAddress, once the IPAM provider has allocated it.
    pub address_ref: NameReference,
    /// The conditions.
    pub conditions: Vec<ClaimCondition>,
    /// The conditions of IPAM providers that still implement the contract v1beta1.
    pub deprecated: DeprecatedClaimStatus,
}

/// Fields of the contract v1beta1.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct DeprecatedClaimStatus {
    /// Of v1beta1.
    pub v1beta1: DeprecatedConditions,
}

/// The conditions of the contract v1beta1.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct DeprecatedConditions {
    /// The conditions.
    pub conditions: Vec<ClaimCondition>,
}

/// A condition of an IPAddressClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ClaimCondition {
    /// The type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason.
    pub reason: String,
}

/// `IPAddress.spec`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "ipam.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "IPAddress",
    plural = "ipaddresses",
    namespaced,
    schema = "disabled"
)]
#[serde(rename_all = "camelCase", default)]
pub struct IPAddressSpec {
    /// The claim that the address was allocated for.
    pub claim_ref: NameReference,
    /// The address.
    pub address: String,
    /// The length of its network's prefix.
    pub prefix: i32,
    /// The gateway of its network. Empty without one.
    pub gateway: String,
}

/// A reference to a pool of any IPAM provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolReference {
    /// API group.
    pub api_group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// A reference to an object of the same namespace by its name. The name is empty until the object exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct NameReference {
    /// The name.
    pub name: String,
}

impl From<&AddressFromPool> for PoolReference {
    fn from(pool: &AddressFromPool) -> Self {
        Self {
            api_group: pool.api_group.clone(),
            kind: pool.kind.clone(),
            name: pool.name.clone(),
        }
    }
}

impl From<&AddressFromPool> for AddressPool {
    fn from(pool: &AddressFromPool) -> Self {
        Self {
            api_group: pool.api_group.clone(),
            kind: pool.kind.clone(),
            name: pool.name.clone(),
        }
    }
}

impl IPAddressClaimStatus {
    /// The reason why there is no address, if the IPAM provider gives one.
    pub fn why_not_ready(&self) -> Option<&str> {
        let all = self.conditions.iter().chain(&self.deprecated.v1beta1.conditions);
        let mut not_ready =
            all.filter(|condition| condition.type_ == conditions::READY && condition.status == "False");
        let reason = not_ready.next()?.reason.as_str();
        (!reason.is_empty()).then_some(reason)
    }
}

/// The name of the claim for the pool of a machine at this place in its spec.
pub fn claim_name(machine: &InfraMachine, place: usize) -> String {
    format!("{}-{place}", machine.metadata.name())
}

/// The name and the UID of the InfraMachine that owns a claim as its controller.
pub fn owner_of(claim: &ObjectMeta) -> Option<(&str, &str)> {
    let owner = claim.owner_references.iter().flatten().find(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let is_ours = group == InfraMachine::group(&()) && owner.kind == InfraMachine::kind(&());
        is_ours && owner.controller == Some(true)
    })?;
    Some((owner.name.as_str(), owner.uid.as_str()))
}
