//! A VM of the simulated cloud.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::Uuid;

use super::clock::Instant;
use cmi_driver::{
    Address, AddressType, ListedMachine, Machine, PowerState, ProviderId, ProviderIdError, StaticAddress,
    tags,
};

const SCHEME: &str = "simulated://";
/// Where a provider id has the zone, when the cloud has no zones.
const NO_ZONE: &str = "-";

/// The cloud's own id of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmId(Uuid);

/// The text is not a provider id of this driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the provider id `{0}` is not of the form `simulated://<zone>/<uuid>`")]
pub struct ParseVmIdError(String);

impl VmId {
    /// An id that no other VM has.
    pub fn unique() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns a number between 0 and 1, uniformly distributed over ids, for values that vary between VMs.
    pub fn share(self) -> f64 {
        let (high, _) = self.0.as_u64_pair();
        // The upper 32 bits of such a UUID are all random.
        f64::from(u32::try_from(high >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for VmId {
    type Err = ParseVmIdError;

    /// Reads the id out of a provider id; the zone in it is not looked at.
    fn from_str(provider_id: &str) -> Result<Self, Self::Err> {
        provider_id
            .strip_prefix(SCHEME)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(zone, _)| !zone.is_empty())
            .and_then(|(_, id)| Uuid::try_parse(id).ok())
            .map(Self)
            .ok_or_else(|| ParseVmIdError(provider_id.to_owned()))
    }
}

/// The bootstrap data that a VM was given; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData(Arc<[u8]>);

impl UserData {
    /// The bytes. Never log them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for UserData {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[redacted, {} bytes]", self.0.len())
    }
}

impl Serialize for UserData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for UserData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        BASE64_STANDARD
            .decode(text.as_bytes())
            .map(|bytes| Self(bytes.into()))
            .map_err(|_| D::Error::custom("user data is not base64"))
    }
}

/// Whether the cloud lets a VM be worked with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    /// As it should be.
    #[default]
    Sound,
    /// Every call on it is refused with FAILED_PRECONDITION until it is repaired.
    Locked,
    /// It crashed and will not run again; it can be deleted.
    Crashed,
}

/// A VM, from its order until it is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    /// The cloud's own id.
    pub id: VmId,
    /// Its machine's name, which is also its node's name; empty if the cloud has lost it.
    pub name: String,
    /// Its tags, including the driver's.
    pub tags: BTreeMap<String, String>,
    /// Its labels, which can be changed during its life.
    pub labels: BTreeMap<String, String>,
    /// The pool that it takes a place of.
    pub pool: String,
    /// The name of its size.
    pub size: String,
    /// Root file system, GB.
    pub root_fs_gb: u32,
    /// Where it was placed; none in a cloud without zones.
    pub zone: Option<String>,
    /// Its address, from the pool's subnet.
    pub address: Option<Ipv4Addr>,
    /// From when the driver knows its address; always, if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_from: Option<Instant>,
    /// The addresses that its order has set, instead of one from the pool's subnet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub static_addresses: Vec<StaticAddress>,
    /// The addresses that its guest has instead, if they were set at the console.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_addresses: Option<Vec<Address>>,
    /// Whether the network drops packets without the VM's address as source or destination. On for a new VM.
    pub source_dest_check: bool,
    /// The bootstrap data.
    pub user_data: UserData,
    /// `cloud-config` or `ignition`, if the caller gave it.
    pub user_data_format: Option<String>,
    /// When it was ordered.
    pub ordered_at: Instant,
    /// From when its guest runs.
    pub boots_at: Instant,
    /// From when its guest is stopped, when that was ordered.
    pub stops_at: Option<Instant>,
    /// From when it is gone, when its deletion was ordered.
    pub gone_at: Option<Instant>,
    /// Whether it can be worked with.
    pub condition: Condition,
}

/// The id of a VM in this zone, as [`Vm::provider_id`] has it.
pub fn provider_id(zone: Option<&str>, id: VmId) -> String {
    format!("{SCHEME}{}/{id}", zone.unwrap_or(NO_ZONE))
}

impl Vm {
    /// The id as the Node has it: `simulated://<zone>/<uuid>`.
    pub fn provider_id(&self) -> String {
        provider_id(self.zone.as_deref(), self.id)
    }

    /// The cluster it belongs to; empty when its tag is missing.
    pub fn cluster(&self) -> &str {
        self.tags.get(tags::CLUSTER).map_or("", String::as_str)
    }

    /// The machine object it belongs to; empty when its tag is missing.
    pub fn machine(&self) -> &str {
        self.tags.get(tags::MACHINE).map_or("", String::as_str)
    }

    /// Whether the guest runs at `now`, as a kubelet needs.
    pub fn is_running(&self, now: Instant) -> bool {
        self.power_state(now) == PowerState::Running
    }

    /// The power state that the cloud reports at `now`.
    pub fn power_state(&self, now: Instant) -> PowerState {
        match (self.condition, self.gone_at, self.stops_at) {
            (Condition::Crashed, _, _) => PowerState::Failed,
            (Condition::Sound | Condition::Locked, Some(_), _) => PowerState::Stopping,
            (Condition::Sound | Condition::Locked, None, Some(at)) if now < at => PowerState::Stopping,
            (Condition::Sound | Condition::Locked, None, Some(_)) => PowerState::Stopped,
            (Condition::Sound | Condition::Locked, None, None) if now < self.boots_at => PowerState::Starting,
            (Condition::Sound | Condition::Locked, None, None) => PowerState::Running,
        }
    }

