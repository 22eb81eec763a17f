//! The configuration of the driver: hosts, pools, sizes and images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use cmi_grpc::cli::config_file::{self, dns_labels};
use garde::Validate;
use serde::Deserialize;

/// The configuration of the driver.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// How guests run: `kvm`, or `qemu` for emulation where there is no KVM. Required: libvirt also offers
    /// KVM on hosts where no guest boots with it.
    #[garde(skip)]
    pub virt_type: VirtType,
    /// The hosts by name. Each is a failure domain. The ProviderIDs of its VMs contain its name, so it must
    /// not change. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub hosts: BTreeMap<String, Host>,
    /// The pools that `vmPool` of a provider spec names. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub vm_pools: BTreeMap<String, VmPool>,
    /// The networks that pools and `networks` of a provider spec name. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub networks: BTreeMap<String, Network>,
    /// The sizes that `size` of a provider spec names. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub sizes: BTreeMap<String, Size>,
    /// The images that machines boot from. Required.
    #[garde(length(min = 1), custom(dns_labels), dive)]
    pub images: BTreeMap<String, Image>,
}

/// How guests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VirtType {
    /// With KVM.
    Kvm,
    /// Emulated: slow, but possible on any computer.
    Qemu,
}

/// A host with libvirt.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Where its libvirt is: `qemu:///system`, `qemu+tls://host/system`, `qemu+ssh://user@host/system`.
    /// Required.
    #[garde(custom(qemu_uri))]
    pub uri: String,
    /// Memory that no machine gets, MiB. Default: 1024.
    #[serde(default = "default_reserved_memory")]
    #[garde(skip)]
    pub reserved_memory_mib: u64,
}

/// Where machines are placed.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VmPool {
    /// The storage pool for disks and seeds; it is on every host of the pool and active. Required.
    #[garde(length(min = 1))]
    pub storage_pool: String,
    /// The network of machines whose spec names none. Required.
    #[garde(skip)]
    pub network: String,
    /// The image of machines whose spec names none. Required.
    #[garde(skip)]
    pub image: String,
    /// The hosts that machines are placed on. Default: all.
    #[garde(skip)]
    pub hosts: Option<BTreeSet<String>>,
    /// The largest root file system or data disk, GB. Default: 1000.
    #[serde(default = "default_max_disk")]
    #[garde(range(min = 1, max = 1_000_000))]
    pub max_disk_gb: u64,
}

/// A network of guests, on every host of the pools that use it.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// The network of libvirt. Either this or `bridge`.
    #[garde(inner(length(min = 1)), custom(either_network_or_bridge(self)))]
    pub network: Option<String>,
    /// The bridge of the host.
    #[garde(inner(length(min = 1)))]
    pub bridge: Option<String>,
    /// Whether the bridge is one of Open vSwitch. Default: a bridge of Linux.
    #[serde(default)]
    #[garde(skip)]
    pub open_v_switch: bool,
    /// The VLAN of the guests on the bridge. A bridge of Linux needs libvirt 11. Default: none.
    #[garde(inner(range(min = 1, max = 4094)))]
    pub vlan: Option<u16>,
    /// The MTU of the guests on the bridge. Default: the bridge's.
    #[garde(inner(range(min = 68, max = 65_535)))]
    pub mtu: Option<u16>,
}

/// The CPUs and memory of a machine of a size.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Size {
    /// Virtual CPUs. Required.
    #[garde(range(min = 1, max = 4096))]
    pub cpus: u32,
    /// Memory, MiB. Required.
    #[garde(range(min = 64, max = 67_108_864))]
    pub memory_mib: u64,
}

/// An image that machines boot from. Each root file system is a layer on this volume. Nothing writes to the
/// volume, and it must not change while a machine uses it.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// The storage pool that has it. Required.
    #[garde(length(min = 1))]
    pub storage_pool: String,
    /// The volume's name in that pool. Required.
    #[garde(length(min = 1))]
    pub volume: String,
    /// Its format. Required.
    #[garde(skip)]
    pub format: ImageFormat,
    /// SHA-256 of the whole file, as `sha256sum` prints it. Required.
    #[garde(custom(is_sha256))]
    pub sha256: String,
    /// What starts the guest's boot loader. Default: `bios`.
    #[serde(default)]
    #[garde(skip)]
    pub firmware: Firmware,
    /// A kernel that is booted without a boot loader. Default: none.
    #[garde(dive)]
    pub direct_boot: Option<DirectBoot>,
}

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// QEMU's own format.
    Qcow2,
    /// The bytes of the disk.
    Raw,
}

