//! The addresses that a machine's status publishes. Pure.

use std::net::IpAddr;

use serde::Deserialize as _;
use serde::de::{self, IntoDeserializer as _, value::StrDeserializer};

use super::cluster_api::Cluster;
use super::v1alpha1::MachineAddress;
use cmi_driver::{Address, AddressType, PowerState};

/// Cluster API's limit for the number of addresses.
const MAX_ADDRESSES: usize = 256;
/// Cluster API's limit for the length of an address.
const MAX_BYTES: usize = 256;

type Ip = (IpAddr, AddressType);

/// The rules of a Cluster for the addresses of its machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressRules {
    /// The address of the control plane. It moves between machines, so it belongs to none of them.
    endpoint: Option<IpAddr>,
    /// Whether the first Services of the Cluster are in an IPv6 network.
    prefers_ipv6: bool,
}

impl AddressRules {
    /// The rules of a Cluster.
    pub fn of(cluster: &Cluster) -> Self {
        let endpoint = cluster.spec.control_plane_endpoint.as_ref();
        Self {
            endpoint: endpoint.and_then(|endpoint| ip(&endpoint.host)),
            prefers_ipv6: cluster
                .first_service_cidr()
                .is_some_and(|cidr| cidr.contains(':')),
        }
    }

    /// Returns the addresses to publish after an answer of the driver: those that others can use, each once,
    /// in a stable order: the preferred family, the other family, names.
    ///
    /// An answer without IP addresses of the machine's own keeps the published ones unless the VM is off,
    /// because a guest agent may be silent. The same holds for names.
    pub fn after_answer(
        &self,
        published: &[MachineAddress],
        reported: &[Address],
        power: Option<PowerState>,
    ) -> Vec<Address> {
        let is_off = matches!(power, Some(PowerState::Stopped | PowerState::Failed));
        let before = if is_off { &[] } else { published };
        let before: Vec<_> = before.iter().filter_map(reported_address).collect();
        let of_families = |addresses: &[Address]| -> (Vec<Ip>, Vec<Ip>) {
            addresses
                .iter()
                .filter_map(usable_ip)
                .partition(|(ip, _)| ip.is_ipv4())
        };
        let ((before_v4, before_v6), (now_v4, now_v6)) = (of_families(&before), of_families(reported));
        let is_silent = !now_v4.iter().chain(&now_v6).any(|ip| self.is_own(ip));
        let v4 = self.of_family(before_v4, now_v4, is_silent);
        let v6 = self.of_family(before_v6, now_v6, is_silent);
        let mut ips = [v4, v6].concat();
        ips.sort_unstable_by_key(|(ip, kind)| (ip.is_ipv6() != self.prefers_ipv6, *ip, *kind));
        let ips = ips.into_iter().map(|(ip, kind)| Address {
            kind,
            address: ip.to_string(),
        });
        let mut addresses: Vec<_> = ips.chain(names(reported, &before)).collect();
        addresses.dedup();
        addresses.truncate(MAX_ADDRESSES);
        addresses
    }

    /// The endpoint may be published only if the machine has no other address of the family.
    fn of_family(&self, before: Vec<Ip>, now: Vec<Ip>, is_silent: bool) -> Vec<Ip> {
        let own = |ips: &[Ip]| -> Vec<Ip> { ips.iter().copied().filter(|ip| self.is_own(ip)).collect() };
        match (own(&now), own(&before)) {
            (own, _) if !own.is_empty() => own,
            (_, own) if !own.is_empty() && (is_silent || !now.is_empty()) => own,
            _ if now.is_empty() && is_silent => before,
            _ => now,
        }
    }

    fn is_own(&self, (ip, _): &Ip) -> bool {
        self.endpoint != Some(*ip)
    }
}

/// Returns addresses in their published form.
pub fn published(addresses: &[Address]) -> Vec<MachineAddress> {
    let published = |address: &Address| MachineAddress {
        type_: type_name(address.kind).to_owned(),
        address: address.address.clone(),
    };
    addresses.iter().map(published).collect()
}

/// Whether a list has an IP address.
pub fn has_ip(published: &[MachineAddress]) -> bool {
    published
        .iter()
        .filter_map(reported_address)
        .any(|address| !is_name_kind(address.kind))
}

