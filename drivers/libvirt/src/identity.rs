//! Names derived from the identity of a machine. Every process derives the same domain, volumes and ids for
//! the same machine, without asking any host.

use std::fmt;
use std::str::FromStr;

use cmi_driver::{Code, ProviderId, Result, Status, is_dns_label};
use uuid::Uuid;

/// The namespace of the UUIDs. It must never change, since existing domains have these UUIDs.
const NAMESPACE: Uuid = Uuid::from_u128(0x9d4d_1b0e_5c1e_4f0b_8a53_6f1d_7c20_c3a1);
/// The beginning of a data disk's name.
const DATA: &str = "data";
/// The prefix of all volumes that the driver makes for machines.
const VOLUME_PREFIX: &str = "capcmi-";
/// The most characters of a machine's name in the names of its domain and its host, before the digest.
const LEGIBLE: usize = 40;

/// The identity of a machine: the name inside its cluster, and the machine object that it was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineKey {
    /// The value of the tag `kubernetes.io/cluster`.
    pub cluster: String,
    /// The machine's name.
    pub name: String,
    /// The value of the tag `capcmi.io/machine`; empty for a client that sends none.
    pub identity: String,
}

impl MachineKey {
    /// The UUID of the domain, unique for each machine object, even if the names are equal.
    pub fn uuid(&self) -> Uuid {
        digest(&[&self.cluster, &self.name, &self.identity])
    }

    /// The name of the domain. It is equal for all machine objects with the same name and cluster, so a host
    /// has at most one domain for them.
    pub fn domain_name(&self) -> String {
        let of_name = digest(&[&self.cluster, &self.name]).simple().to_string();
        format!("{}-{}", legible(&self.name), &of_name[..16])
    }

    /// The prefix of all volumes of the machine.
    pub fn volume_prefix(&self) -> String {
        format!("{VOLUME_PREFIX}{}-", self.uuid())
    }

    /// The name of the volume with the console's log.
    pub fn console_volume(&self) -> String {
        format!("{}console.log", self.volume_prefix())
    }

    /// Whether a volume with this name is the machine's. The driver made it, or libvirt derived it from such
    /// a volume: a snapshot (`root.NAME`), or an old console log (`console.log.0`). The disk of a copy has
    /// the same prefix, but is not the machine's: `virt-clone` calls it `root-clone.qcow2`.
    pub fn has_volume(&self, name: &str) -> bool {
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
    pub fn macs(&self, count: usize) -> Vec<String> {
        let uuid = self.uuid();
        let first = (0x52..=0xfe_u8).step_by(4).take(count);
        let mac = |first: u8| {
            let bytes = uuid.as_bytes()[..5].iter();
            bytes.fold(format!("{first:02x}"), |mac, byte| format!("{mac}:{byte:02x}"))
        };
        first.map(mac).collect()
    }

    /// The name of the volume with a data disk.
    pub fn data_volume(&self, index: usize) -> String {
        format!("{}{}.qcow2", self.volume_prefix(), data_disk(index))
    }

    /// The host name of the guest, and so the name of its Node. It is the machine's name if a Linux guest
    /// uses that unchanged. Otherwise it has a digest: from `a.b`, cloud-init would make host `a` in domain
    /// `b`.
    pub fn hostname(&self) -> String {
        if is_dns_label(&self.name) {
            return self.name.clone();
        }
        self.domain_name()
    }

    /// The ProviderID of the VM on this host.
    pub fn vm_id(&self, host: &str) -> VmId {
        VmId {
            host: host.to_owned(),
            uuid: self.uuid(),
        }
    }
}

/// The name of a data disk. It is the disk's serial number in the guest.
pub fn data_disk(index: usize) -> String {
    format!("{DATA}-{index}")
}

/// The UUID of a list of texts. The digest includes their lengths, so `a` and `bc` differ from `ab` and `c`.
fn digest(parts: &[&str]) -> Uuid {
    let parts = parts.iter().map(|part| format!("{}:{part}", part.len()));
    Uuid::new_v5(&NAMESPACE, parts.collect::<String>().as_bytes())
}

/// The beginning of a DNS subdomain, as a DNS label that can take a suffix.
fn legible(name: &str) -> String {
    let begin: String = name.replace('.', "-").chars().take(LEGIBLE).collect();
    begin.trim_end_matches('-').to_owned()
}

/// The parts of a ProviderID: `libvirt://<host>/<uuid>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmId {
    /// The host that the VM was made on, as the configuration names it.
    pub host: String,
    /// The UUID of the domain.
    pub uuid: Uuid,
}

impl VmId {
    /// The id in the type of the driver contract.
    ///
    /// # Errors
    /// INTERNAL when the host's name is too long for an id: the configuration does not allow that.
    pub fn provider_id(&self) -> Result<ProviderId> {
        self.to_string().parse().map_err(|error| {
            Status::new(Code::Internal, format!("`{self}` is not a ProviderID")).with_source(error)
        })
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "libvirt://{}/{}", self.host, self.uuid)
    }
}

impl FromStr for VmId {
    type Err = Status;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || {
            let form = "the ProviderID must be `libvirt://<host>/<uuid>`, as CreateMachine returned it";
            Status::new(Code::InvalidArgument, form)
        };
        let (host, uuid) = text
            .strip_prefix("libvirt://")
            .and_then(|rest| rest.split_once('/'))
            .filter(|(host, _)| is_dns_label(host))
            .ok_or_else(refused)?;
        let id = Self {
            host: host.to_owned(),
            uuid: uuid.parse().map_err(|_| refused())?,
        };
        // Only one spelling of a UUID is accepted, since ids are compared byte for byte.
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(refused())
        }
    }
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
    }

    /// DRV-20, DRV-28
    #[test]
    fn cluster_and_name_make_the_domain_name_and_the_identity_its_uuid() {
        let one = key("a", "bc", "1");
        for other in [key("ab", "c", "1"), key("b", "bc", "1"), key("a", "bd", "1")] {
            assert_ne!(one.domain_name(), other.domain_name());
            assert_ne!(one.uuid(), other.uuid());
        }
        let other = key("a", "bc", "2");
        assert_eq!(one.domain_name(), other.domain_name());
        assert_ne!(one.uuid(), other.uuid());
        assert_ne!(one.macs(1), other.macs(1));
        assert_ne!(one.volume_prefix(), other.volume_prefix());
    }

    /// DRV-14
    #[test]
    fn a_hostname_is_a_label_however_long_the_name_is_and_whatever_is_in_it() {
        for name in [
            "a.b",
            &"a".repeat(253),
            &format!("{}.{}", "a".repeat(39), "b".repeat(200)),
        ] {
            let key = key("c", name, "");
            assert!(is_dns_label(&key.hostname()), "{}", key.hostname());
            assert!(key.domain_name().len() <= 63);
        }
        assert_ne!(
            key("c", &"a".repeat(252), "").hostname(),
            key("c", &"a".repeat(253), "").hostname()
        );
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

    #[test]
    fn a_provider_id_is_read_as_it_was_written_and_in_no_other_form() {
        let id = key("c", "n", "i").vm_id("host-a");
        let text = id.provider_id().unwrap().to_string();
        assert_eq!(text.parse::<VmId>().unwrap(), id);
        let upper = format!("libvirt://host-a/{}", id.uuid.to_string().to_uppercase());
        for wrong in [
            "",
            "libvirt://host-a",
            "libvirt:///x",
            "aws:///x/i-1",
            "libvirt://host-a/x",
            &upper,
            &format!("{text}/"),
        ] {
            let status = wrong.parse::<VmId>().unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{wrong}");
        }
    }
}
