//! The addresses of a guest, and a bound on the time that its agent takes. This module makes the call itself:
//! a guest agent may report an interface without a hardware address, which the crate's binding reads as if it
//! were there, so that a guest could crash the driver with it.

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
    /// The leases of the host's DHCP server. An old lease may be left for a hardware address, so every
    /// machine has a hardware address of its own.
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

/// How long the agent in a guest may take to answer, in seconds. libvirt itself waits for ever, so that a
/// guest could keep the driver from its host.
const AGENT_TIMEOUT: i32 = 2;

/// Bounds the time that the agent in the guest may take for each answer.
pub fn bound_agent(domain: &Domain) {
    // SAFETY: the domain is valid as long as it is borrowed.
    let bounded = unsafe { virt_sys::virDomainAgentSetResponseTimeout(domain.as_ptr(), AGENT_TIMEOUT, 0) };
    if bounded < 0 {
        let error = Error::last_error();
        tracing::debug!(%error, "the answers of a guest's agent are not bounded in time");
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
        // SAFETY: libvirt made an array of `count` interfaces, each with `naddrs` addresses, and passed on
        // its ownership. Each interface is freed once, after the parts of it that are kept were copied.
        unsafe {
            let interface = *interfaces.add(index);
            if text((*interface).hwaddr).is_some_and(|address| address.eq_ignore_ascii_case(mac)) {
                let addresses = (0..(*interface).naddrs as usize).map(|at| (*interface).addrs.add(at));
                found.extend(addresses.filter_map(|address| text((*address).addr)));
            }
            virt_sys::virDomainInterfaceFree(interface);
        }
    }
    // SAFETY: the C library's allocator made the array itself, and nothing in it is used any more.
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

    /// The test driver of libvirt has a guest, with an interface whose address it makes up.
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
