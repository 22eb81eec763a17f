//! The identity of a machine at the driver: cluster id, machine id, the tags that carry them, and the notes
//! about its VM.
//!
//! Pure: no client, no driver.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::api::v1alpha1::InfraMachine;
use crate::api::{VmExistence, annotations};
use cmi_driver::tags::{self, ReservedKey};
use cmi_driver::{Capabilities, LastKnownState, ProviderSpec};

/// The identity of one InfraMachine, bound to its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineId {
    namespace: String,
    name: String,
    id: String,
}

impl MachineId {
    /// Returns the identity that the object carries, if it is the object's own.
    ///
    /// An identity of another namespace or name was copied (Cluster API propagates annotations) and
    /// identifies no machine.
    pub fn of(machine: &InfraMachine) -> Option<Self> {
        Self::of_metadata(&machine.metadata)
    }

    /// Returns the same for an object whose spec may not be readable.
    pub fn of_metadata(metadata: &ObjectMeta) -> Option<Self> {
        let carried = metadata.annotations.as_ref()?.get(annotations::MACHINE_ID)?;
        let own = Self::named(metadata, carried.rsplit('/').next()?)?;
        (own.annotation() == *carried).then_some(own)
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

    /// The value of the annotation.
    pub fn annotation(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.name, self.id)
    }

