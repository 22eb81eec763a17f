//! Requests and responses of the driver calls.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Code, MachineClass, ProviderSpec, Status};
use crate::named_enum::named_enum;

/// The back end's identifier of a VM, as `Node.spec.providerID` has it, byte for byte. 1–512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId(String);

/// Text that can't be a provider id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderIdError {
    /// A VM without an id can't be found again.
    #[error("the provider id is empty")]
    Empty,
    /// Cluster API takes at most 512 bytes.
    #[error("the provider id has {0} bytes; the limit is 512")]
    TooLong(usize),
}

impl ProviderId {
    /// The most bytes that Cluster API takes.
    pub const MAX_BYTES: usize = 512;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProviderId {
    type Err = ProviderIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.len() {
            0 => Err(ProviderIdError::Empty),
            1..=Self::MAX_BYTES => Ok(Self(text.to_owned())),
            long => Err(ProviderIdError::TooLong(long)),
        }
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// State that a driver gets back with the next call on the same machine; opaque, at most 4 KiB.
#[derive(Clone, PartialEq, Eq)]
pub struct LastKnownState(Vec<u8>);

impl LastKnownState {
    /// The most bytes that are kept.
    pub const MAX_BYTES: usize = 4096;

    /// Returns the state, or `None` when it is empty or longer than [`Self::MAX_BYTES`].
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (1..=Self::MAX_BYTES)
            .contains(&bytes.len())
            .then_some(Self(bytes))
    }

    /// The bytes as the driver gave them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for LastKnownState {
    /// Shows only the size: the state may hold sensitive data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LastKnownState({} bytes)", self.0.len())
    }
}

/// The kind of an address, with Cluster API's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum AddressType {
    /// A name that resolves inside of the back end's network.
    Hostname,
    /// An address that is reached from outside.
    ExternalIP,
    /// An address inside of the back end's network.
    InternalIP,
    /// A name that resolves outside.
    ExternalDNS,
    /// A name that resolves inside.
    InternalDNS,
}

/// One address of a VM.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Address {
    /// The kind of the address.
    #[serde(rename = "type")]
    pub kind: AddressType,
    /// 1–256 bytes.
    pub address: String,
}

named_enum! {
    /// Whether a VM runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
    pub enum PowerState {
        /// Booting.
        Starting,
        /// On.
        Running,
        /// Shutting down.
        Stopping,
        /// Off.
        Stopped,
        /// The back end reports that it will not run again.
        Failed,
    }
}

/// A VM that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its id at the back end.
    pub provider_id: ProviderId,
    /// The name its Node will have (DRV-14).
    pub node_name: String,
    /// Its known addresses.
    pub addresses: Vec<Address>,
    /// Its power state, if the driver knows.
    pub power_state: Option<PowerState>,
    /// Its failure domain, if the driver knows zones.
    pub failure_domain: Option<String>,
    /// The state that the driver gets back with the next call.
    pub last_known_state: Option<LastKnownState>,
}

impl Machine {
    /// Creates a machine with only its two names.
    pub fn new(provider_id: ProviderId, node_name: impl Into<String>) -> Self {
        Self {
            provider_id,
            node_name: node_name.into(),
            addresses: Vec::new(),
            power_state: None,
            failure_domain: None,
            last_known_state: None,
        }
    }
}

/// The machine that a call is about.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineRef {
    /// Unique inside of the cluster that the class's tags name.
    pub name: String,
    /// The class of its VM. The secrets hold credentials and, for a create, the bootstrap data.
    pub class: MachineClass,
}

impl MachineRef {
    /// The machine of this name.
    pub fn new(name: impl Into<String>, class: MachineClass) -> Self {
        Self {
            name: name.into(),
            class,
        }
    }
}

/// Create a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct CreateMachineRequest {
    /// The machine that it is for.
    pub machine: MachineRef,
    /// The state that an earlier call on this machine returned.
    pub last_known_state: Option<LastKnownState>,
}

/// Finish a VM that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct InitializeMachineRequest {
    /// The VM's machine.
    pub machine: MachineRef,
    /// The id of the VM, when it is known.
    pub provider_id: Option<ProviderId>,
    /// The state that an earlier call on this machine returned.
    pub last_known_state: Option<LastKnownState>,
}