fn names(reported: &[Address], before: &[Address]) -> Vec<Address> {
    let of = |addresses: &[Address]| -> Vec<Address> {
        let names = addresses.iter().filter(|address| is_name(address));
        names.cloned().collect()
    };
    let mut names = of(reported);
    if names.is_empty() {
        names = of(before);
    }
    names.sort_unstable_by(|one, other| (one.kind, &one.address).cmp(&(other.kind, &other.address)));
    names
}

fn usable_ip(address: &Address) -> Option<Ip> {
    let ip = ip(&address.address).filter(|_| !is_name_kind(address.kind))?;
    let is_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_usable = !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_local);
    is_usable.then_some((ip, address.kind))
}

/// Reads an IP address. An IPv4 address that is written as IPv6 is IPv4.
fn ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Cluster API would refuse all addresses because of one invalid address.
fn is_name(address: &Address) -> bool {
    is_name_kind(address.kind) && (1..=MAX_BYTES).contains(&address.address.len())
}

const fn is_name_kind(kind: AddressType) -> bool {
    match kind {
        AddressType::Hostname | AddressType::ExternalDNS | AddressType::InternalDNS => true,
        AddressType::ExternalIP | AddressType::InternalIP => false,
    }
}

/// Reads a published address. The schema of the status allows no other types.
fn reported_address(published: &MachineAddress) -> Option<Address> {
    let type_: StrDeserializer<'_, de::value::Error> = published.type_.as_str().into_deserializer();
    Some(Address {
        kind: AddressType::deserialize(type_).ok()?,
        address: published.address.clone(),
    })
}

