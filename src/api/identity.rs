//! The identity of a machine at the driver: cluster id, machine id, the tags that carry them, and the record
//! of its VM.
//!
//! Pure: no client, no driver.

#[cfg(test)]
pub mod fixtures;
mod vm_record;
mod vm_state;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::vm_record::{InvalidRecord, MadeFrom, VmRecord, decoded, encoded, without_last_known_state};
pub use self::vm_state::{VmEvent, VmState};
use crate::api::annotations;
use crate::api::v1alpha1::InfraMachine;
use cmi_driver::tags::{self, ReservedKey};
use cmi_driver::{Capabilities, LastKnownState, ProviderSpec};

/// The identity of one InfraMachine, bound to its namespace and name.
///
/// Namespace and name are part of it because Cluster API copies annotations from templates and Machines: an
/// identity that was copied to another object identifies no machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MachineId {
    namespace: String,
    name: String,
    id: String,
}

impl MachineId {
    /// Returns the identity that the object's record carries, if it is the object's own.
    pub fn of(machine: &InfraMachine) -> Option<Self> {
        Self::of_metadata(&machine.metadata)
    }

    /// Returns the same for an object whose spec may not be readable.
    pub fn of_metadata(metadata: &ObjectMeta) -> Option<Self> {
        Some(VmRecord::of_metadata(metadata).ok()??.machine)
    }

    /// Returns the identity that an object without one gets: its UID, so that the identity is the same
    /// however often the write fails.
    pub fn derived(machine: &InfraMachine) -> Option<Self> {
        Self::named(&machine.metadata, machine.metadata.uid.as_deref()?)
    }

    fn named(metadata: &ObjectMeta, id: &str) -> Option<Self> {
        let (namespace, name) = (metadata.namespace.clone()?, metadata.name.clone()?);
        (!id.is_empty()).then(|| Self {
            namespace,
            name,
            id: id.to_owned(),
        })
    }

    /// Whether this is the identity of the object with this metadata.
    pub fn is_of(&self, metadata: &ObjectMeta) -> bool {
        metadata.namespace.as_deref() == Some(&self.namespace) && metadata.name.as_deref() == Some(&self.name)
    }

    /// The object that has this identity, as `<namespace>/<name>`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The value of the tag [`tags::MACHINE`].
    pub fn tag(&self) -> &str {
        &self.id
    }
}

impl From<MachineId> for String {
    fn from(id: MachineId) -> Self {
        format!("{}/{}/{}", id.namespace, id.name, id.id)
    }
}

impl TryFrom<String> for MachineId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts: Vec<_> = text.split('/').collect();
        match parts[..] {
            [namespace, name, id] if parts.iter().all(|part| !part.is_empty()) => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                id: id.to_owned(),
            }),
            _ => Err(format!("`{text}` is not <namespace>/<name>/<id>")),
        }
    }
}

/// The role of a machine in its cluster; the value of the tag [`tags::ROLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The machine runs the control plane.
    ControlPlane,
    /// The machine runs workloads.
    Node,
}

impl Role {
    /// The tag's value.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Node => "node",
        }
    }
}

/// The tags by which a driver knows to whom a VM belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityTags {
    /// The value of [`tags::CLUSTER`].
    pub cluster: String,
    /// The value of [`tags::ROLE`].
    pub role: String,
    /// The value of [`tags::MACHINE`]; an adopted VM may be without it.
    pub machine: Option<String>,
}

impl IdentityTags {
    /// Returns the tags of a VM that this provider makes.
    pub fn own(cluster_id: &str, role: Role, machine: &MachineId) -> Self {
        Self {
            cluster: cluster_id.to_owned(),
            role: role.tag().to_owned(),
            machine: Some(machine.tag().to_owned()),
        }
    }

    /// Returns the tags that a provider spec carries, if it names the cluster and the role of the VM.
    pub fn carried_by(spec: &ProviderSpec, capabilities: &Capabilities) -> Option<Self> {
        let mut spec = spec.clone();
        let carried = spec.object_at(&capabilities.tag_path).ok()?;
        let text = |tag| Some(carried.get(tag)?.as_str()?.to_owned());
        Some(Self {
            cluster: text(tags::CLUSTER)?,
            role: text(tags::ROLE)?,
            machine: text(tags::MACHINE),
        })
    }
}

/// Why a provider spec can't be handed to the driver; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// The spec holds a key that only the provider may set.
    #[error("spec.{0}")]
    Reserved(ReservedKey),
    /// The Machine asks for a zone and the driver knows none.
    #[error(
        "the Machine asks for failure domain `{0}`, but the driver declares no failure domains: remove \
        `failureDomain` from the Machine"
    )]
    NoFailureDomains(String),
    /// The spec violates a limit that the schema can't express, or the driver's own schema.
    #[error("{0}")]
    Violation(String),
}

