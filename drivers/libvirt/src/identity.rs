//! Names derived from the identity of a machine. Every process derives the same domain, volumes and ids for
//! the same machine, without asking any host.

pub use cmi_driver::MachineKey;

use cmi_driver::HostedId;
use uuid::Uuid;

/// The namespace of the UUIDs. It must never change, since existing domains have these UUIDs.
const NAMESPACE: Uuid = Uuid::from_u128(0x9d4d_1b0e_5c1e_4f0b_8a53_6f1d_7c20_c3a1);
/// The beginning of a data disk's name.
const DATA: &str = "data";
/// The prefix of all volumes that the driver makes for machines.
const VOLUME_PREFIX: &str = "capcmi-";
/// The scheme of ProviderIDs.
pub const SCHEME: &str = "libvirt";

/// The names of a machine on its host.
pub trait Names {
    /// The UUID of the domain, unique for each machine object, even if the names are equal.
    fn uuid(&self) -> Uuid;

    /// The name of the domain. It is equal for all machine objects with the same name and cluster, so a host
    /// has at most one domain for them.
    fn domain_name(&self) -> String;

    /// The prefix of all volumes of the machine.
    fn volume_prefix(&self) -> String {
        format!("{VOLUME_PREFIX}{}-", self.uuid())
    }

    /// The name of the volume with the console's log.
    fn console_volume(&self) -> String {
        format!("{}console.log", self.volume_prefix())
    }

    /// Whether a volume with this name is the machine's. The driver made it, or libvirt derived it from such
    /// a volume: a snapshot (`root.NAME`), or an old console log (`console.log.0`). The disk of a copy has
    /// the same prefix, but is not the machine's: `virt-clone` calls it `root-clone.qcow2`.
    fn has_volume(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(&self.volume_prefix()) else {
            return false;
        };
        let stem = rest.split_once('.').map_or(rest, |(stem, _)| stem);
        let digest = stem
            .strip_prefix("seed-")
            .or_else(|| stem.strip_prefix("ignition-"));
        let is_digest = |digest: &str| digest.bytes().all(|digit| digit.is_ascii_hexdigit());
        let data = stem.strip_prefix(DATA).and_then(|index| index.strip_prefix('-'));
        let is_index = |index: &str| index.bytes().all(|digit| digit.is_ascii_digit());
        ["root", "console"].contains(&stem) || digest.is_some_and(is_digest) || data.is_some_and(is_index)
    }

    /// The MAC addresses of the network interfaces: unicast, and locally administered. The first byte counts
    /// the interfaces in steps that leave these two bits alone.
    fn macs(&self, count: usize) -> Vec<String> {
        let uuid = self.uuid();
        let first = (0x52..=0xfe_u8).step_by(4).take(count);
        let mac = |first: u8| {
            let bytes = uuid.as_bytes()[..5].iter();
            bytes.fold(format!("{first:02x}"), |mac, byte| format!("{mac}:{byte:02x}"))
        };
        first.map(mac).collect()
    }

    /// The name of the volume with a data disk.
    fn data_volume(&self, index: usize) -> String {
        format!("{}{}.qcow2", self.volume_prefix(), data_disk(index))
    }

    /// The host name of the guest, and so the name of its Node.
    fn hostname(&self) -> String;

    /// The ProviderID of the VM on this host.
    fn vm_id(&self, host: &str) -> HostedId {
        HostedId {
            scheme: SCHEME,
            host: host.to_owned(),
            uuid: self.uuid(),
        }
    }
}

impl Names for MachineKey {
    fn uuid(&self) -> Uuid {
        self.derived_uuid(NAMESPACE)
    }

    fn domain_name(&self) -> String {
        self.derived_name(NAMESPACE)
    }

    fn hostname(&self) -> String {
        self.host_name(NAMESPACE)
    }
}

/// The name of a data disk. It is the disk's serial number in the guest.
pub fn data_disk(index: usize) -> String {
    format!("{DATA}-{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(cluster: &str, name: &str, identity: &str) -> MachineKey {
        MachineKey {
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
        }
    }

    /// DRV-10
    #[test]
    fn ids_follow_from_the_machine_and_stay_as_they_are() {
        let key = key("c1", "md-0-x7k2p", "b21d");
        // VMs from earlier versions have these values.
        assert_eq!(key.uuid().to_string(), "849cb38e-e165-5cff-b75c-57da245b141d");
        assert_eq!(key.domain_name(), "md-0-x7k2p-39cd3dff23e25e0c");
        assert_eq!(key.macs(1), ["52:84:9c:b3:8e:e1"]);
        assert_eq!(key.hostname(), "md-0-x7k2p");
        let id = key.vm_id("host-a").to_string();
        assert_eq!(id, "libvirt://host-a/849cb38e-e165-5cff-b75c-57da245b141d");
    }

    #[test]
    fn a_volume_is_the_machines_by_its_name_and_that_of_a_copy_is_not() {
        let (key, other) = (key("c", "n", "i"), key("c", "n", "j"));
        for (rest, expected) in [
            ("root.qcow2", true),
            ("root.snapshot-1", true),
            ("seed-0123456789abcdef", true),
            ("seed-0123456789abcdef.snapshot-1", true),
            ("ignition-0123456789abcdef", true),
            ("console.log", true),
            ("console.log.0", true),
            ("root-clone.qcow2", false),
            ("root-clone-1.qcow2", false),
            ("seed-0123456789abcdef-clone", false),
            ("console-clone.log", false),
            ("backup.qcow2", false),
            ("data-0.qcow2", true),
            ("data-15.snapshot-1", true),
            ("data-0-clone.qcow2", false),
            ("database.qcow2", false),
        ] {
            let name = |key: &MachineKey| format!("{}{rest}", key.volume_prefix());
            assert_eq!(key.has_volume(&name(&key)), expected, "{rest}");
            assert!(!key.has_volume(&name(&other)), "{rest}");
            assert!(!key.has_volume(rest), "{rest}");
        }
    }

    #[test]
    fn macs_are_unicast_locally_administered_and_different() {
        let macs = key("c", "n", "i").macs(8);
        for mac in &macs {
            let first = u8::from_str_radix(&mac[..2], 16).unwrap();
            assert_eq!((first & 1, first & 2), (0, 2), "{mac}");
            assert_eq!(mac.len(), 17);
        }
        let different: std::collections::HashSet<_> = macs.iter().collect();
        assert_eq!(different.len(), 8);
        assert_eq!(&macs[1][..3], "56:");
    }
}