const fn type_name(kind: AddressType) -> &'static str {
    match kind {
        AddressType::Hostname => "Hostname",
        AddressType::ExternalIP => "ExternalIP",
        AddressType::InternalIP => "InternalIP",
        AddressType::ExternalDNS => "ExternalDNS",
        AddressType::InternalDNS => "InternalDNS",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(host: &str, services: &[&str]) -> AddressRules {
        let cluster = json!({"metadata": {}, "spec": {
            "controlPlaneEndpoint": {"host": host, "port": 6443},
            "clusterNetwork": {"services": {"cidrBlocks": services}},
        }});
        AddressRules::of(&serde_json::from_value(cluster).unwrap())
    }

    fn reported(addresses: &[(AddressType, &str)]) -> Vec<Address> {
        let address = |(kind, address): &(AddressType, &str)| Address {
            kind: *kind,
            address: (*address).to_owned(),
        };
        addresses.iter().map(address).collect()
    }

    fn internal(ips: &[&str]) -> Vec<Address> {
        let ips: Vec<_> = ips.iter().map(|ip| (AddressType::InternalIP, *ip)).collect();
        reported(&ips)
    }

    /// The addresses of a machine that has none yet.
    fn first(rules: &AddressRules, reported: &[Address]) -> Vec<Address> {
        rules.after_answer(&[], reported, None)
    }

    fn texts(addresses: &[Address]) -> Vec<&str> {
        addresses.iter().map(|address| address.address.as_str()).collect()
    }

    #[test]
    fn only_addresses_that_others_can_use_are_selected() {
        let useless = [
            "127.0.0.1",
            "::1",
            "169.254.3.4",
            "fe80::1",
            "fe80::1%eth0",
            "224.0.0.1",
            "ff02::1",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "no-address",
            "",
        ];
        let all = [&useless[..], &["10.0.0.1"]].concat();
        assert_eq!(
            texts(&first(&AddressRules::default(), &internal(&all))),
            ["10.0.0.1"]
        );
    }

    #[test]
    fn addresses_are_in_the_order_of_the_service_family_and_of_numbers() {
        let all = internal(&[
            "10.0.0.10",
            "fd00::2",
            "10.0.0.9",
            "fd00::1",
            "10.0.0.9",
            "::ffff:10.0.0.9",
        ]);
        let v4_first = ["10.0.0.9", "10.0.0.10", "fd00::1", "fd00::2"];
        let v6_first = ["fd00::1", "fd00::2", "10.0.0.9", "10.0.0.10"];
        for (services, expected) in [
            (&[][..], v4_first),
            (&["10.96.0.0/12", "fd01::/112"], v4_first),
            (&["fd01::/112", "10.96.0.0/12"], v6_first),
        ] {
            assert_eq!(
                texts(&first(&rules("", services), &all)),
                expected,
                "{services:?}"
            );
            let reversed: Vec<_> = all.iter().rev().cloned().collect();
            assert_eq!(texts(&first(&rules("", services), &reversed)), expected);
        }
    }

    #[test]
    fn types_are_those_of_the_driver_and_names_follow_ip_addresses() {
        let all = reported(&[
            (AddressType::InternalDNS, "a.internal"),
            (AddressType::Hostname, "a"),
            (AddressType::ExternalIP, "10.0.0.1"),
            (AddressType::InternalIP, "10.0.0.1"),
            (AddressType::ExternalDNS, ""),
        ]);
        let shown: Vec<_> = published(&first(&AddressRules::default(), &all))
            .iter()
            .map(|address| format!("{} {}", address.type_, address.address))
            .collect();
        let expected = [
            "ExternalIP 10.0.0.1",
            "InternalIP 10.0.0.1",
            "Hostname a",
            "InternalDNS a.internal",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_endpoint_is_left_out_unless_it_is_the_only_address_of_its_family() {
        let rules = rules("10.0.0.100", &[]);
        let select = |ips: &[&str]| {
            let selected = first(&rules, &internal(ips));
            texts(&selected).join(" ")
        };
        assert_eq!(select(&["10.0.0.100", "10.0.0.1"]), "10.0.0.1");
        assert_eq!(select(&["10.0.0.100", "fd00::1"]), "10.0.0.100 fd00::1");
        assert_eq!(select(&["10.0.0.100"]), "10.0.0.100");
        assert_eq!(select(&["10.0.0.1"]), "10.0.0.1");
    }

    #[test]
    fn an_answer_without_ip_addresses_keeps_those_of_a_vm_that_may_run() {
        use PowerState::{Failed, Running, Starting, Stopped, Stopping};
        let rules = AddressRules::default();
        let name = reported(&[(AddressType::Hostname, "a")]);
        let both = published(&[internal(&["10.0.0.1", "fd00::1"]), name.clone()].concat());
        let next = |answer: &[Address], power| published(&rules.after_answer(&both, answer, power));
        for power in [None, Some(Starting), Some(Running), Some(Stopping)] {
            assert_eq!(next(&[], power), both, "{power:?}");
            assert_eq!(next(&name, power), both, "{power:?}");
            assert_eq!(next(&internal(&["fe80::1"]), power), both, "{power:?}");
            let other = [internal(&["10.0.0.2"]), name.clone()].concat();
            assert_eq!(
                next(&internal(&["10.0.0.2"]), power),
                published(&other),
                "{power:?}"
            );
        }
        for power in [Stopped, Failed] {
            assert_eq!(next(&name, Some(power)), published(&name));
        }
        assert!(has_ip(&both) && !has_ip(&published(&name)));
    }

    /// The virtual address is known from the network, while a silent guest agent names no other address.
    #[test]
    fn the_endpoint_alone_does_not_replace_addresses_of_the_machine() {
        let rules = rules("10.0.0.100", &[]);
        let next = |before: &[&str], answer: &[&str], power| {
            let next = rules.after_answer(&published(&internal(before)), &internal(answer), power);
            texts(&next).join(" ")
        };
        let own = &["10.0.0.1", "fd00::1"][..];
        assert_eq!(next(own, &["10.0.0.100"], None), "10.0.0.1 fd00::1");
        assert_eq!(next(own, &["10.0.0.100", "fd00::2"], None), "10.0.0.1 fd00::2");
        assert_eq!(
            next(own, &["10.0.0.100"], Some(PowerState::Stopped)),
            "10.0.0.100"
        );
        assert_eq!(next(&["10.0.0.100"], &[], None), "10.0.0.100");
        // Published before the endpoint of the Cluster was known.
        assert_eq!(next(&["10.0.0.1", "10.0.0.100"], &[], None), "10.0.0.1");
        assert_eq!(next(&["10.0.0.100"], &["10.0.0.1"], None), "10.0.0.1");
        // The endpoint moved to another machine.
        assert_eq!(next(&["10.0.0.100", "fd00::1"], &["fd00::1"], None), "fd00::1");
    }

    #[test]
    fn a_family_that_appears_later_is_added() {
        let before = published(&internal(&["10.0.0.1"]));
        let both = internal(&["10.0.0.1", "fd00::1"]);
        assert_eq!(AddressRules::default().after_answer(&before, &both, None), both);
    }

    #[test]
    fn no_more_addresses_are_selected_than_cluster_api_takes() {
        let all: Vec<_> = (0..300)
            .map(|n| format!("10.0.{}.{}", n / 100, n % 100 + 1))
            .collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        assert_eq!(
            first(&AddressRules::default(), &internal(&all)).len(),
            MAX_ADDRESSES
        );
    }
}
