//! The addresses of guests, merged from several sources.
//!
//! No source is complete. Leases exist only in libvirt's own networks, the agent only in some images, and a
//! busy guest leaves its agent without an answer. A static address has no lease, and no trace without an
//! agent. The sources are therefore merged for each network interface and address family: the most reliable
//! source that has an address wins. A stale lease does not appear beside the address that the agent reports.
//! A missing IPv6 lease does not hide the agent's IPv6 address.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// The most addresses that are kept of an interface. The agent reports them, so the guest decides how many.
const MAX_ADDRESSES: usize = 64;

/// A DHCP lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The hardware address of the client.
    pub mac: String,
    /// The leased address.
    pub address: String,
    /// When the lease expires, in seconds since the epoch; 0 for a lease without an end.
    pub expires: i64,
}

/// Usable addresses by the hardware address of their interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings(HashMap<String, BTreeSet<IpAddr>>);

impl Sightings {
    /// Adds an address, unless no other host can reach it or the interface has too many.
    pub fn add(&mut self, mac: &str, address: &str) {
        if let Some(address) = usable(address) {
            let known = self.0.entry(mac.to_ascii_lowercase()).or_default();
            if known.len() < MAX_ADDRESSES {
                known.insert(address);
            }
        }
    }

    /// Takes over what a newer source has of these interfaces. An interface keeps the addresses of a family
    /// that the source lacks.
    pub fn update(&mut self, newer: &Self, macs: &[String]) {
        for mac in macs {
            for is_ipv6 in [false, true] {
                let mut found = newer
                    .of(mac)
                    .filter(|address| address.is_ipv6() == is_ipv6)
                    .peekable();
                if found.peek().is_some() {
                    let known = self.0.entry(mac.clone()).or_default();
                    known.retain(|address| address.is_ipv6() != is_ipv6);
                    known.extend(found);
                }
            }
        }
    }

    /// Drops the addresses that another interface has according to a newer source.
    pub fn drop_moved(&mut self, newer: &Self) {
        let has_moved = |mac: &String, address: &IpAddr| {
            let mut others = newer.0.iter().filter(|(other, _)| *other != mac);
            others.any(|(_, addresses)| addresses.contains(address))
        };
        for (mac, addresses) in &mut self.0 {
            addresses.retain(|address| !has_moved(mac, address));
        }
    }

    /// Drops the addresses of all other interfaces.
    pub fn retain(&mut self, macs: &[String]) {
        let is_kept = |mac: &str| macs.iter().any(|kept| kept.eq_ignore_ascii_case(mac));
        self.0.retain(|mac, _| is_kept(mac));
    }

    /// The newest lease of each interface and family. A guest that changes its DHCP client identifier gets
    /// another address, and the old lease stays until it expires.
    pub fn of_leases(leases: impl IntoIterator<Item = Lease>) -> Self {
        let mut newest: HashMap<_, (i64, IpAddr)> = HashMap::new();
        for lease in leases {
            let Some(address) = usable(&lease.address) else {
                continue;
            };
            let expires = if lease.expires == 0 {
                i64::MAX
            } else {
                lease.expires
            };
            let place = (lease.mac.to_ascii_lowercase(), address.is_ipv6());
            let found = newest.entry(place).or_insert((expires, address));
            *found = (*found).max((expires, address));
        }
        let mut sightings = Self::default();
        for ((mac, _), (_, address)) in newest {
            sightings.0.entry(mac).or_default().insert(address);
        }
        sightings
    }

    fn of(&self, mac: &str) -> impl Iterator<Item = IpAddr> {
        self.0.get(mac).into_iter().flatten().copied()
    }

    /// Whether the interface has an IPv4 address.
    pub fn has_ipv4(&self, mac: &str) -> bool {
        self.of(mac).any(|address| address.is_ipv4())
    }

    /// Whether the interface has an address.
    pub fn has(&self, mac: &str) -> bool {
        self.0.contains_key(mac)
    }

    /// Whether no interface has an address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the addresses of the interfaces, without duplicates. For each interface and family, the first
/// source with an address wins.
pub fn merged(macs: &[String], sources: &[&Sightings]) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for mac in macs {
        for is_ipv6 in [false, true] {
            let of_family = |source: &&Sightings| {
                source
                    .of(mac)
                    .filter(|address| address.is_ipv6() == is_ipv6)
                    .collect()
            };
            let mut found = sources.iter().map(of_family);
            let found: Vec<IpAddr> = found.find(|found: &Vec<_>| !found.is_empty()).unwrap_or_default();
            for address in found {
                if !all.contains(&address) {
                    all.push(address);
                }
            }
        }
    }
    all
}