/// Returns the provider spec as the driver gets it: the user's, with the tags of cluster, role and machine,
/// and the failure domain.
///
/// # Errors
/// A reserved key is taken, or the Machine asks for a failure domain and the driver declares none.
pub fn tagged_spec(
    wanted: &ProviderSpec,
    capabilities: &Capabilities,
    identity: &IdentityTags,
    failure_domain: Option<&str>,
) -> Result<ProviderSpec, InvalidSpec> {
    tags::check_free(wanted, capabilities).map_err(InvalidSpec::Reserved)?;
    let mut spec = wanted.clone();
    let tag_map = spec
        .object_at(&capabilities.tag_path)
        .map_err(|pointer| InvalidSpec::Reserved(ReservedKey::TagsAreNoObject(pointer)))?;
    for (tag, value) in [
        (tags::CLUSTER, Some(&identity.cluster)),
        (tags::ROLE, Some(&identity.role)),
        (tags::MACHINE, identity.machine.as_ref()),
    ] {
        if let Some(value) = value {
            tag_map.insert(tag.to_owned(), Value::from(value.as_str()));
        }
    }
    match failure_domain {
        Some(zone) if !capabilities.zones => return Err(InvalidSpec::NoFailureDomains(zone.to_owned())),
        Some(zone) => {
            spec.0.insert(tags::FAILURE_DOMAIN.to_owned(), Value::from(zone));
        }
        None => {}
    }
    Ok(spec)
}

/// Returns the record of a machine; `None` also where no driver may be called because of it.
pub fn record(machine: &InfraMachine) -> Option<VmRecord> {
    VmRecord::of(machine).ok()?
}

/// Returns the state of a machine's VM. A record that can't be read, or that was copied from another object,
/// says nothing of a VM.
pub fn vm_state(machine: &InfraMachine) -> VmState {
    record(machine).map_or(VmState::None, |record| record.state)
}

/// Returns how the VM was made, as far as that binds later calls.
pub fn bound(machine: &InfraMachine) -> Option<MadeFrom> {
    let is_deleted = machine.metadata.deletion_timestamp.is_some();
    record(machine)?.bound(is_deleted).cloned()
}

/// The driver that has a machine's VM, or the driver that the spec names; empty where none is known yet.
pub fn driver_name(machine: &InfraMachine) -> String {
    let recorded = bound(machine).map(|made| made.driver);
    recorded
        .or_else(|| machine.spec.driver.clone())
        .unwrap_or_default()
}

/// Whether this provider keeps `clusterctl move` from moving the machine with this metadata.
pub fn blocks_move(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    let value = annotations.and_then(|all| all.get(annotations::BLOCK_MOVE));
    value.is_some_and(|value| value == annotations::BLOCK_MOVE_VALUE)
}

/// The Secret with the credentials for every call: the Secret that the VM was made with, else the spec's.
/// With another account, the VM would appear to be gone.
pub fn credentials(machine: &InfraMachine) -> Option<String> {
    match bound(machine) {
        Some(made) => made.secret,
        None => secret_ref(machine).map(str::to_owned),
    }
}

/// Returns the message where the spec names another Secret than the one that is used.
pub fn changed_secret(machine: &InfraMachine) -> Option<String> {
    let recorded = bound(machine)?.secret;
    let (recorded, named) = (recorded.as_deref(), secret_ref(machine));
    let quoted = |name: Option<&str>| name.map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
    (recorded != named).then(|| {
        format!(
            "spec.secretRef names {}, but the VM uses the credentials of {} for as long as it may exist: \
                put new credentials of the same account into that Secret, or replace the machine",
            quoted(named),
            quoted(recorded),
        )
    })
}

fn secret_ref(machine: &InfraMachine) -> Option<&str> {
    let name = machine.spec.secret_ref.as_ref()?.name.as_str();
    (!name.is_empty()).then_some(name)
}

/// The provider spec that the VM was made from or last updated to.
pub fn applied_spec(machine: &InfraMachine) -> Option<ProviderSpec> {
    Some(record(machine)?.made_from?.provider_spec)
}

/// The state that the driver wants back with the next call.
pub fn last_known_state(machine: &InfraMachine) -> Option<LastKnownState> {
    record(machine)?.last_known_state
}