impl ImageFormat {
    /// Returns the name of the format in libvirt.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// What starts a boot loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Firmware {
    /// SeaBIOS.
    #[default]
    Bios,
    /// UEFI that starts any boot loader; the host needs OVMF.
    Efi,
    /// UEFI that starts only boot loaders signed with a key enrolled in the host's OVMF.
    EfiSecureBoot,
}

/// A kernel on the host.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DirectBoot {
    /// Path of the kernel on the host. Required.
    #[garde(custom(absolute))]
    pub kernel: String,
    /// Path of the initial RAM disk on the host. Default: none.
    #[garde(inner(custom(absolute)))]
    pub initrd: Option<String>,
    /// The kernel's command line. Default: empty.
    #[serde(default)]
    #[garde(skip)]
    pub command_line: String,
}

const fn default_reserved_memory() -> u64 {
    1024
}

const fn default_max_disk() -> u64 {
    1000
}

impl Config {
    /// Reads a file and checks it.
    ///
    /// # Errors
    /// The file can't be read, or a value is invalid; the error gives its path.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("cannot use the driver's configuration file {}", path.display());
        let text = std::fs::read_to_string(path).with_context(what)?;
        Self::parse(&text).with_context(what)
    }

    /// Parses a text and checks it.
    ///
    /// # Errors
    /// A value is invalid; the error gives its path. It shows no snippet of the text, since a URI may contain
    /// a password.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = config_file::parse(text)?;
        config.check_names()?;
        Ok(config)
    }

    /// Checks that the images, networks and hosts that pools name exist.
    fn check_names(&self) -> anyhow::Result<()> {
        for (name, pool) in &self.vm_pools {
            if !self.images.contains_key(&pool.image) {
                anyhow::bail!(
                    "vmPools.{name}.image: image `{}` is not in `images`: add it there",
                    pool.image
                );
            }
            if !self.networks.contains_key(&pool.network) {
                anyhow::bail!(
                    "vmPools.{name}.network: network `{}` is not in `networks`: add it there",
                    pool.network
                );
            }
            if let Some(hosts) = &pool.hosts {
                if hosts.is_empty() {
                    anyhow::bail!("vmPools.{name}.hosts: the list is empty: omit it to use all hosts");
                }
                if let Some(host) = hosts.iter().find(|host| !self.hosts.contains_key(*host)) {
                    anyhow::bail!("vmPools.{name}.hosts: host `{host}` is not in `hosts`: add it there");
                }
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

/// The allowed transports. `tcp` would accept every client that can connect to the host's port, and `ext`
/// would run a program.
const TRANSPORTS: [&str; 5] = ["unix", "tls", "ssh", "libssh", "libssh2"];

fn qemu_uri<C>(uri: &str, _: &C) -> garde::Result {
    if uri.starts_with("qemu:///") {
        return Ok(());
    }
    let transport = uri
        .strip_prefix("qemu+")
        .and_then(|rest| rest.split_once("://"))
        .map(|(transport, _)| transport);
    match transport {
        Some(known) if TRANSPORTS.contains(&known) => Ok(()),
        Some("tcp") => Err(garde::Error::new(
            "`qemu+tcp://` gives root access without encryption or authentication: use `qemu+tls://` or \
             `qemu+ssh://`",
        )),
        Some(_) | None => Err(garde::Error::new(
            "the URI must begin with `qemu:///`, `qemu+unix://`, `qemu+tls://` or `qemu+ssh://`",
        )),
    }
}

fn is_sha256<C>(text: &str, _: &C) -> garde::Result {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() == 64 && text.bytes().all(is_hex) {
        return Ok(());
    }
    Err(garde::Error::new(
        "must be 64 lower case hexadecimal digits, as `sha256sum` prints them",
    ))
}

fn absolute<C>(path: &str, _: &C) -> garde::Result {
    if path.starts_with('/') {
        return Ok(());
    }
    Err(garde::Error::new("the path on the host must be absolute"))
}

fn either_network_or_bridge(network: &Network) -> impl FnOnce(&Option<String>, &()) -> garde::Result {
    let has_bridge = network.bridge.is_some();
    let has_options = network.open_v_switch || network.vlan.is_some() || network.mtu.is_some();
    move |network, ()| {
        if network.is_some() == has_bridge {
            return Err(garde::Error::new("set either `network` or `bridge`"));
        }
        if network.is_some() && has_options {
            return Err(garde::Error::new(
                "`openVSwitch`, `vlan` and `mtu` need a `bridge`: set them in libvirt's network",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two hosts, one pool on both, two sizes and two images.
    pub(crate) const EXAMPLE: &str = "
virtType: qemu
hosts:
  host-a: {uri: 'qemu:///system'}
  host-b: {uri: 'qemu+tls://b.example/system', reservedMemoryMib: 0}
vmPools:
  default: {storagePool: machines, network: lan, image: debian, maxDiskGb: 100}
  edge: {storagePool: machines, network: storage, image: tiny, hosts: [host-b]}
networks:
  lan: {network: default}
  storage: {bridge: br0, openVSwitch: true, vlan: 20, mtu: 9000}
sizes:
  small: {cpus: 1, memoryMib: 2048}
  large: {cpus: 4, memoryMib: 8192}
images:
  debian: {storagePool: images, volume: debian-12.qcow2, format: qcow2, firmware: efi, sha256: \
  e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
  tiny:
    storagePool: images
    volume: tiny.raw
    format: raw
    sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    directBoot: {kernel: /boot/vmlinuz, initrd: /boot/initrd.img, commandLine: console=ttyS0}
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
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        for (what, with, path) in [
            ("virtType: qemu", "", "virtType"),
            ("virtType: qemu", "virtType: auto", "virtType"),
            ("cpus: 1", "cpus: 0", "sizes.small.cpus"),
            ("cpus: 1", "cpus: one", "sizes.small.cpus"),
            ("cpus: 1", "cores: 1", "sizes.small"),
            ("qemu:///system", "xen:///system", "hosts.host-a.uri"),
            ("qemu:///system", "qemu+tcp://a/system", "hosts.host-a.uri"),
            ("qemu:///system", "qemu+ext:///system", "hosts.host-a.uri"),
            ("host-a:", "host_a:", "hosts"),
            ("network: lan, ", "", "vmPools.default"),
            ("network: lan", "network: moon", "vmPools.default.network"),
            ("network: default", "", "networks.lan.network"),
            (
                "network: default",
                "network: default, bridge: br0",
                "networks.lan.network",
            ),
            (
                "network: default",
                "network: default, mtu: 9000",
                "networks.lan.network",
            ),
            ("vlan: 20", "vlan: 4095", "networks.storage.vlan"),
            ("mtu: 9000", "mtu: 60", "networks.storage.mtu"),
            ("image: tiny", "image: none", "vmPools.edge.image"),
            ("hosts: [host-b]", "hosts: [moon]", "vmPools.edge.hosts"),
            ("hosts: [host-b]", "hosts: []", "vmPools.edge.hosts"),
            ("kernel: /boot", "kernel: boot", "images.tiny.directBoot.kernel"),
            (
                "sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n    direct",
                "sha256: E3\n    direct",
                "images.tiny.sha256",
            ),
        ] {
            let text = EXAMPLE.replacen(what, with, 1);
            assert_ne!(text, EXAMPLE, "{what} is not in the example");
            let message = format!("{:#}", Config::parse(&text).unwrap_err());
            assert!(message.contains(path), "{what} -> {with}: {message}");
        }
    }

    #[test]
    fn a_host_is_reached_by_what_keeps_others_out() {
        for uri in [
            "qemu:///system",
            "qemu+unix:///system?socket=/run/libvirt-sock",
            "qemu+tls://a/system?pkipath=/p",
            "qemu+ssh://root@a/system",
            "qemu+libssh://root@a/system",
            "qemu+libssh2://root@a/system",
        ] {
            Config::parse(&EXAMPLE.replace("qemu:///system", uri)).unwrap();
        }
        let tcp = EXAMPLE.replace("qemu:///system", "qemu+tcp://a/system");
        let message = format!("{:#}", Config::parse(&tcp).unwrap_err());
        assert!(
            message.contains("without encryption or authentication"),
            "{message}"
        );
    }
}
