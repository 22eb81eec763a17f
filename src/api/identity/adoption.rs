//! Adoption of existing VMs, which an administrator requests with an annotation. Pure.
//!
//! Until the driver confirms such a VM, the controller writes only the status: no finalizer and no record. An
//! object whose VM was never confirmed is therefore deleted without a driver call.

use serde::Deserialize;

use super::{IdentityTags, Role, VmRecord, VmState, annotation, decoded};
use crate::api::annotations;
use crate::api::v1alpha1::InfraMachine;
use cmi_driver::{Capabilities, LastKnownState, tags};

/// The state of the adoption of a machine's VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// No adoption is requested, or the VM is already adopted.
    None,
    /// An adoption is requested, and the driver has not confirmed the VM yet.
    Asked,
    /// An adoption is requested, but a create was issued for the object, so it may have its own VM.
    TooLate,
}

impl Adoption {
    /// Returns the adoption state of a machine.
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

/// The value of the adopt annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    #[serde(rename = "kubernetes.io/cluster")]
    cluster: Option<String>,
    #[serde(rename = "kubernetes.io/role")]
    role: Option<String>,
    #[serde(rename = "capcmi.io/machine")]
    machine: Option<String>,
    /// The last known state of the driver, in base64.
    #[serde(rename = "lastKnownState")]
    last_known_state: Option<String>,
}

impl Given {
    fn of(machine: &InfraMachine) -> Result<Self, String> {
        let text = annotation(machine, annotations::ADOPT).unwrap_or_default();
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map_err(|error| {
            format!(
                "annotation {} is not a JSON object with the tags that the VM carries, of {}: {error}",
                annotations::ADOPT,
                tags::RESERVED.join(", ")
            )
        })
    }
}

/// Returns the driver's last known state from the annotation.
///
/// # Errors
/// Describes why the annotation is invalid.
pub fn given_state(machine: &InfraMachine) -> Result<Option<LastKnownState>, String> {
    let Some(text) = Given::of(machine)?.last_known_state else {
        return Ok(None);
    };
    let decoded = decoded(&text);
    decoded.map(Some).map_err(|error| {
        let key = annotations::ADOPT;
        format!("`lastKnownState` of annotation {key} is not a driver's state in base64: {error}")
    })
}

/// Returns the tags that the annotation gives for the VM. A missing cluster or role defaults to the tag that
/// this provider sets on its own VMs. A missing machine identity means that the VM has no such tag.
///
/// # Errors
/// Describes why the annotation is invalid.
pub fn given_tags(machine: &InfraMachine, cluster_id: &str, role: Role) -> Result<IdentityTags, String> {
    let given = Given::of(machine)?;
    let all = [&given.cluster, &given.role, &given.machine];
    if all.into_iter().flatten().any(|value| value.trim().is_empty()) {
        return Err(format!(
            "annotation {} has a tag without a value: omit tags that the VM does not carry",
            annotations::ADOPT
        ));
    }
    Ok(IdentityTags {
        cluster: given.cluster.unwrap_or_else(|| cluster_id.to_owned()),
        role: given.role.unwrap_or_else(|| role.tag().to_owned()),
        machine: given.machine,
    })
}

/// Returns the tags of an adopted VM, and `None` for any other VM. These are the tags that were recorded when
/// the driver confirmed the VM, even if the annotation has changed since. The machine's identity is added
/// where the driver supports it.
///
/// # Errors
/// The recorded tags are unknown. The provider's own tags would change the VM.
pub fn adopted_tags(record: &VmRecord, capabilities: &Capabilities) -> Result<Option<IdentityTags>, String> {
    let Some(made) = record.made_from.as_ref().filter(|_| record.adopted) else {
        return Ok(None);
    };
    let carried = IdentityTags::carried_by(&made.provider_spec, capabilities).ok_or_else(|| {
        format!(
            "the recorded provider spec of the adopted VM has no tags at `{}`, where the driver expects \
                them, so the VM is not changed: restore the tags in annotation {}",
            capabilities.tag_path,
            annotations::VM_RECORD
        )
    })?;
    let added = capabilities
        .adds_machine_tag()
        .then(|| record.machine.tag().to_owned());
    Ok(Some(IdentityTags {
        machine: carried.machine.or(added),
        ..carried
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::InfraMachineSpec;

    fn given(value: &str) -> Result<IdentityTags, String> {
        let mut machine = InfraMachine::new("m", InfraMachineSpec::default());
        machine.metadata.annotations = Some([(annotations::ADOPT.to_owned(), value.to_owned())].into());
        given_tags(&machine, "c-1", Role::Node)
    }

    #[test]
    fn missing_adoption_tags_default_to_the_cluster_except_the_identity() {
        let tags = |cluster: &str, role: &str, machine: Option<&str>| {
            Ok(IdentityTags {
                cluster: cluster.to_owned(),
                role: role.to_owned(),
                machine: machine.map(str::to_owned),
            })
        };
        for nothing in ["", " ", "{}"] {
            assert_eq!(given(nothing), tags("c-1", "node", None), "`{nothing}`");
        }
        assert_eq!(
            given(
                r#"{"kubernetes.io/cluster": "old", "kubernetes.io/role": "worker",
                    "capcmi.io/machine": "u-9"}"#
            ),
            tags("old", "worker", Some("u-9"))
        );
    }

    #[test]
    fn an_invalid_adopt_annotation_is_refused_with_the_allowed_keys() {
        for wrong in ["true", "[]", r#"{"team": "a"}"#, r#"{"kubernetes.io/role": 1}"#] {
            let error = given(wrong).unwrap_err();
            assert!(
                error.contains(annotations::ADOPT) && error.contains(tags::CLUSTER),
                "{error}"
            );
        }
        let error = given(r#"{"kubernetes.io/cluster": " "}"#).unwrap_err();
        assert!(error.contains("without a value"), "{error}");
    }
}