/// An annotation of the object.
pub fn annotation<'a>(machine: &'a InfraMachine, key: &str) -> Option<&'a str> {
    machine
        .metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// The state of the adoption of a machine's VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// No adoption is requested, or the VM is the machine's by now.
    None,
    /// An adoption is requested, and no driver has confirmed the VM yet.
    Asked,
    /// An adoption is requested for an object that may have another VM: a create was issued for it.
    TooLate,
}

impl Adoption {
    /// Returns the state for a machine.
    pub fn of(machine: &InfraMachine) -> Self {
        if annotation(machine, annotations::ADOPT).is_none() {
            return Self::None;
        }
        match VmRecord::of(machine) {
            Ok(Some(record)) if record.adopted => Self::None,
            Ok(Some(record)) if record.state != VmState::None => {
                if machine.is_provisioned() {
                    Self::None
                } else {
                    Self::TooLate
                }
            }
            Ok(_) | Err(_) => Self::Asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::{InfraMachineSpec, SecretReference};

    fn machine() -> InfraMachine {
        let mut machine = InfraMachine::new("m1", InfraMachineSpec::default());
        machine.metadata.namespace = Some("ns1".to_owned());
        machine.metadata.uid = Some("u-1".to_owned());
        machine
    }

    fn tagged(spec: &Value, zones: bool, zone: Option<&str>) -> Result<ProviderSpec, InvalidSpec> {
        let id = MachineId::derived(&machine()).unwrap();
        let spec = ProviderSpec(spec.as_object().unwrap().clone());
        let capabilities = Capabilities {
            zones,
            ..Capabilities::minimal()
        };
        let identity = IdentityTags::own("c-1", Role::Node, &id);
        tagged_spec(&spec, &capabilities, &identity, zone)
    }

    /// DRV-03, DRV-08
    #[test]
    fn the_driver_gets_cluster_role_and_machine_as_tags_beside_the_users() {
        let spec = tagged(
            &serde_json::json!({"size": "small", "tags": {"team": "a"}}),
            true,
            Some("z1"),
        )
        .unwrap();
        assert_eq!(
            Value::Object(spec.0),
            serde_json::json!({"size": "small", "failureDomain": "z1", "tags": {
                "team": "a", "kubernetes.io/cluster": "c-1", "kubernetes.io/role": "node",
                "capcmi.io/machine": "u-1"
            }})
        );
    }

    #[test]
    fn a_spec_that_holds_a_reserved_key_is_refused_with_its_place() {
        let error = tagged(
            &serde_json::json!({"tags": {"kubernetes.io/cluster": "x"}}),
            false,
            None,
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("/tags has the reserved tag `kubernetes.io/cluster`"),
            "{error}"
        );
        let error = tagged(&serde_json::json!({"tags": "x"}), false, None).unwrap_err();
        assert!(
            error.to_string().contains("providerSpec/tags must be an object"),
            "{error}"
        );
        assert_eq!(
            tagged(&serde_json::json!({"failureDomain": "z"}), true, None),
            Err(InvalidSpec::Reserved(ReservedKey::FailureDomain))
        );
    }

    #[test]
    fn a_zone_is_refused_where_the_driver_knows_none() {
        assert_eq!(
            tagged(&serde_json::json!({}), false, Some("z1")),
            Err(InvalidSpec::NoFailureDomains("z1".to_owned()))
        );
    }

    /// NOT_FOUND of another account would read as "the VM is gone".
    #[test]
    fn every_call_has_the_credentials_that_the_vm_was_made_with() {
        let of = |named: &str, record: Option<String>| {
            let mut machine = machine();
            machine.spec.secret_ref = Some(SecretReference {
                name: named.to_owned(),
            });
            machine.metadata.annotations =
                record.map(|record| [(annotations::VM_RECORD.to_owned(), record)].into());
            machine
        };
        let made =
            |secret: Option<&str>| serde_json::json!({"driver": "d", "secret": secret, "providerSpec": {}});
        let existing = |secret| Some(fixtures::existing("ns1/m1/u-1", &made(secret)));
        assert_eq!(credentials(&of("a", None)).as_deref(), Some("a"));
        assert_eq!(changed_secret(&of("a", existing(Some("a")))), None);
        let moved = of("b", existing(Some("a")));
        assert_eq!(credentials(&moved).as_deref(), Some("a"));
        assert!(changed_secret(&moved).is_some());
        assert_eq!(
            credentials(&of("a", existing(None))),
            None,
            "it was made without any"
        );
        let refused = serde_json::json!({"name": "Refused"});
        let refused = fixtures::in_state("ns1/m1/u-1", &refused, &made(Some("a")));
        let refused = of("b", Some(refused));
        assert_eq!(credentials(&refused).as_deref(), Some("b"), "there is no VM");
        assert_eq!(changed_secret(&refused), None);
    }
}
