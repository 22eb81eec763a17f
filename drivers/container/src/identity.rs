//! Names that follow from the identity of a machine: every process that is asked for the same machine derives
//! the same folder, container and ids.

pub use cmi_driver::MachineKey;

use cmi_driver::HostedId;
use uuid::Uuid;

/// The namespace of the UUIDs. Existing machines have such UUIDs, so it never changes.
const NAMESPACE: Uuid = Uuid::from_u128(0x5b1e_27ac_93d0_4f6e_8c41_0a7f_e2d9_6b35);
/// The scheme of ProviderIDs.
pub const SCHEME: &str = "container";

/// The names of a machine on its host.
pub trait Names {
    /// The UUID of the machine, which is also the name of its container. Each machine object has its own,
    /// also where the names are the same.
    fn uuid(&self) -> Uuid;

    /// The name of the machine's folder: the same for all machine objects of a name in a cluster, so there is
    /// at most one machine for all of them.
    fn folder_name(&self) -> String;

    /// The MAC address of the network interface: unicast, and locally administered.
    fn mac(&self) -> String {
        let uuid = self.uuid();
        let bytes = uuid.as_bytes()[..5].iter();
        bytes.fold("52".to_owned(), |mac, byte| format!("{mac}:{byte:02x}"))
    }

    /// The name of the interface at the bridge: at most 15 characters.
    fn interface(&self) -> String {
        format!("ve{}", &self.uuid().simple().to_string()[..12])
    }

    /// The host name of the machine, which is also its Node's name.
    fn hostname(&self) -> String;

    /// The id of the machine on this host.
    fn machine_id(&self, host: &str) -> HostedId {
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

    fn folder_name(&self) -> String {
        self.derived_name(NAMESPACE)
    }

    fn hostname(&self) -> String {
        self.host_name(NAMESPACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRV-10
    #[test]
    fn ids_follow_from_the_machine_and_never_change() {
        let key = MachineKey {
            cluster: "c1".to_owned(),
            name: "md-0-x7k2p".to_owned(),
            identity: "b21d".to_owned(),
        };
        // Machines of earlier versions have these names.
        assert_eq!(key.uuid().to_string(), "36759503-1491-5797-b11f-7ec23b3347ce");
        assert_eq!(key.folder_name(), "md-0-x7k2p-76ec003128005bbe");
        assert_eq!(key.mac(), "52:36:75:95:03:14");
        assert_eq!(key.interface(), "ve367595031491");
        assert_eq!(key.hostname(), "md-0-x7k2p");
        let id = key.machine_id("host-a").to_string();
        assert_eq!(id, "container://host-a/36759503-1491-5797-b11f-7ec23b3347ce");
    }

    #[test]
    fn a_mac_is_unicast_and_locally_administered() {
        let key = MachineKey {
            cluster: "c".to_owned(),
            name: "n".to_owned(),
            identity: "i".to_owned(),
        };
        let mac = key.mac();
        let first = u8::from_str_radix(&mac[..2], 16).unwrap();
        assert_eq!((first & 1, first & 2), (0, 2), "{mac}");
        assert_eq!(mac.len(), 17);
    }
}
