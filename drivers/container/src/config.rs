//! The configuration of the driver: where machines are kept, and what they are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cmi_grpc::cli::config_file::{self, dns_labels};
use garde::Validate;
use serde::Deserialize;

/// The longest name of a network interface.
const MAX_INTERFACE: usize = 15;

/// The configuration of the driver.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The folder that holds the machines. It is on a real file system and survives a restart of the driver.
    /// Required.
    #[garde(custom(mountable))]
    pub state_dir: PathBuf,
    /// The failure domains by name. All are this computer. A name stands in the ProviderIDs of its machines,
    /// so it has to stay. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub hosts: BTreeMap<String, Host>,
    /// The pools that `vmPool` of a provider spec names. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub vm_pools: BTreeMap<String, VmPool>,
    /// The sizes that `size` of a provider spec names. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub sizes: BTreeMap<String, Size>,
    /// The folders of root file systems by image name. Nothing writes to them, and they may not change while
    /// a machine uses them. They are on the same file system as `stateDir`. Required.
    #[garde(length(min = 1), custom(dns_labels), custom(all_mountable))]
    pub images: BTreeMap<String, PathBuf>,
    /// The bridge that machines are attached to. Required.
    #[garde(dive)]
    pub bridge: Bridge,
    /// The OCI runtime: a path, or a program in `PATH`. Default: `runc`.
    #[serde(default = "default_runtime")]
    #[garde(length(min = 1))]
    pub runtime: String,
}

/// A failure domain.
#[derive(Clone, Debug, Default, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Memory for machines, MiB: the sizes of its machines may add up to this. Default: unlimited.
    #[garde(range(min = 64))]
    pub memory_mib: Option<u64>,
}

/// Where machines are placed.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VmPool {
    /// The image of machines whose spec names none. Required.
    #[garde(skip)]
    pub image: String,
    /// The hosts that machines are placed on. Default: all.
    #[garde(inner(length(min = 1)))]
    pub hosts: Option<BTreeSet<String>>,
}

/// The CPUs and memory of a machine of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Size {
    /// CPU time, in CPUs. Required.
    #[garde(range(min = 1, max = 4096))]
    pub cpus: u32,
    /// Memory, MiB. Required.
    #[garde(range(min = 64, max = 67_108_864))]
    pub memory_mib: u64,
}

/// The bridge that machines are attached to, in the network namespace of the driver.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bridge {
    /// Its name. Required.
    #[garde(length(min = 1, max = MAX_INTERFACE), pattern(r"^[a-zA-Z0-9_.-]+$"))]
    pub name: String,
    /// Its address with the length of the network's prefix, `192.168.150.1/24`. The driver makes the bridge
    /// and gives it this address. Default: the bridge exists.
    #[garde(skip)]
    pub address: Option<Subnet>,
    /// The addresses that dnsmasq leases to machines. Default: no DHCP from the driver.
    #[garde(skip)]
    pub dhcp_range: Option<DhcpRange>,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DhcpRange {
    /// The first address. Required.
    pub first: Ipv4Addr,
    /// The last address. Required.
    pub last: Ipv4Addr,
}

impl DhcpRange {
    /// Whether the address is in the range.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&address)
    }
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Subnet {
    /// The address.
    pub address: Ipv4Addr,
    /// The length of the prefix, 1–30.
    pub prefix: u8,
}

impl Subnet {
    /// Whether the address is in the network and may be a machine's.
    pub fn has_host(&self, address: Ipv4Addr) -> bool {
        let hosts = u32::MAX >> self.prefix;
        let host = address.to_bits() & hosts;
        let is_inside = address.to_bits() & !hosts == self.address.to_bits() & !hosts;
        is_inside && host != 0 && host != hosts && address != self.address
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl TryFrom<String> for Subnet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(address, prefix)| {
            let prefix = prefix.parse().ok().filter(|prefix| (1..=30).contains(prefix))?;
            Some((address.parse().ok()?, prefix))
        });
        let (address, prefix) = parts.ok_or_else(|| {
            format!("`{text}` is no IPv4 address with a prefix length of 1 to 30, such as 192.168.150.1/24")
        })?;
        Ok(Self { address, prefix })
    }
}

fn default_runtime() -> String {
    "runc".to_owned()
}

impl Config {
    /// Reads a file and checks it.
    ///
    /// # Errors
    /// The fault of the file, and its place.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("cannot use the driver's configuration {}", path.display());
        let text = std::fs::read_to_string(path).with_context(what)?;
        Self::parse(&text).with_context(what)
    }

    /// Parses a text and checks it.
    ///
    /// # Errors
    /// The fault of the text, and its place.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = config_file::parse(text)?;
        config.check_names()?;
        config.bridge.check()?;
        Ok(config)
    }

    /// Checks that the images and hosts that pools name exist.
    fn check_names(&self) -> anyhow::Result<()> {
        for (name, pool) in &self.vm_pools {
            if !self.images.contains_key(&pool.image) {
                anyhow::bail!("vmPools.{name}.image: add image `{}` to `images`", pool.image);
            }
            let hosts = pool.hosts.iter().flatten();
            if let Some(host) = hosts.into_iter().find(|host| !self.hosts.contains_key(*host)) {
                anyhow::bail!("vmPools.{name}.hosts: add host `{host}` to `hosts`");
            }
            if pool.hosts.as_ref().is_some_and(BTreeSet::is_empty) {
                anyhow::bail!("vmPools.{name}.hosts: name a host, or leave the field out for all hosts");
            }
        }
        Ok(())
    }

    /// Returns the hosts that machines of a pool are placed on.
    pub fn hosts_of<'a>(&'a self, pool: &'a VmPool) -> impl Iterator<Item = &'a str> {
        let all = self.hosts.keys().map(String::as_str);
        all.filter(|host| pool.hosts.as_ref().is_none_or(|hosts| hosts.contains(*host)))
    }
}

