//! The identity of a machine at the driver: cluster id, machine id, the identity tags, and the VM record.
//!
//! Pure: no client and no driver.

mod adoption;
#[cfg(test)]
pub mod fixtures;
mod vm_record;
mod vm_state;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::adoption::{Adoption, adopted_tags, given_state, given_tags};
pub use self::vm_record::{InvalidRecord, MadeFrom, VmRecord, decoded, encoded, without_last_known_state};
pub use self::vm_state::{VmEvent, VmState};
use crate::api::reason;
use crate::api::v1alpha1::InfraMachine;
use cmi_driver::tags::{self, ReservedKey};
use cmi_driver::{Capabilities, LastKnownState, ProviderSpec};

/// The identity of one InfraMachine, bound to its namespace and name.
///
/// Namespace and name are included because Cluster API copies annotations from templates and Machines. An
/// identity that was copied to another object identifies no machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MachineId {
    namespace: String,
    name: String,
    id: String,
}

impl MachineId {
    /// Returns the identity from the object's record, if it belongs to this object.
    pub fn of(machine: &InfraMachine) -> Option<Self> {
        Self::of_metadata(&machine.metadata)
    }

    /// Like [`Self::of`], for an object whose spec may be unreadable.
    pub fn of_metadata(metadata: &ObjectMeta) -> Option<Self> {
        Some(VmRecord::of_metadata(metadata).ok()??.machine)
    }

    /// Returns the identity for an object without a record. It is derived from the UID, so it stays the same
    /// after a failed write.
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

    /// Returns whether this identity belongs to the object with this metadata.
    pub fn is_of(&self, metadata: &ObjectMeta) -> bool {
        metadata.namespace.as_deref() == Some(&self.namespace) && metadata.name.as_deref() == Some(&self.name)
    }

    /// The object with this identity, as `<namespace>/<name>`.
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

/// The tags that tell a driver the owner of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityTags {
    /// The value of [`tags::CLUSTER`].
    pub cluster: String,
    /// The value of [`tags::ROLE`].
    pub role: String,
    /// The value of [`tags::MACHINE`]. An adopted VM may lack this tag.
    pub machine: Option<String>,
}

impl IdentityTags {
    /// Returns the tags of a VM that this provider creates.
    pub fn own(cluster_id: &str, role: Role, machine: &MachineId) -> Self {
        Self {
            cluster: cluster_id.to_owned(),
            role: role.tag().to_owned(),
            machine: Some(machine.tag().to_owned()),
        }
    }

    /// Returns the tags in a provider spec. Returns `None` without tags for cluster and role.
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

/// Why a provider spec can't be passed to the driver. The text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// The spec holds a key that only the provider may set.
    #[error("spec.{0}")]
    Reserved(ReservedKey),
    /// The Machine names a failure domain, and the driver has none.
    #[error(
        "the Machine asks for failure domain `{0}`, but the driver declares no failure domains: remove \
        `failureDomain` from the Machine"
    )]
    NoFailureDomains(String),
    /// The spec violates the driver's own schema, or a limit that the CRD schema can't express.
    #[error("{0}")]
    Violation(String),
}

/// Returns the provider spec for the driver: the user's spec with the tags for cluster, role and machine, and
/// with the failure domain.
///
/// # Errors
/// The spec contains a reserved key, or the Machine names a failure domain and the driver declares none.
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

/// Returns the record of a machine. Returns `None` also for an invalid record, which allows no driver call.
pub fn record(machine: &InfraMachine) -> Option<VmRecord> {
    VmRecord::of(machine).ok()?
}

/// Returns the state of a machine's VM. Returns [`VmState::None`] for an unreadable record and for a record
/// that was copied from another object.
pub fn vm_state(machine: &InfraMachine) -> VmState {
    record(machine).map_or(VmState::None, |record| record.state)
}

/// Returns how the VM was made, while this binds later calls.
pub fn bound(machine: &InfraMachine) -> Option<MadeFrom> {
    let is_deleted = machine.metadata.deletion_timestamp.is_some();
    record(machine)?.bound(is_deleted).cloned()
}

/// The driver of the machine's VM, else the driver in the spec. Empty while no driver is known.
pub fn driver_name(machine: &InfraMachine) -> String {
    let recorded = bound(machine).map(|made| made.driver);
    recorded
        .or_else(|| machine.spec.driver.clone())
        .unwrap_or_default()
}

/// The Secret with the credentials for every call: the Secret that the VM was made with, else the Secret in
/// the spec. With a different account, the VM would appear to be gone.
pub fn credentials(machine: &InfraMachine) -> Option<String> {
    match bound(machine) {
        Some(made) => made.secret,
        None => secret_ref(machine).map(str::to_owned),
    }
}

/// Returns a message if the spec names a different Secret from the Secret in use.
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

/// Returns a message if the spec names a different driver from the driver that may have made the VM.
fn changed_driver(machine: &InfraMachine) -> Option<String> {
    let (used, named) = (bound(machine)?.driver, machine.spec.driver.as_deref()?);
    // The API server refuses a change once the VM is known.
    let way_back = match machine.spec.provider_id {
        None => "set spec.driver back, or replace the machine",
        Some(_) => "replace the machine",
    };
    (used != named)
        .then(|| format!("spec.driver names `{named}`, but driver `{used}` may have made the VM: {way_back}"))
}

/// Returns the reason and a message if the spec names a Secret or a driver that is not in use.
pub fn ignored_change(machine: &InfraMachine) -> Option<(&'static str, String)> {
    let secret = changed_secret(machine).map(|message| (reason::SECRET_CHANGED, message));
    secret.or_else(|| changed_driver(machine).map(|message| (reason::DRIVER_CHANGED, message)))
}

fn secret_ref(machine: &InfraMachine) -> Option<&str> {
    let name = machine.spec.secret_ref.as_ref()?.name.as_str();
    (!name.is_empty()).then_some(name)
}

/// The provider spec that the VM was made from or last updated to.
pub fn applied_spec(machine: &InfraMachine) -> Option<ProviderSpec> {
    Some(record(machine)?.made_from?.provider_spec)
}

/// The driver's last known state.
pub fn last_known_state(machine: &InfraMachine) -> Option<LastKnownState> {
    record(machine)?.last_known_state
}

/// The value of an annotation.
pub fn annotation<'a>(machine: &'a InfraMachine, key: &str) -> Option<&'a str> {
    machine
        .metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::annotations;
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

    /// With a different account, the driver would answer NOT_FOUND, and the VM would appear to be gone.
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
        assert_eq!(ignored_change(&refused), None);
        let mut other = of("a", existing(Some("a")));
        other.spec.driver = Some("other".to_owned());
        let (why, message) = ignored_change(&other).unwrap();
        assert_eq!(why, reason::DRIVER_CHANGED);
        assert!(
            message.contains("`other`") && message.contains("`d`"),
            "{message}"
        );
    }
}
