//! Names that follow from the identity of a machine: every process that is asked for the same machine derives
//! the same folder, container and ids.

use std::fmt;
use std::str::FromStr;

use cmi_driver::{Code, ProviderId, Result, Status, is_dns_label};
use uuid::Uuid;

/// The namespace of the UUIDs. Existing machines have such UUIDs, so it never changes.
const NAMESPACE: Uuid = Uuid::from_u128(0x5b1e_27ac_93d0_4f6e_8c41_0a7f_e2d9_6b35);
/// The most characters of a machine's name in the names of its folder and its host, before the digest.
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
    /// The UUID of the machine, which is also the name of its container. Each machine object has its own,
    /// also where the names are the same.
    pub fn uuid(&self) -> Uuid {
        digest(&[&self.cluster, &self.name, &self.identity])
    }

    /// The name of the machine's folder: the same for all machine objects of a name in a cluster, so there is
    /// at most one machine for all of them.
    pub fn folder_name(&self) -> String {
        let of_name = digest(&[&self.cluster, &self.name]).simple().to_string();
        format!("{}-{}", legible(&self.name), &of_name[..16])
    }

    /// The MAC address of the network interface: unicast, and locally administered.
    pub fn mac(&self) -> String {
        let uuid = self.uuid();
        let bytes = uuid.as_bytes()[..5].iter();
        bytes.fold("52".to_owned(), |mac, byte| format!("{mac}:{byte:02x}"))
    }

    /// The name of the interface at the bridge: at most 15 characters.
    pub fn interface(&self) -> String {
        format!("ve{}", &self.uuid().simple().to_string()[..12])
    }

    /// The host name of the machine, which is also its Node's name. It is the machine's name where that is a
    /// DNS label; otherwise one with a digest: from `a.b`, cloud-init would make the host `a` in the domain
    /// `b`.
    pub fn hostname(&self) -> String {
        if is_dns_label(&self.name) {
            return self.name.clone();
        }
        self.folder_name()
    }

    /// The id of the machine on this host.
    pub fn machine_id(&self, host: &str) -> MachineId {
        MachineId {
            host: host.to_owned(),
            uuid: self.uuid(),
        }
    }
}

/// The UUID of a list of texts. The digest includes their lengths: `a` and `bc` are not `ab` and `c`.
fn digest(parts: &[&str]) -> Uuid {
    let parts = parts.iter().map(|part| format!("{}:{part}", part.len()));
    Uuid::new_v5(&NAMESPACE, parts.collect::<String>().as_bytes())
}

/// The beginning of a DNS subdomain, as a DNS label that can take a suffix.
fn legible(name: &str) -> String {
    let begin: String = name.replace('.', "-").chars().take(LEGIBLE).collect();
    begin.trim_end_matches('-').to_owned()
}

/// The parts of a ProviderID: `container://<host>/<uuid>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineId {
    /// The host that the machine was placed on, as the configuration names it.
    pub host: String,
    /// The UUID of the machine.
    pub uuid: Uuid,
}

impl MachineId {
    /// The id in the type of the driver contract.
    ///
    /// # Errors
    /// INTERNAL when the host's name is too long for an id: the configuration does not allow that.
    pub fn provider_id(&self) -> Result<ProviderId> {
        self.to_string().parse().map_err(|error| {
            Status::new(Code::Internal, format!("`{self}` is no ProviderID")).with_source(error)
        })
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container://{}/{}", self.host, self.uuid)
    }
}

impl FromStr for MachineId {
    type Err = Status;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || {
            let form = "the ProviderID must read `container://<host>/<uuid>`, as CreateMachine answered it";
            Status::new(Code::InvalidArgument, form)
        };
        let (host, uuid) = text
            .strip_prefix("container://")
            .and_then(|rest| rest.split_once('/'))
            .filter(|(host, _)| is_dns_label(host))
            .ok_or_else(refused)?;
        let id = Self {
            host: host.to_owned(),
            uuid: uuid.parse().map_err(|_| refused())?,
        };
        // Only one way to write a UUID is accepted: ids are compared byte for byte.
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
    fn ids_follow_from_the_machine_and_never_change() {
        let key = key("c1", "md-0-x7k2p", "b21d");
        // Machines of earlier versions have these names.
        assert_eq!(key.uuid().to_string(), "36759503-1491-5797-b11f-7ec23b3347ce");
        assert_eq!(key.folder_name(), "md-0-x7k2p-76ec003128005bbe");
        assert_eq!(key.mac(), "52:36:75:95:03:14");
        assert_eq!(key.interface(), "ve367595031491");
        assert_eq!(key.hostname(), "md-0-x7k2p");
    }

    /// DRV-20, DRV-28
    #[test]
    fn cluster_and_name_choose_the_folder_and_identity_the_uuid() {
        let one = key("a", "bc", "1");
        for other in [key("ab", "c", "1"), key("b", "bc", "1"), key("a", "bd", "1")] {
            assert_ne!(one.folder_name(), other.folder_name());
            assert_ne!(one.uuid(), other.uuid());
        }
        let other = key("a", "bc", "2");
        assert_eq!(one.folder_name(), other.folder_name());
        assert_ne!(one.uuid(), other.uuid());
        assert_ne!(one.mac(), other.mac());
        assert_ne!(one.interface(), other.interface());
    }

    /// DRV-14
    #[test]
    fn a_hostname_is_a_dns_label_for_every_name() {
        for name in [
            "a.b",
            &"a".repeat(253),
            &format!("{}.{}", "a".repeat(39), "b".repeat(200)),
        ] {
            let key = key("c", name, "");
            assert!(is_dns_label(&key.hostname()), "{}", key.hostname());
            assert!(key.folder_name().len() <= 63);
        }
        assert_ne!(
            key("c", &"a".repeat(252), "").hostname(),
            key("c", &"a".repeat(253), "").hostname()
        );
    }

    #[test]
    fn a_mac_is_unicast_and_locally_administered() {
        let mac = key("c", "n", "i").mac();
        let first = u8::from_str_radix(&mac[..2], 16).unwrap();
        assert_eq!((first & 1, first & 2), (0, 2), "{mac}");
        assert_eq!(mac.len(), 17);
    }

    #[test]
    fn a_provider_id_has_one_form() {
        let id = key("c", "n", "i").machine_id("host-a");
        let text = id.provider_id().unwrap().to_string();
        assert_eq!(text.parse::<MachineId>().unwrap(), id);
        let upper = format!("container://host-a/{}", id.uuid.to_string().to_uppercase());
        for wrong in [
            "",
            "container://host-a",
            "container:///x",
            "aws:///x/i-1",
            "container://host-a/x",
            &upper,
            &format!("{text}/"),
        ] {
            let status = wrong.parse::<MachineId>().unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{wrong}");
        }
    }
}
