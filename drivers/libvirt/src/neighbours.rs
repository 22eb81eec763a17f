//! The neighbours of the driver's own computer, from the kernel.
//!
//! libvirt reports IPv4 neighbours only, and some of its releases fail to read them ("wrong nlmsg len"). An
//! address from router advertisements has no lease. If no agent reports it, only the neighbour table shows
//! it. The kernel keeps an entry long after a guest gave up the address. An entry therefore counts only for
//! [`OUTDATED`] after the interface confirmed another one of the family.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::addresses::Sightings;

/// How much earlier than the last confirmation of an interface an entry may have been confirmed. A second has
/// 100 ticks. Addresses that a guest uses in turn stay in the list.
const OUTDATED: u32 = 10 * 60 * 100;

/// An entry of the neighbour table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Neighbour {
    mac: String,
    address: IpAddr,
    /// How long ago the neighbour confirmed the address, in ticks of the kernel.
    confirmed_ago: u32,
}

/// Returns the addresses of the computer's neighbours.
///
/// # Errors
/// Those of a netlink socket.
pub fn sightings() -> io::Result<Sightings> {
    Ok(current(&table()?))
}

/// The entries that are not outdated.
fn current(neighbours: &[Neighbour]) -> Sightings {
    let place = |neighbour: &Neighbour| (neighbour.mac.clone(), neighbour.address.is_ipv6());
    let mut newest: HashMap<(String, bool), u32> = HashMap::new();
    for neighbour in neighbours {
        let age = newest.entry(place(neighbour)).or_insert(u32::MAX);
        *age = neighbour.confirmed_ago.min(*age);
    }
    let mut sightings = Sightings::default();
    for neighbour in neighbours {
        if neighbour.confirmed_ago - newest[&place(neighbour)] < OUTDATED {
            sightings.add(&neighbour.mac, &neighbour.address.to_string());
        }
    }
    sightings
}

/// Reads the kernel's table of neighbours (rtnetlink(7), `RTM_GETNEIGH`).
fn table() -> io::Result<Vec<Neighbour>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(), 0)?;
    let mut found = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            match message.payload {
                NetlinkPayload::Done(done) if done.code == 0 => return Ok(found),
                NetlinkPayload::Done(done) => return Err(io::Error::from_raw_os_error(-done.code)),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => {
                    found.extend(neighbour(&entry));
                }
                _ => {}
            }
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

fn request() -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let payload = NetlinkPayload::from(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()));
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// The neighbour of an entry; `None` for an entry without an answer.
fn neighbour(entry: &NeighbourMessage) -> Option<Neighbour> {
    if matches!(
        entry.header.state,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
    ) {
        return None;
    }
    let (mut mac, mut address, mut confirmed_ago) = (None, None, u32::MAX);
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Some(shown(bytes)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet(seen)) => {
                address = Some(IpAddr::V4(*seen));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(seen)) => {
                address = Some(IpAddr::V6(*seen));
            }
            NeighbourAttribute::CacheInfo(times) => confirmed_ago = times.confirmed,
            _ => {}
        }
    }
    Some(Neighbour {
        mac: mac?,
        address: address?,
        confirmed_ago,
    })
}

/// A hardware address, as libvirt writes it.
fn shown(bytes: &[u8]) -> String {
    let bytes: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::merged;

    const A: &str = "52:00:00:00:00:0a";
    const B: &str = "52:00:00:00:00:0b";

    fn seen(mac: &str, address: &str, confirmed_ago: u32) -> Neighbour {
        Neighbour {
            mac: mac.to_owned(),
            address: address.parse().unwrap(),
            confirmed_ago,
        }
    }

    fn shown_of(mac: &str, neighbours: &[Neighbour]) -> Vec<String> {
        let all = merged(&[mac.to_owned()], &[&current(neighbours)]).into_iter();
        all.map(|address| address.to_string()).collect()
    }

    /// The second one may be the control plane's endpoint, which the provider leaves out only beside another
    /// address.
    #[test]
    fn addresses_that_an_interface_uses_in_turn_all_count() {
        for ages in [[0, 3000], [3000, 0]] {
            let all = [
                seen(A, "fd00:1::5", ages[0]),
                seen(A, "fd00:1::100", ages[1]),
                seen(A, "fe80::5", 1),
                seen(B, "fd00:1::7", 900_000),
            ];
            assert_eq!(shown_of(A, &all), ["fd00:1::5", "fd00:1::100"]);
            assert_eq!(shown_of(B, &all), ["fd00:1::7"]);
        }
    }

    #[test]
    fn an_address_counts_no_more_ten_minutes_after_another_was_confirmed() {
        for [old, new] in [["10.0.0.5", "10.0.0.6"], ["fd00:1::5", "fd00:2::5"]] {
            let all = |age| [seen(A, old, age), seen(A, new, 100)];
            assert_eq!(shown_of(A, &all(60_000)), [old, new]);
            assert_eq!(shown_of(A, &all(60_100)), [new]);
        }
        let all = [seen(A, "10.0.0.5", 900_000), seen(A, "fd00:1::5", 100)];
        assert_eq!(shown_of(A, &all).len(), 2, "each family by itself");
    }

    fn entry(state: NeighbourState) -> NeighbourMessage {
        let mut entry = NeighbourMessage::default();
        entry.header.state = state;
        let address = "fd00:1::5".parse().unwrap();
        entry.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)),
            NeighbourAttribute::LinkLayerAddress(vec![0x52, 0, 0, 0, 0, 0x0a]),
        ];
        entry
    }

    #[test]
    fn an_entry_without_an_answer_is_no_neighbour() {
        let expected = seen(A, "fd00:1::5", u32::MAX);
        assert_eq!(neighbour(&entry(NeighbourState::Stale)), Some(expected));
        assert_eq!(neighbour(&entry(NeighbourState::Incomplete)), None);
        assert_eq!(neighbour(&entry(NeighbourState::Failed)), None);
    }
}