    /// Returns the lines that the guest has written to its console until `now`.
    pub fn console(&self, now: Instant) -> String {
        let mut lines = vec![format!("simulated firmware: starting VM {}", self.id)];
        if self.boots_at <= now {
            lines.push(format!("{} login: simulated guest is up", self.name));
        }
        if self.stops_at.is_some_and(|at| at <= now) {
            lines.push("simulated guest: powered off".to_owned());
        }
        if self.condition == Condition::Crashed {
            lines.push("Kernel panic - not syncing: simulated crash".to_owned());
        }
        lines.join("\n") + "\n"
    }

    /// A guest that is off shows only its name.
    fn addresses(&self, now: Instant) -> Vec<Address> {
        if let Some(addresses) = &self.set_addresses {
            return addresses.clone();
        }
        let is_off = self.power_state(now) == PowerState::Stopped;
        let is_known = !is_off && self.address_from.is_none_or(|from| from <= now);
        let given = self.static_addresses.iter().map(|given| given.address);
        let own = self.address.map(IpAddr::from);
        let own = own.filter(|_| self.static_addresses.is_empty());
        let internal = given.chain(own).filter(|_| is_known).map(|address| Address {
            kind: AddressType::InternalIP,
            address: address.to_string(),
        });
        let hostname = Address {
            kind: AddressType::Hostname,
            address: self.name.clone(),
        };
        let addresses = internal.chain([hostname]);
        addresses.filter(|address| !address.address.is_empty()).collect()
    }

    /// Returns the VM at `now` as an entry of a list.
    ///
    /// # Errors
    /// As [`Vm::describe`].
    pub fn listed(&self, now: Instant) -> Result<ListedMachine, ProviderIdError> {
        let given = |tag: &str| (!tag.is_empty()).then(|| tag.to_owned());
        Ok(ListedMachine {
            cluster_id: given(self.cluster()),
            machine_id: given(self.machine()),
            created_at: self.ordered_at.timestamp(),
            addresses: self.addresses(now),
            power_state: Some(self.power_state(now)),
            ..ListedMachine::new(self.provider_id().parse()?, &self.name)
        })
    }

    /// Returns the VM at `now` in the terms of the driver contract.
    ///
    /// # Errors
    /// The name of its zone is too long for a provider id.
    pub fn describe(&self, now: Instant) -> Result<Machine, ProviderIdError> {
        let provider_id: ProviderId = self.provider_id().parse()?;
        let mut machine = Machine::new(provider_id, &self.name);
        machine.addresses = self.addresses(now);
        machine.power_state = Some(self.power_state(now));
        machine.failure_domain.clone_from(&self.zone);
        Ok(machine)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A VM of cluster `c` that boots at 1000 ms.
    pub fn vm(name: &str) -> Vm {
        Vm {
            id: VmId::unique(),
            name: name.to_owned(),
            tags: [
                (tags::CLUSTER.to_owned(), "c".to_owned()),
                (tags::MACHINE.to_owned(), name.to_owned()),
            ]
            .into(),
            labels: BTreeMap::new(),
            pool: "default".to_owned(),
            size: "small".to_owned(),
            root_fs_gb: 10,
            zone: Some("zone-a".to_owned()),
            address: None,
            address_from: None,
            static_addresses: Vec::new(),
            set_addresses: None,
            source_dest_check: true,
            user_data: UserData::from(b"canary".as_slice()),
            user_data_format: None,
            ordered_at: Instant::from_millis(0),
            boots_at: Instant::from_millis(1000),
            stops_at: None,
            gone_at: None,
            condition: Condition::Sound,
        }
    }

    #[test]
    fn the_id_is_found_again_in_the_provider_id_and_nothing_else_is_one() {
        let vm = vm("a");
        assert_eq!(vm.provider_id().parse(), Ok(vm.id));
        for bad in [
            "",
            "simulated://",
            "simulated://zone-a/7",
            "aws:///i-1",
            &format!("simulated:///{}", vm.id),
        ] {
            assert!(bad.parse::<VmId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_power_state_follows_the_time() {
        let mut vm = vm("a");
        let at = Instant::from_millis;
        assert_eq!(vm.power_state(at(999)), PowerState::Starting);
        assert_eq!(vm.power_state(at(1000)), PowerState::Running);
        vm.stops_at = Some(at(2000));
        assert_eq!(vm.power_state(at(1999)), PowerState::Stopping);
        assert_eq!(vm.power_state(at(2000)), PowerState::Stopped);
        vm.gone_at = Some(at(3000));
        assert_eq!(vm.power_state(at(2500)), PowerState::Stopping);
        vm.condition = Condition::Crashed;
        assert_eq!(vm.power_state(at(2500)), PowerState::Failed);
    }

    /// OPS-11
    #[test]
    fn user_data_is_kept_byte_for_byte_and_not_printed() {
        let vm = vm("a");
        let written = serde_json::to_string(&vm).unwrap();
        assert_eq!(serde_json::from_str::<Vm>(&written).unwrap(), vm);
        assert!(!written.contains("canary") && !format!("{vm:?}").contains("canary"));
    }
}
