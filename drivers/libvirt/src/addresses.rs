//! The addresses of a guest, and a time limit for its agent.
//!
//! This module calls libvirt's C library itself. The binding assumes that each interface has a hardware
//! address. A guest agent may report one without, and could crash the driver that way.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::ptr;

use virt::domain::Domain;
use virt::error::Error;

/// The sources of addresses, the most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The agent in the guest, where one runs.
    Agent,
    /// The leases of the host's DHCP server. Old leases remain, so every machine has a unique hardware
    /// address.
    Lease,
    /// The host's ARP table: the neighbours that the host has seen.
    Arp,
}

impl Source {
    /// All sources, most reliable first.
    pub const ALL: [Self; 3] = [Self::Agent, Self::Lease, Self::Arp];

    const fn raw(self) -> virt_sys::virDomainInterfaceAddressesSource {
        match self {
            Self::Agent => virt_sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT,
            Self::Lease => virt_sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE,
            Self::Arp => virt_sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP,
        }
    }
}

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

/// Returns the addresses of the interface with this hardware address.
///
/// # Errors
/// Those of libvirt; an error is common for a guest without an agent.
pub fn of(domain: &Domain, source: Source, mac: &str) -> Result<Vec<String>, Error> {
    let mut interfaces: *mut virt_sys::virDomainInterfacePtr = ptr::null_mut();
    // SAFETY: the domain is valid as long as it is borrowed, and `interfaces` is written to only here.
    let count = unsafe {
        virt_sys::virDomainInterfaceAddresses(domain.as_ptr(), &raw mut interfaces, source.raw(), 0)
    };
    let Ok(count) = usize::try_from(count) else {
        return Err(Error::last_error());
    };
    let mut found = Vec::new();
    for index in 0..count {
        // SAFETY: libvirt allocated `count` interfaces with `naddrs` addresses each, and passed on their
        // ownership. Each interface is freed once, after its texts were copied.
        unsafe {
            let interface = *interfaces.add(index);
            if text((*interface).hwaddr).is_some_and(|address| address.eq_ignore_ascii_case(mac)) {
                let addresses = (0..(*interface).naddrs as usize).map(|at| (*interface).addrs.add(at));
                found.extend(addresses.filter_map(|address| text((*address).addr)));
            }
            virt_sys::virDomainInterfaceFree(interface);
        }
    }
    // SAFETY: libvirt allocated the array with the C library's allocator, and this is its last use.
    unsafe { libc::free(interfaces.cast()) };
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

    /// libvirt's test driver has a guest with an interface, and invents its address.
    #[test]
    fn addresses_are_those_of_the_interface_that_is_meant() {
        virt::error::clear_error_callback();
        let mut connection = virt::connect::Connect::open(Some("test:///default")).unwrap();
        let xml = "<domain type='test'><name>a</name><memory>1024</memory><os><type>hvm</type></os><devices>\
                   <interface type='network'><mac address='52:00:00:00:00:01'/><source network='default'/>\
                   </interface></devices></domain>";
        let domain = Domain::create_xml(&connection, xml, 0).unwrap();
        let found = of(&domain, Source::Lease, "52:00:00:00:00:01").unwrap();
        assert!(
            found.iter().all(|address| address.starts_with("192.168.")) && !found.is_empty(),
            "{found:?}"
        );
        assert_eq!(
            of(&domain, Source::Lease, "52:00:00:00:00:02").unwrap(),
            Vec::<String>::new()
        );
        domain.destroy().unwrap();
        drop(domain);
        connection.close().unwrap();
    }
}
