//! Calls of libvirt's C library that the binding lacks, or makes wrongly.
//!
//! The binding assumes that each interface has a hardware address. A guest agent may report one without, and
//! could crash the driver that way.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::Error;
use virt::network::Network;

use crate::addresses::{Lease, Sightings};

/// A source of addresses that libvirt queries for one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The agent in the guest, where one runs.
    Agent,
    /// The host's ARP table: IPv4 neighbours that the host has seen. See also `neighbours`.
    Arp,
}

impl Source {
    const fn raw(self) -> virt_sys::virDomainInterfaceAddressesSource {
        match self {
            Self::Agent => virt_sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT,
            Self::Arp => virt_sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP,
        }
    }
}

/// The state of a domain, and libvirt's reason for it.
pub type State = (virt_sys::virDomainState, c_int);

/// How long the agent in a guest may take to answer, in seconds. Without this limit libvirt waits forever,
/// and a guest could block the driver's connections to its host.
const AGENT_TIMEOUT: i32 = 2;

/// Limits how long the agent in the guest may take for each answer.
pub fn bound_agent(domain: &Domain) {
    // SAFETY: the domain is valid as long as it is borrowed.
    let bounded = unsafe { virt_sys::virDomainAgentSetResponseTimeout(domain.as_ptr(), AGENT_TIMEOUT, 0) };
    if bounded < 0 {
        let error = Error::last_error();
        tracing::debug!(%error, "cannot limit how long the guest agent may take");
    }
}

/// Returns the addresses of a domain's interfaces.
///
/// # Errors
/// Those of libvirt; an error is common for a guest without an agent.
pub fn sightings(domain: &Domain, source: Source) -> Result<Sightings, Error> {
    let mut interfaces: *mut virt_sys::virDomainInterfacePtr = ptr::null_mut();
    // SAFETY: the domain is valid as long as it is borrowed, and `interfaces` is written to only here.
    let count = unsafe {
        virt_sys::virDomainInterfaceAddresses(domain.as_ptr(), &raw mut interfaces, source.raw(), 0)
    };
    let count = usize::try_from(count).map_err(|_| Error::last_error())?;
    let mut found = Sightings::default();
    for index in 0..count {
        // SAFETY: libvirt allocated `count` interfaces with `naddrs` addresses each, and passed on their
        // ownership. Each interface is freed once, after its texts were copied.
        unsafe {
            let interface = *interfaces.add(index);
            if let Some(mac) = text((*interface).hwaddr) {
                for at in 0..(*interface).naddrs as usize {
                    if let Some(address) = text((*(*interface).addrs.add(at)).addr) {
                        found.add(&mac, &address);
                    }
                }
            }
            virt_sys::virDomainInterfaceFree(interface);
        }
    }
    // SAFETY: libvirt allocated the array with the C library's allocator, and this is its last use.
    unsafe { libc::free(interfaces.cast()) };
    Ok(found)
}

/// Returns the DHCP leases of a network that name a hardware address.
///
/// # Errors
/// Those of libvirt.
pub fn leases(network: &Network) -> Result<Vec<Lease>, Error> {
    let mut leases: *mut virt_sys::virNetworkDHCPLeasePtr = ptr::null_mut();
    // SAFETY: the network is valid as long as it is borrowed, and `leases` is written to only here.
    let count =
        unsafe { virt_sys::virNetworkGetDHCPLeases(network.as_ptr(), ptr::null(), &raw mut leases, 0) };
    let count = usize::try_from(count).map_err(|_| Error::last_error())?;
    let mut found = Vec::new();
    for index in 0..count {
        // SAFETY: libvirt allocated `count` leases, and passed on their ownership. Each lease is freed once,
        // after its texts were copied.
        unsafe {
            let lease = *leases.add(index);
            if let (Some(mac), Some(address)) = (text((*lease).mac), text((*lease).ipaddr)) {
                found.push(Lease {
                    mac,
                    address,
                    expires: (*lease).expirytime,
                });
            }
            virt_sys::virNetworkDHCPLeaseFree(lease);
        }
    }
    // SAFETY: libvirt allocated the array with the C library's allocator, and this is its last use.
    unsafe { libc::free(leases.cast()) };
    Ok(found)
}

