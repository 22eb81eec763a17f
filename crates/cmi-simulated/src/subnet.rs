//! The network of a pool.

use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::Deserialize;

/// An IPv4 network in CIDR form, /8 to /30.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Subnet {
    network: u32,
    prefix: u8,
}

/// Text that is no usable network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no IPv4 network from /8 to /30 such as `10.100.0.0/16`")]
pub struct ParseSubnetError(String);

impl Subnet {
    /// 10.100.0.0/16
    pub const DEFAULT: Self = Self {
        network: 0x0a64_0000,
        prefix: 16,
    };

    /// How many VMs can have an address: all but network, router and broadcast.
    pub const fn hosts(self) -> u32 {
        self.len() - 3
    }

    /// The address of a VM by its index, 0 to [`Self::hosts`] - 1.
    pub fn host(self, index: u32) -> Option<Ipv4Addr> {
        (index < self.hosts()).then(|| Ipv4Addr::from(self.network + 2 + index))
    }

    /// The index of an address that [`Self::host`] gave.
    pub fn index(self, address: Ipv4Addr) -> Option<u32> {
        u32::from(address)
            .checked_sub(self.network + 2)
            .filter(|index| *index < self.hosts())
    }

    /// Whether an address is in both.
    pub fn overlaps(self, other: Self) -> bool {
        let prefix = self.prefix.min(other.prefix);
        (self.network ^ other.network) >> (32 - prefix) == 0
    }

    const fn len(self) -> u32 {
        1 << (32 - self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = ParseSubnetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseSubnetError(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
        let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        if !(8..=30).contains(&prefix) {
            return Err(bad());
        }
        let network = u32::from(address) >> (32 - prefix) << (32 - prefix);
        if network != u32::from(address) {
            return Err(bad());
        }
        Ok(Self { network, prefix })
    }
}

impl TryFrom<String> for Subnet {
    type Error = ParseSubnetError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_leave_out_network_router_and_broadcast() {
        let subnet: Subnet = "10.0.0.0/29".parse().unwrap();
        assert_eq!(subnet.hosts(), 5);
        assert_eq!(subnet.host(0), Some(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!(subnet.host(4), Some(Ipv4Addr::new(10, 0, 0, 6)));
        assert_eq!(subnet.host(5), None);
        assert_eq!(subnet.index(Ipv4Addr::new(10, 0, 0, 6)), Some(4));
        assert_eq!(subnet.index(Ipv4Addr::new(10, 0, 0, 1)), None);
    }

    #[test]
    fn networks_with_a_common_address_overlap() {
        let net = |text: &str| text.parse::<Subnet>().unwrap();
        assert!(net("10.0.0.0/8").overlaps(net("10.1.0.0/16")));
        assert!(!net("10.0.0.0/16").overlaps(net("10.1.0.0/16")));
        assert!("10.0.0.1/16".parse::<Subnet>().is_err());
        assert!("10.0.0.0/31".parse::<Subnet>().is_err());
    }
}