/// Delete a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct DeleteMachineRequest {
    /// The VM's machine.
    pub machine: MachineRef,
    /// The id of the VM, when it is known.
    pub provider_id: Option<ProviderId>,
    /// The state that an earlier call on this machine returned.
    pub last_known_state: Option<LastKnownState>,
}

/// A VM is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteMachineResponse {
    /// The state that the driver gets back with the next call.
    pub last_known_state: Option<LastKnownState>,
}

/// Read a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct GetMachineStatusRequest {
    /// The VM's machine.
    pub machine: MachineRef,
    /// The id of the VM, when it is known.
    pub provider_id: Option<ProviderId>,
}

/// Read all VMs of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ListMachinesRequest {
    /// Its tags name the cluster.
    pub class: MachineClass,
}

/// A VM in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMachine {
    /// Its id at the back end.
    pub provider_id: ProviderId,
    /// The name it was created with; empty when the back end has lost it (DRV-36).
    pub machine_name: String,
    /// The value of its tag [`super::tags::CLUSTER`], if the driver reports it.
    pub cluster_id: Option<String>,
    /// The value of its tag [`super::tags::MACHINE`], if the driver reports it: the machine object that the
    /// VM was created for. Without it, the owner of the VM is unknown, and an orphan is reported but never
    /// deleted.
    pub machine_id: Option<String>,
    /// Its creation time by the back end's clock, if the driver reports it.
    pub created_at: Option<Timestamp>,
    /// Its known addresses. Used only if the driver declares [`super::Capabilities::list_has_state`].
    pub addresses: Vec<Address>,
    /// Its power state, if the driver knows. Used like the addresses.
    pub power_state: Option<PowerState>,
}

impl ListedMachine {
    /// Creates a listed VM with only its id and its machine name.
    pub fn new(provider_id: ProviderId, machine_name: impl Into<String>) -> Self {
        Self {
            provider_id,
            machine_name: machine_name.into(),
            cluster_id: None,
            machine_id: None,
            created_at: None,
            addresses: Vec::new(),
            power_state: None,
        }
    }
}

/// Stop the guest.
#[derive(Clone, Debug, PartialEq)]
pub struct ShutDownMachineRequest {
    /// The VM's machine.
    pub machine: MachineRef,
    /// The id of the VM, when it is known.
    pub provider_id: Option<ProviderId>,
    /// The state that an earlier call on this machine returned.
    pub last_known_state: Option<LastKnownState>,
}

/// The guest is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutDownMachineResponse {
    /// The state that the driver gets back with the next call.
    pub last_known_state: Option<LastKnownState>,
}

/// Change hot-updatable fields of a VM (UPD-03).
///
/// A VM may have been adopted without the tag [`tags::MACHINE`](crate::tags::MACHINE). If the driver [can add
/// it](crate::Capabilities::adds_machine_tag), the new spec has the tag and the last applied spec lacks it.
/// Until the update is answered with OK, calls about the VM come without the tag, even if the VM already has
/// it: without the tag, name, cluster and id identify the VM.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateMachineRequest {
    /// The VM's machine, with the new spec.
    pub machine: MachineRef,
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// The last spec that was applied in full.
    pub last_applied_provider_spec: ProviderSpec,
    /// The state that an earlier call on this machine returned.
    pub last_known_state: Option<LastKnownState>,
}

/// Restart a VM that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct RestartMachineRequest {
    /// The VM's machine.
    pub machine: MachineRef,
    /// The id of the VM.
    pub provider_id: ProviderId,
    /// The state that an earlier call on this machine returned.
    pub last_known_state: Option<LastKnownState>,
}

/// Read the console output of a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct GetConsoleRequest {
    /// The VM's machine.
    pub machine: MachineRef,
    /// The id of the VM.
    pub provider_id: ProviderId,
}

/// The latest output of a VM's console. It may hold secrets of the guest: never log it unredacted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Console {
    output: String,
}

impl Console {
    /// The most bytes that are kept.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Returns the last [`Self::MAX_BYTES`] of the output. Bytes that are not UTF-8 are replaced.
    pub fn new(output: &[u8]) -> Self {
        let tail = &output[output.len().saturating_sub(Self::MAX_BYTES)..];
        // The cut may have split a character. At most three bytes of it are left.
        let is_continuation = |byte: &&u8| (**byte & 0b1100_0000) == 0b1000_0000;
        let split = tail.iter().take(3).take_while(is_continuation).count();
        let split = if tail.len() < output.len() { split } else { 0 };
        Self {
            output: String::from_utf8_lossy(&tail[split..]).into_owned(),
        }
    }