/// Returns all domains of a host with their states, in one call.
///
/// # Errors
/// Those of libvirt.
pub fn domains(connect: &Connect) -> Result<Vec<(Domain, State)>, Error> {
    let mut records: *mut virt_sys::virDomainStatsRecordPtr = ptr::null_mut();
    // SAFETY: the connection is valid as long as it is borrowed, and `records` is written to only here.
    let count = unsafe {
        virt_sys::virConnectGetAllDomainStats(
            connect.as_ptr(),
            virt_sys::VIR_DOMAIN_STATS_STATE,
            &raw mut records,
            0,
        )
    };
    let count = usize::try_from(count).map_err(|_| Error::last_error())?;
    let mut found = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: libvirt allocated `count` records. The list keeps its reference to each domain until it is
        // freed, so the domain needs a reference of its own.
        unsafe {
            let record = *records.add(index);
            let number = |name: &CStr| {
                let mut value = 0;
                let (parameters, count) = ((*record).params, (*record).nparams);
                virt_sys::virTypedParamsGetInt(parameters, count, name.as_ptr(), &raw mut value);
                value
            };
            let state = (number(c"state.state").cast_unsigned(), number(c"state.reason"));
            virt_sys::virDomainRef((*record).dom);
            found.push((Domain::from_ptr((*record).dom), state));
        }
    }
    // SAFETY: libvirt allocated the list, and this is its last use.
    unsafe { virt_sys::virDomainStatsRecordListFree(records) };
    Ok(found)
}

/// Copies a C string; `None` for a null pointer.
///
/// # Safety
/// The pointer is null, or points to a string that ends with a zero byte.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::merged;

    const MAC: &str = "52:00:00:00:00:01";

    /// libvirt's test driver has a guest with an interface, and invents its address.
    #[test]
    fn addresses_belong_to_the_interface_with_the_mac() {
        virt::error::clear_error_callback();
        let mut connection = Connect::open(Some("test:///default")).unwrap();
        let xml = format!(
            "<domain type='test'><name>a</name><memory>1024</memory><os><type>hvm</type></os><devices>\
             <interface type='network'><mac address='{MAC}'/><source network='default'/>\
             </interface></devices></domain>"
        );
        let domain = Domain::create_xml(&connection, &xml, 0).unwrap();
        for source in [Source::Agent, Source::Arp] {
            let found = sightings(&domain, source).unwrap();
            let of = |mac: &str| merged(&[mac.to_owned()], &[&found]);
            assert_eq!(of(MAC).len(), 1, "{found:?}");
            assert!(of(MAC)[0].to_string().starts_with("192.168."), "{found:?}");
            assert!(of("52:00:00:00:00:02").is_empty());
        }
        domain.destroy().unwrap();
        drop(domain);
        connection.close().unwrap();
    }

    /// libvirt's test driver has a running domain `test`.
    #[test]
    fn one_call_lists_the_domains_with_their_states() {
        virt::error::clear_error_callback();
        let mut connection = Connect::open(Some("test:///default")).unwrap();
        let test = Domain::lookup_by_name(&connection, "test").unwrap();
        let states = || -> Vec<_> {
            let all = domains(&connection).unwrap().into_iter();
            all.map(|(domain, (state, _))| (domain.get_name().unwrap(), state))
                .collect()
        };
        assert_eq!(states(), [("test".to_owned(), virt_sys::VIR_DOMAIN_RUNNING)]);
        test.destroy().unwrap();
        assert_eq!(states(), [("test".to_owned(), virt_sys::VIR_DOMAIN_SHUTOFF)]);
        drop(test);
        connection.close().unwrap();
    }
}
