//! How guests get addresses in the networks of their host.

use cmi_driver::{Code, Result, Status};
use serde::Deserialize;
use serde::de::IgnoredAny;
use virt::connect::Connect;
use virt::network::Network;

use crate::errors::status;
use crate::seed::Addressing;

/// Checks that a network of libvirt is active, and reads how its guests get addresses.
///
/// # Errors
/// FAILED_PRECONDITION when the network does not exist or is not active; otherwise the error of the host.
pub fn addressing(connect: &Connect, name: &str) -> Result<Addressing> {
    let failed = |error| status(&format!("looking for network `{name}`"), error);
    let network = Network::lookup_by_name(connect, name).map_err(failed)?;
    if !network.is_active().map_err(failed)? {
        let what = format!("network `{name}` is not active: start it, and enable its autostart");
        return Err(Status::new(Code::FailedPrecondition, what));
    }
    parse(&network.get_xml_desc(0).map_err(failed)?)
}

#[derive(Deserialize)]
struct Definition {
    #[serde(default)]
    ip: Vec<Subnet>,
}

#[derive(Deserialize)]
struct Subnet {
    #[serde(rename = "@family")]
    family: Option<String>,
    dhcp: Option<IgnoredAny>,
}

impl Subnet {
    fn is_ipv6(&self) -> bool {
        self.family.as_deref() == Some("ipv6")
    }
}

/// A network without subnets of its own connects its guests to some other network, where anything may assign
/// addresses. A DHCP server for IPv4 may also be outside of libvirt.
fn parse(xml: &str) -> Result<Addressing> {
    let read: Definition = quick_xml::de::from_str(xml).map_err(|error| {
        Status::new(Code::Internal, "cannot parse libvirt's definition of a network").with_source(error)
    })?;
    if read.ip.is_empty() {
        return Ok(Addressing::ANY);
    }
    let mut ipv6 = read.ip.iter().filter(|subnet| subnet.is_ipv6()).peekable();
    Ok(Addressing {
        dhcp4: read.ip.iter().any(|subnet| !subnet.is_ipv6()),
        accept_ra: ipv6.peek().is_some(),
        dhcp6: ipv6.any(|subnet| subnet.dhcp.is_some()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_shows_how_its_guests_get_addresses() {
        let ipv4 = "<ip address='192.168.122.1' netmask='255.255.255.0'><dhcp><range start='192.168.122.2' \
                    end='192.168.122.254'/></dhcp></ip>";
        let static_ipv4 = "<ip address='192.168.122.1' prefix='24'/>";
        let ipv6 = "<ip family='ipv6' address='fd00::1' prefix='64'>\n  <dhcp><range start='fd00::2' \
                    end='fd00::ff'/></dhcp></ip>";
        let slaac = "<ip family='ipv6' address='fd00::1' prefix='64'/>";
        for (subnets, dhcp4, accept_ra, dhcp6) in [
            (String::new(), true, true, true),
            (ipv4.to_owned(), true, false, false),
            (static_ipv4.to_owned(), true, false, false),
            (ipv6.to_owned(), false, true, true),
            (slaac.to_owned(), false, true, false),
            (format!("{ipv4}\n{ipv6}"), true, true, true),
            (format!("{ipv4}{slaac}"), true, true, false),
        ] {
            let xml = format!(
                "<network><name>a</name><forward mode='nat'/><bridge name='virbr0'/>{subnets}</network>"
            );
            let expected = Addressing {
                dhcp4,
                accept_ra,
                dhcp6,
            };
            assert_eq!(parse(&xml).unwrap(), expected, "{subnets}");
        }
        assert_eq!(parse("<network").unwrap_err().code(), Code::Internal);
    }
}