    /// The output as text.
    pub fn as_str(&self) -> &str {
        &self.output
    }
}

impl fmt::Debug for Console {
    /// Shows only the size: the output may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Console({} bytes)", self.output.len())
    }
}

/// Read volume ids out of PersistentVolume specs.
#[derive(Clone, Debug, PartialEq)]
pub struct GetVolumeIdsRequest {
    /// `PersistentVolumeSpec` objects as JSON.
    pub pv_specs: Vec<Value>,
}

/// Group and kind of a class of the back end's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineClassKind {
    /// API group.
    pub api_group: String,
    /// Kind.
    pub kind: String,
}

/// Convert a class of the back end's own kind.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateMachineClassForMigrationRequest {
    /// The object to read.
    pub provider_specific_machine_class: Map<String, Value>,
    /// The class to fill; name and metadata are left unchanged.
    pub machine_class: Map<String, Value>,
    /// The kind of the object.
    pub class_kind: MachineClassKind,
}

/// Read the failure domains of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct ListZonesRequest {
    /// The class of a possible machine, and credentials.
    pub class: MachineClass,
}

/// Read the resources of one machine of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribeClassRequest {
    /// The class of a possible machine, and credentials.
    pub class: MachineClass,
}

/// Name and version of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// Domain-name form, at most 63 bytes: `simulated.capcmi.io`.
    pub name: String,
    /// Semantic version by custom; opaque.
    pub version: String,
    /// Further properties that the plugin reports.
    pub manifest: BTreeMap<String, String>,
}

impl PluginInfo {
    /// Creates the info of a driver without further properties.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            manifest: BTreeMap::new(),
        }
    }
}

/// Whether a driver can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It is healthy but has not finished starting.
    NotReady,
}

impl Readiness {
    /// Interprets the answer to a probe: a driver without Probe is ready (CMI-71).
    ///
    /// # Errors
    /// Any error other than UNIMPLEMENTED.
    pub fn from_probe(answer: Result<Self, Status>) -> Result<Self, Status> {
        match answer {
            Err(status) if status.code() == Code::Unimplemented => Ok(Self::Ready),
            answer => answer,
        }
    }
}

/// A failure domain of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// The name in a Machine's failure domain, 1–256 bytes.
    pub name: String,
    /// Whether control-plane machines may be placed there.
    pub control_plane: bool,
    /// Further attributes that the back end reports.
    pub attributes: BTreeMap<String, String>,
}

/// Resources of one machine of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassDescription {
    /// Kubernetes quantities by resource name: `cpu: "4"`, `memory: "16Gi"`.
    pub capacity: BTreeMap<String, String>,
    /// `amd64`, `arm64`, `s390x` or `ppc64le`.
    pub architecture: Option<String>,
    /// `linux` or `windows`.
    pub operating_system: Option<String>,
}

crate::for_each_call!(crate::request::requests);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_id_is_neither_empty_nor_longer_than_cluster_api_takes() {
        assert_eq!("".parse::<ProviderId>(), Err(ProviderIdError::Empty));
        assert_eq!(
            "x".repeat(513).parse::<ProviderId>(),
            Err(ProviderIdError::TooLong(513))
        );
        assert_eq!("x".repeat(512).parse::<ProviderId>().unwrap().as_str().len(), 512);
    }

    #[test]
    fn a_last_known_state_that_is_too_long_is_not_kept() {
        assert_eq!(LastKnownState::new(vec![0; 4097]), None);
        assert_eq!(LastKnownState::new(vec![]), None);
        assert!(LastKnownState::new(vec![0; 4096]).is_some());
    }

    #[test]
    fn a_console_keeps_the_end_of_its_output_in_whole_characters() {
        let long = "ä".repeat(Console::MAX_BYTES) + "x";
        let kept = Console::new(long.as_bytes());
        assert_eq!(kept.as_str().len(), Console::MAX_BYTES - 1);
        assert!(kept.as_str().starts_with('ä') && kept.as_str().ends_with("äx"));
        assert_eq!(Console::new(b"a\xffb").as_str(), "a\u{fffd}b");
        assert_eq!(format!("{:?}", Console::new(b"canary")), "Console(6 bytes)");
    }
}
