//! The addresses that a machine's status publishes. Pure.

use std::net::IpAddr;

use super::cluster_api::Cluster;
use super::v1alpha1::MachineAddress;
use cmi_driver::{Address, AddressType, PowerState};

/// Cluster API's limit for the number of addresses.
const MAX_ADDRESSES: usize = 256;
/// Cluster API's limit for the length of an address.
const MAX_BYTES: usize = 256;

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

    /// Returns the addresses that others can use, each once, in a stable order: IP addresses before names.
    /// The IP addresses of the preferred family come first.
    pub fn select(&self, reported: &[Address]) -> Vec<Address> {
        let mut ips: Vec<_> = reported.iter().filter_map(usable_ip).collect();
        self.leave_out_endpoint(&mut ips);
        ips.sort_unstable_by_key(|(ip, kind)| (ip.is_ipv6() != self.prefers_ipv6, *ip, *kind));
        let mut names: Vec<_> = reported.iter().filter(|address| is_name(address)).collect();
        names.sort_unstable_by_key(|name| (name.kind, &name.address));
        let ips = ips.into_iter().map(|(ip, kind)| Address {
            kind,
            address: ip.to_string(),
        });
        let mut selected: Vec<_> = ips.chain(names.into_iter().cloned()).collect();
        selected.dedup();
        selected.truncate(MAX_ADDRESSES);
        selected
    }

    /// A machine whose only address is the endpoint has no load balancer or virtual address before it.
    fn leave_out_endpoint(&self, ips: &mut Vec<(IpAddr, AddressType)>) {
        let Some(endpoint) = self.endpoint else { return };
        let is_own = |(ip, _): &(IpAddr, AddressType)| *ip != endpoint && ip.is_ipv6() == endpoint.is_ipv6();
        if ips.iter().any(is_own) {
            ips.retain(|(ip, _)| *ip != endpoint);
        }
    }
}

/// Returns the addresses to publish after an answer of the driver. An answer without IP addresses keeps the
/// published ones unless the VM is off, because a guest agent may be silent. The same holds for names.
pub fn merged(
    published: &[MachineAddress],
    selected: &[Address],
    power: Option<PowerState>,
) -> Vec<MachineAddress> {
    let is_off = matches!(power, Some(PowerState::Stopped | PowerState::Failed));
    let group = |wants_name: bool| {
        let is_of_group = |address: &&MachineAddress| is_name_type(&address.type_) == wants_name;
        let now: Vec<_> = selected.iter().map(published_address).collect();
        let now: Vec<_> = now.iter().filter(is_of_group).cloned().collect();
        if now.is_empty() && !is_off {
            published.iter().filter(is_of_group).cloned().collect()
        } else {
            now
        }
    };
    [group(false), group(true)].concat()
}

/// Whether a list has an IP address.
pub fn has_ip(published: &[MachineAddress]) -> bool {
    published.iter().any(|address| !is_name_type(&address.type_))
}

/// Whether an answer of the driver has an IP address.
pub fn include_ip(reported: &[Address]) -> bool {
    reported.iter().any(|address| !is_name_kind(address.kind))
}

fn usable_ip(address: &Address) -> Option<(IpAddr, AddressType)> {
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

/// As [`is_name_kind`], for a published type.
fn is_name_type(type_: &str) -> bool {
    ![AddressType::ExternalIP, AddressType::InternalIP]
        .iter()
        .any(|kind| type_name(*kind) == type_)
}

fn published_address(address: &Address) -> MachineAddress {
    MachineAddress {
        type_: type_name(address.kind).to_owned(),
        address: address.address.clone(),
    }
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
            texts(&AddressRules::default().select(&internal(&all))),
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
            assert_eq!(texts(&rules("", services).select(&all)), expected, "{services:?}");
            let reversed: Vec<_> = all.iter().rev().cloned().collect();
            assert_eq!(texts(&rules("", services).select(&reversed)), expected);
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
        let selected = AddressRules::default().select(&all);
        let published = merged(&[], &selected, None);
        let shown: Vec<_> = published
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
            let selected = rules.select(&internal(ips));
            texts(&selected).join(" ")
        };
        assert_eq!(select(&["10.0.0.100", "10.0.0.1"]), "10.0.0.1");
        assert_eq!(select(&["10.0.0.100", "fd00::1"]), "10.0.0.100 fd00::1");
        assert_eq!(select(&["10.0.0.100"]), "10.0.0.100");
        assert_eq!(select(&["10.0.0.1"]), "10.0.0.1");
    }

    #[test]
    fn an_answer_without_ip_addresses_keeps_those_of_a_vm_that_may_run() {
        let ips = merged(&[], &internal(&["10.0.0.1"]), None);
        let name = reported(&[(AddressType::Hostname, "a")]);
        let both = merged(&ips, &name, Some(PowerState::Running));
        assert_eq!(both.len(), 2);
        for power in [None, Some(PowerState::Starting), Some(PowerState::Stopping)] {
            assert_eq!(merged(&both, &[], power), both, "{power:?}");
        }
        assert_eq!(
            merged(&both, &name, Some(PowerState::Stopped)),
            merged(&[], &name, None)
        );
        let new = merged(&both, &internal(&["10.0.0.2"]), Some(PowerState::Running));
        assert_eq!((new.len(), new[0].address.as_str()), (2, "10.0.0.2"));
        assert!(has_ip(&new) && !has_ip(&merged(&[], &name, None)));
    }

    #[test]
    fn a_family_that_appears_later_is_added() {
        let first = merged(&[], &internal(&["10.0.0.1"]), None);
        let second = merged(&first, &internal(&["10.0.0.1", "fd00::1"]), None);
        let ips: Vec<_> = second.iter().map(|address| address.address.as_str()).collect();
        assert_eq!(ips, ["10.0.0.1", "fd00::1"]);
    }

    #[test]
    fn no_more_addresses_are_selected_than_cluster_api_takes() {
        let all: Vec<_> = (0..300)
            .map(|n| format!("10.0.{}.{}", n / 100, n % 100 + 1))
            .collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        assert_eq!(
            AddressRules::default().select(&internal(&all)).len(),
            MAX_ADDRESSES
        );
    }
}
