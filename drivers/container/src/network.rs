//! The bridge, its DHCP server, and the interfaces of machines, in the network namespace of the driver.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cmi_driver::{Code, Result, Status};
use serde::Deserialize;

use crate::config::{Bridge, DhcpRange};
use crate::identity::{MachineKey, Names as _};
use crate::programs::{self, Programs};
use crate::state::StateFolder;

/// The name of the interface in a machine.
const INTERFACE: &str = "eth0";
/// How long the DHCP server may take to forget a lease.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two looks for the lease.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The network of the machines.
#[derive(Debug)]
pub struct Network<'a> {
    /// The bridge.
    pub bridge: &'a Bridge,
    /// The folder with the files of the DHCP server.
    pub state: &'a StateFolder,
    /// How programs are run.
    pub programs: &'a Programs,
}

/// An interface, as `ip -json address` shows it.
#[derive(Debug, Deserialize)]
struct Interface {
    #[serde(default)]
    addr_info: Vec<InterfaceAddress>,
}

#[derive(Debug, Deserialize)]
struct InterfaceAddress {
    local: Option<IpAddr>,
    scope: String,
}

/// A lease of dnsmasq.
#[derive(Debug, PartialEq, Eq)]
struct Lease<'a> {
    address: &'a str,
    client: &'a str,
}

impl Network<'_> {
    fn ip(&self, arguments: &[&str]) -> Result<()> {
        self.programs.run("ip", arguments).map(drop)
    }

    fn exists(&self, interface: &str) -> Result<bool> {
        match self.ip(&["link", "show", "dev", interface]) {
            Ok(()) => Ok(true),
            Err(status) if status.message().contains("does not exist") => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Makes the bridge and starts the DHCP server, as far as the configuration has them and they are
    /// missing.
    ///
    /// # Errors
    /// FAILED_PRECONDITION when a bridge without an address is missing, otherwise the errors of programs.
    pub fn ensure(&self) -> Result<()> {
        let name = self.bridge.name.as_str();
        let exists = self.exists(name)?;
        let Some(subnet) = self.bridge.address else {
            if exists {
                return Ok(());
            }
            let what = format!("bridge `{name}` does not exist: make it, or set `bridge.address`");
            return Err(Status::new(Code::FailedPrecondition, what));
        };
        if !exists {
            self.ip(&["link", "add", "name", name, "type", "bridge"])?;
        }
        self.ip(&["address", "replace", &subnet.to_string(), "dev", name])?;
        self.ip(&["link", "set", "dev", name, "up"])?;
        // `dhcp_release` reaches the DHCP server over it. A new network namespace has it down.
        self.ip(&["link", "set", "dev", "lo", "up"])?;
        match self.bridge.dhcp_range {
            Some(range) => self.ensure_dnsmasq(range),
            None => Ok(()),
        }
    }

    fn ensure_dnsmasq(&self, range: DhcpRange) -> Result<()> {
        let arguments = self.dnsmasq(range);
        if let Some(pid) = self.dnsmasq_pid() {
            if programs::command_line(pid).get(1..) == Some(&arguments[..]) && is_in_this_network(pid) {
                return Ok(());
            }
            self.stop_dnsmasq()?;
        }
        self.programs.run("dnsmasq", &arguments).map(drop)
    }

    /// Returns the arguments of the DHCP server. It also answers DNS queries, since machines have no other
    /// resolver.
    fn dnsmasq(&self, range: DhcpRange) -> Vec<String> {
        let file = |extension: &str| self.state.dnsmasq(extension).display().to_string();
        vec![
            "--conf-file=/dev/null".to_owned(),
            format!("--interface={}", self.bridge.name),
            "--except-interface=lo".to_owned(),
            "--bind-dynamic".to_owned(),
            format!("--dhcp-range={},{},12h", range.first, range.last),
            "--dhcp-authoritative".to_owned(),
            // The ping would delay each boot by three seconds.
            "--no-ping".to_owned(),
            format!("--dhcp-leasefile={}", file("leases")),
            format!("--pid-file={}", file("pid")),
            "--user=root".to_owned(),
        ]
    }

    /// The process of the DHCP server of this state folder.
    fn dnsmasq_pid(&self) -> Option<u32> {
        let file = self.state.dnsmasq("pid");
        let pid = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        let argument = format!("--pid-file={}", file.display());
        programs::command_line(pid).contains(&argument).then_some(pid)
    }

    fn stop_dnsmasq(&self) -> Result<()> {
        let Some(pid) = self.dnsmasq_pid() else {
            return Ok(());
        };
        self.programs.run("kill", &["-TERM", &pid.to_string()])?;
        until("the DHCP server has not ended", || self.dnsmasq_pid().is_none())
    }

    /// Removes the bridge and the DHCP server, if the driver made them.
    pub fn remove(&self) -> Result<()> {
        if self.bridge.address.is_none() {
            return Ok(());
        }
        self.stop_dnsmasq()?;
        if self.exists(&self.bridge.name)? {
            self.ip(&["link", "delete", "dev", &self.bridge.name])?;
        }
        Ok(())
    }

    /// Gives a machine its interface, by the id of its first process.
    pub fn attach(&self, key: &MachineKey, pid: u32) -> Result<()> {
        let (interface, pid) = (key.interface(), pid.to_string());
        let peer = ["peer", "name", INTERFACE, "address", &key.mac(), "netns", &pid];
        self.ip(&[&["link", "add", "name", &interface, "type", "veth"], &peer[..]].concat())?;
        let at_bridge = ["dev", &interface, "master", &self.bridge.name, "up"];
        self.ip(&[&["link", "set"], &at_bridge[..]].concat())
    }

    /// Removes the interface of a machine, if it is there: the kernel removes it some time after the
    /// machine's last process.
    pub fn detach(&self, key: &MachineKey) -> Result<()> {
        match self.ip(&["link", "delete", "dev", &key.interface()]) {
            Err(status) if !status.message().contains("Cannot find device") => Err(status),
            _ => Ok(()),
        }
    }

    /// Returns the addresses of a machine's interface, by the id of its first process. A machine that ends at
    /// this moment has none.
    pub fn addresses(&self, pid: u32) -> Result<Vec<String>> {
        let show = ["ip", "-json", "address", "show", "dev", INTERFACE];
        let enter = ["--target", &pid.to_string(), "--net"];
        match self.programs.run("nsenter", &[&enter, &show[..]].concat()) {
            Ok(answer) => addresses(&answer),
            Err(_) if programs::command_line(pid).is_empty() => Ok(Vec::new()),
            Err(status) => Err(status),
        }
    }

    /// Has the DHCP server forget the lease of a machine.
    pub fn release(&self, key: &MachineKey) -> Result<()> {
        let leases = || fs::read_to_string(self.state.dnsmasq("leases")).unwrap_or_default();
        let mac = key.mac();
        for lease in leases_of(&leases(), &mac) {
            let arguments = [&self.bridge.name, lease.address, &mac, lease.client];
            let count = if lease.client == "*" { 3 } else { 4 };
            self.programs.run("dhcp_release", &arguments[..count])?;
        }
        until("the DHCP server keeps the lease", || {
            leases_of(&leases(), &mac).is_empty()
        })
    }
}

fn until(otherwise: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + RELEASED_WITHIN;
    while !is_so() {
        if Instant::now() >= deadline {
            return Err(Status::new(Code::Aborted, otherwise));
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    Ok(())
}

fn is_in_this_network(pid: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    namespace(&pid.to_string()) == namespace("self")
}

/// Reads the leases of a hardware address: expiry, hardware address, address, host name and client id.
fn leases_of<'a>(leases: &'a str, mac: &str) -> Vec<Lease<'a>> {
    let lease = |line: &'a str| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, hardware, address, _, client] if hardware == mac => Some(Lease { address, client }),
            _ => None,
        }
    };
    leases.lines().filter_map(lease).collect()
}