    /// The value of the tag [`tags::MACHINE`].
    pub fn tag(&self) -> &str {
        &self.id
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

/// Whether a VM of this object may exist. An object that never got an identity, or carries one that was
/// copied from another object, has none; an object that has an identity and has lost the note may have one.
pub fn vm_existence(machine: &InfraMachine) -> VmExistence {
    if MachineId::of(machine).is_none() {
        return VmExistence::None;
    }
    annotation(machine, annotations::VM_EXISTENCE).map_or(VmExistence::MayExist, VmExistence::from_annotation)
}

/// The driver that a create may have been issued to; without such a note, the spec says which driver is
/// meant.
pub fn recorded_driver(machine: &InfraMachine) -> Option<&str> {
    annotation(machine, annotations::DRIVER).filter(|_| is_bound(machine))
}

/// The driver that has a machine's VM, or the driver that the spec names; empty where none is known yet.
pub fn driver_name(machine: &InfraMachine) -> &str {
    recorded_driver(machine)
        .or(machine.spec.driver.as_deref())
        .unwrap_or_default()
}

/// The Secret that is written down as the one with the VM's credentials, when a VM may exist; an empty name
/// where the VM was made without credentials.
pub fn recorded_secret(machine: &InfraMachine) -> Option<&str> {
    annotation(machine, annotations::SECRET).filter(|_| is_bound(machine))
}

/// Whether the notes of a create count, and not the spec: where there may be a VM, and for the deletion of
/// anything else that was made before a create was refused.
fn is_bound(machine: &InfraMachine) -> bool {
    match vm_existence(machine) {
        VmExistence::MayExist => true,
        VmExistence::Refused => machine.metadata.deletion_timestamp.is_some(),
        VmExistence::None => false,
    }
}

/// Whether this provider keeps `clusterctl move` from moving the machine with this metadata.
pub fn blocks_move(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    let value = annotations.and_then(|all| all.get(annotations::BLOCK_MOVE));
    value.is_some_and(|value| value == annotations::BLOCK_MOVE_VALUE)
}

/// Whether an update was issued whose end was not written down.
pub fn is_update_issued(machine: &InfraMachine) -> bool {
    annotation(machine, annotations::UPDATE_ISSUED).is_some() && MachineId::of(machine).is_some()
}

/// The Secret with the credentials for every call: the Secret that the VM was made with, else the spec's.
/// With another account, the VM would appear to be gone.
pub fn credentials(machine: &InfraMachine) -> Option<&str> {
    recorded_secret(machine)
        .or(secret_ref(machine))
        .filter(|name| !name.is_empty())
}

/// Returns the message where the spec names another Secret than the one that is used.
pub fn changed_secret(machine: &InfraMachine) -> Option<String> {
    let recorded = recorded_secret(machine)?;
    let named = secret_ref(machine).unwrap_or_default();
    let quoted = |name: &str| match name {
        "" => "none".to_owned(),
        name => format!("`{name}`"),
    };
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
    let reference = machine.spec.secret_ref.as_ref()?;
    Some(reference.name.as_str())
}

/// The provider spec that the VM was made from, when a VM may exist.
pub fn applied_spec(machine: &InfraMachine) -> Option<ProviderSpec> {
    serde_json::from_str(annotation(machine, annotations::APPLIED_PROVIDER_SPEC)?).ok()
}

/// The state that the driver wants back with the next call; nothing where the annotation holds a value that
/// this provider never writes.
pub fn last_known_state(machine: &InfraMachine) -> Option<LastKnownState> {
    let text = annotation(machine, annotations::LAST_KNOWN_STATE)?;
    LastKnownState::new(BASE64_STANDARD.decode(text).ok()?)
}

/// Returns the annotation that [`last_known_state`] reads.
pub fn last_known_state_annotation(state: &LastKnownState) -> (&'static str, String) {
    (
        annotations::LAST_KNOWN_STATE,
        BASE64_STANDARD.encode(state.as_bytes()),
    )
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
    /// No adoption is requested.
    None,
    /// An adoption is requested, and no driver has confirmed the VM yet.
    Asked,
    /// An adoption is requested for an object that may have another VM: a create was issued for it, or a VM
    /// with another id was confirmed.
    TooLate,
    /// The driver has confirmed the VM: it is the machine's.
    Confirmed,
}

impl Adoption {
    /// Returns the state for a machine. A machine whose VM was handed to Cluster API has its VM, and adopts
    /// none.
    pub fn of(machine: &InfraMachine) -> Self {
        if annotation(machine, annotations::ADOPT).is_none() {
            return Self::None;
        }
        let named = machine.spec.provider_id.as_deref();
        match vm_existence(machine) {
            VmExistence::None => Self::Asked,
            VmExistence::MayExist | VmExistence::Refused if machine.is_provisioned() => Self::None,
            VmExistence::MayExist if named.is_some() && adopted_id(machine) == named => Self::Confirmed,
            VmExistence::MayExist | VmExistence::Refused => Self::TooLate,
        }
    }
}

/// The id of the adopted VM, which the driver has confirmed as this machine's.
pub fn adopted_id(machine: &InfraMachine) -> Option<&str> {
    annotation(machine, annotations::ADOPTED).filter(|_| vm_existence(machine) == VmExistence::MayExist)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::{InfraMachineSpec, SecretReference};

    fn machine(annotations: &[(&str, &str)]) -> InfraMachine {
        let mut machine = InfraMachine::new("m1", InfraMachineSpec::default());
        machine.metadata.namespace = Some("ns1".to_owned());
        machine.metadata.uid = Some("u-1".to_owned());
        machine.metadata.annotations = Some(
            annotations
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        );
        machine
    }

    fn tagged(spec: &Value, zones: bool, zone: Option<&str>) -> Result<ProviderSpec, InvalidSpec> {
        let id = MachineId::derived(&machine(&[])).unwrap();
        let spec = ProviderSpec(spec.as_object().unwrap().clone());
        let capabilities = Capabilities {
            zones,
            ..Capabilities::minimal()
        };
        let identity = IdentityTags::own("c-1", Role::Node, &id);
        tagged_spec(&spec, &capabilities, &identity, zone)
    }

    #[test]
    fn an_identity_that_was_copied_from_another_object_identifies_no_machine() {
        assert_eq!(
            MachineId::of(&machine(&[(annotations::MACHINE_ID, "ns1/m2/u-9")])),
            None
        );
        assert_eq!(
            MachineId::of(&machine(&[(annotations::MACHINE_ID, "ns2/m1/u-9")])),
            None
        );
        let own = MachineId::of(&machine(&[(annotations::MACHINE_ID, "ns1/m1/u-9")])).unwrap();
        assert_eq!(own.tag(), "u-9");
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

    /// CTL-01
    #[test]
    fn the_state_of_a_driver_is_read_back_as_it_was_written_and_what_is_no_state_is_none() {
        let state = LastKnownState::new(vec![0, 0xC0, 0xFF]).unwrap();
        let (key, text) = last_known_state_annotation(&state);
        assert_eq!(last_known_state(&machine(&[(key, text.as_str())])), Some(state));
        for nothing in ["no base64!", ""] {
            assert_eq!(last_known_state(&machine(&[(key, nothing)])), None);
        }
        assert_eq!(last_known_state(&machine(&[])), None);
    }

    /// NOT_FOUND of another account would read as "the VM is gone".
    #[test]
    fn every_call_has_the_credentials_that_the_vm_was_made_with() {
        const OWNED: &[(&str, &str)] = &[
            (annotations::MACHINE_ID, "ns1/m1/u-1"),
            (annotations::VM_EXISTENCE, "may-exist"),
        ];
        let of = |named: &str, notes: &[(&str, &str)]| {
            let mut machine = machine(notes);
            machine.spec.secret_ref = Some(SecretReference {
                name: named.to_owned(),
            });
            machine
        };
        let with = |secret: &'static str| [OWNED, &[(annotations::SECRET, secret)]].concat();
        assert_eq!(credentials(&of("a", &[])), Some("a"));
        assert_eq!(changed_secret(&of("a", &with("a"))), None);
        let moved = of("b", &with("a"));
        assert_eq!(credentials(&moved), Some("a"));
        assert!(changed_secret(&moved).is_some());
        assert_eq!(credentials(&of("a", &with(""))), None, "it was made without any");
        let refused = of(
            "b",
            &[
                (annotations::MACHINE_ID, "ns1/m1/u-1"),
                (annotations::VM_EXISTENCE, "none"),
                (annotations::SECRET, "a"),
            ],
        );
        assert_eq!(credentials(&refused), Some("b"), "there is no VM");
        assert_eq!(changed_secret(&refused), None);
        assert_eq!(
            credentials(&of("a", OWNED)),
            Some("a"),
            "nothing was written down yet"
        );
    }
}