/// Parses an address that other hosts may reach: not loopback, link-local, unspecified or multicast.
fn usable(address: &str) -> Option<IpAddr> {
    let address: IpAddr = address.parse().ok()?;
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let leads_nowhere =
        is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast();
    (!leads_nowhere).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "52:00:00:00:00:0a";
    const B: &str = "52:00:00:00:00:0b";

    fn seen(all: &[(&str, &str)]) -> Sightings {
        let mut sightings = Sightings::default();
        for (mac, address) in all {
            sightings.add(mac, address);
        }
        sightings
    }

    fn leased(all: &[(&str, &str, i64)]) -> Sightings {
        Sightings::of_leases(all.iter().map(|(mac, address, expires)| Lease {
            mac: (*mac).to_owned(),
            address: (*address).to_owned(),
            expires: *expires,
        }))
    }

    fn of(macs: &[&str], sources: &[&Sightings]) -> Vec<String> {
        let macs: Vec<_> = macs.iter().map(|mac| (*mac).to_owned()).collect();
        let all = merged(&macs, sources).into_iter();
        all.map(|address| address.to_string()).collect()
    }

    #[test]
    fn a_guest_cannot_report_without_limit() {
        let mut flood = Sightings::default();
        for number in 0..1_000_u16 {
            flood.add(A, &format!("fd00::{number:x}"));
            flood.add(B, &format!("fd00::{number:x}"));
        }
        assert_eq!(of(&[A], &[&flood]).len(), MAX_ADDRESSES);
        flood.retain(&[A.to_uppercase()]);
        assert!(flood.has(A) && !flood.has(B));
    }

    #[test]
    fn families_and_interfaces_come_from_different_sources() {
        let agent = seen(&[(A, "fd00::a"), (A, "fd00::1")]);
        let leases = leased(&[(A, "10.0.0.5", 1), (B, "10.1.0.5", 1)]);
        let arp = seen(&[(A, "10.0.0.99"), (B, "10.1.0.99")]);
        let all = of(&[A, B], &[&agent, &leases, &arp]);
        assert_eq!(all, ["10.0.0.5", "fd00::1", "fd00::a", "10.1.0.5"]);
    }

    #[test]
    fn a_stale_lease_gives_way_to_the_agent() {
        let agent = seen(&[(A, "10.0.0.9")]);
        let leases = leased(&[(A, "10.0.0.5", 1)]);
        assert_eq!(of(&[A], &[&agent, &leases]), ["10.0.0.9"]);
        assert_eq!(of(&[A], &[&Sightings::default(), &leases]), ["10.0.0.5"]);
    }

    #[test]
    fn the_newest_lease_of_each_family_counts() {
        let leases = [
            (A, "10.0.0.5", 100),
            (A, "10.0.0.6", 200),
            (A, "fd00::5", 50),
            (B, "10.0.0.7", 0),
            (B, "10.0.0.8", 900),
        ];
        let reversed: Vec<_> = leases.iter().rev().copied().collect();
        for leases in [leased(&leases), leased(&reversed)] {
            assert_eq!(of(&[A, B], &[&leases]), ["10.0.0.6", "fd00::5", "10.0.0.7"]);
        }
    }

    #[test]
    fn other_interfaces_of_the_guest_are_left_out() {
        let agent = seen(&[
            (A, "10.0.0.5"),
            ("02:42:ac:11:00:01", "172.17.0.1"),
            ("00:00:00:00:00:00", "10.244.0.1"),
        ]);
        assert_eq!(of(&[A], &[&agent]), ["10.0.0.5"]);
    }

    #[test]
    fn macs_match_in_any_case_and_addresses_come_once() {
        let agent = seen(&[(&A.to_ascii_uppercase(), "10.0.0.5"), (B, "10.0.0.5")]);
        assert_eq!(of(&[A], &[&agent]), ["10.0.0.5"]);
        assert_eq!(of(&[A, B], &[&agent]), ["10.0.0.5"]);
        let leases = leased(&[(&A.to_ascii_uppercase(), "10.0.0.5", 1)]);
        assert_eq!(of(&[A], &[&leases]), ["10.0.0.5"]);
    }

    #[test]
    fn addresses_that_lead_nowhere_are_left_out() {
        for (address, expected) in [
            ("192.168.122.7", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("fe80::1", false),
            ("169.254.1.1", false),
            ("0.0.0.0", false),
            ("ff02::1", false),
            ("224.0.0.1", false),
            ("x", false),
        ] {
            assert_eq!(usable(address).is_some(), expected, "{address}");
        }
    }
}