impl Bridge {
    fn check(&self) -> anyhow::Result<()> {
        let Some(range) = self.dhcp_range else {
            return Ok(());
        };
        let subnet = self
            .address
            .context("bridge.dhcpRange: needs `bridge.address`, the address of the DHCP server")?;
        if range.first > range.last || !subnet.has_host(range.first) || !subnet.has_host(range.last) {
            anyhow::bail!(
                "bridge.dhcpRange: {} to {} is not a range of machine addresses in {subnet}",
                range.first,
                range.last
            );
        }
        if range.contains(subnet.address) {
            anyhow::bail!(
                "bridge.dhcpRange: leave out {}, the bridge's own address",
                subnet.address
            );
        }
        Ok(())
    }
}

/// Checks that a path can be an option of an overlay mount, which separates its options with these
/// characters.
fn mountable<C>(path: &Path, _: &C) -> garde::Result {
    let is_text = path.to_str().is_some_and(|text| !text.contains([',', ':', '\\']));
    if path.is_absolute() && is_text {
        return Ok(());
    }
    Err(garde::Error::new(format!(
        "`{}` must be an absolute path without `,`, `:` and `\\`",
        path.display()
    )))
}

fn all_mountable<C>(images: &BTreeMap<String, PathBuf>, context: &C) -> garde::Result {
    images.values().try_for_each(|path| mountable(path, context))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two hosts, one pool on both, two sizes and two images.
    pub(crate) const EXAMPLE: &str = "
stateDir: /var/lib/capcmi-container
hosts:
  host-a: {memoryMib: 8192}
  host-b: {}
vmPools:
  default: {image: debian}
  edge: {image: tiny, hosts: [host-b]}
sizes:
  small: {cpus: 1, memoryMib: 2048}
  large: {cpus: 4, memoryMib: 8192}
images:
  debian: /srv/images/debian
  tiny: /srv/images/tiny
bridge:
  name: br-capcmi
  address: 192.168.150.1/24
  dhcpRange: {first: 192.168.150.100, last: 192.168.150.199}
";

    pub(crate) fn example() -> Config {
        Config::parse(EXAMPLE).unwrap()
    }

    #[test]
    fn a_pool_is_on_all_hosts_or_on_those_that_it_names() {
        let config = example();
        let hosts = |pool: &str| config.hosts_of(&config.vm_pools[pool]).collect::<Vec<_>>();
        assert_eq!(hosts("default"), ["host-a", "host-b"]);
        assert_eq!(hosts("edge"), ["host-b"]);
        assert_eq!(config.runtime, "runc");
    }

    #[test]
    fn an_error_names_the_path_of_the_field() {
        for (what, with, path) in [
            ("/var/lib/capcmi-container", "var", "stateDir"),
            ("/var/lib/capcmi-container", "'/a,b'", "stateDir"),
            ("cpus: 1", "cpus: 0", "sizes.small.cpus"),
            ("cpus: 1", "cpus: one", "sizes.small.cpus"),
            ("cpus: 1", "cores: 1", "sizes.small"),
            (
                "memoryMib: 8192}\n  host-b",
                "memoryMib: 1}\n  host-b",
                "hosts.host-a.memoryMib",
            ),
            ("host-a:", "host_a:", "hosts"),
            ("/srv/images/debian", "'/s:rv'", "images"),
            ("image: tiny", "image: none", "vmPools.edge.image"),
            ("hosts: [host-b]", "hosts: [moon]", "vmPools.edge.hosts"),
            ("hosts: [host-b]", "hosts: []", "vmPools.edge.hosts"),
            ("name: br-capcmi", "name: bridge-of-machines", "bridge.name"),
            ("192.168.150.1/24", "192.168.150.1", "bridge.address"),
            ("192.168.150.1/24", "192.168.150.1/31", "bridge.address"),
            ("  address: 192.168.150.1/24\n", "", "bridge.dhcpRange"),
            (
                "first: 192.168.150.100",
                "first: 192.168.150.200",
                "bridge.dhcpRange",
            ),
            (
                "first: 192.168.150.100",
                "first: 192.168.150.0",
                "bridge.dhcpRange",
            ),
            ("last: 192.168.150.199", "last: 192.168.151.1", "bridge.dhcpRange"),
            ("192.168.150.1/24", "192.168.150.150/24", "bridge.dhcpRange"),
        ] {
            let text = EXAMPLE.replacen(what, with, 1);
            assert_ne!(text, EXAMPLE, "{what} is not in the example");
            let message = format!("{:#}", Config::parse(&text).unwrap_err());
            assert!(message.contains(path), "{what} -> {with}: {message}");
        }
    }

    #[test]
    fn a_machine_may_not_have_the_address_of_bridge_or_network() {
        let subnet = Subnet::try_from("10.0.0.1/30".to_owned()).unwrap();
        for (address, expected) in [
            ("10.0.0.0", false),
            ("10.0.0.1", false),
            ("10.0.0.2", true),
            ("10.0.0.3", false),
            ("10.0.0.6", false),
        ] {
            assert_eq!(subnet.has_host(address.parse().unwrap()), expected, "{address}");
        }
    }
}