/// Reads the addresses that lead to the machine from outside.
fn addresses(answer: &str) -> Result<Vec<String>> {
    let interfaces: Vec<Interface> = serde_json::from_str(answer).map_err(|error| {
        Status::new(Code::Internal, "the addresses of a machine cannot be read").with_source(error)
    })?;
    let all = interfaces.into_iter().flat_map(|interface| interface.addr_info);
    let global = all.filter(|address| address.scope == "global");
    Ok(global
        .filter_map(|address| address.local)
        .map(|address| address.to_string())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_found_by_the_hardware_address() {
        let leases = "1795989532 52:00:00:00:00:01 192.168.150.200 m1 ff:00:01\n\
                      1795989533 52:00:00:00:00:02 192.168.150.201 m2 *\nduid 00:01\n";
        let lease = |address, client| vec![Lease { address, client }];
        assert_eq!(
            leases_of(leases, "52:00:00:00:00:01"),
            lease("192.168.150.200", "ff:00:01")
        );
        assert_eq!(
            leases_of(leases, "52:00:00:00:00:02"),
            lease("192.168.150.201", "*")
        );
        assert_eq!(leases_of(leases, "52:00:00:00:00:03"), []);
    }

    #[test]
    fn addresses_are_those_that_others_can_reach() {
        let answer = r#"[{"ifname":"eth0","addr_info":[
            {"family":"inet","local":"192.168.150.200","prefixlen":24,"scope":"global"},
            {"family":"inet","local":"192.168.150.10","prefixlen":32,"scope":"global"},
            {"family":"inet6","local":"fe80::1","scope":"link"}]},{}]"#;
        assert_eq!(addresses(answer).unwrap(), ["192.168.150.200", "192.168.150.10"]);
        assert_eq!(addresses("x").unwrap_err().code(), Code::Internal);
    }
}
