//! Static addresses that the controller gives to a driver.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address that a VM must have from its creation. The controller gets it from an address pool, and
/// releases it when the VM is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StaticAddress {
    /// The address.
    pub address: IpAddr,
    /// The length of the prefix of the address's network.
    pub prefix: u8,
    /// The gateway of the address's network, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The network of the VM that the address is for, as the driver names it. Without it, the driver's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The pool that the address is from.
    pub pool: AddressPool,
}

/// A pool of addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressPool {
    /// API group.
    pub api_group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}
