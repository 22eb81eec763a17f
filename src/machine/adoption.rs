//! VMs that something else created and that a machine adopts because an administrator asks for it. Pure.
//!
//! Until the driver has confirmed such a VM, only the status of the object is written: neither finalizer nor
//! identity. An object whose VM was never confirmed is therefore deleted without a driver call. The sign of a
//! confirmation is the id that the driver confirmed, written together with the identity: the identity and the
//! note that a VM may exist are not enough, since a create writes them as well.

use serde::Deserialize;

use crate::api::v1alpha1::InfraMachine;
use crate::api::{VmExistence, annotations};
use crate::identity::{self, Adoption, IdentityTags, MachineId, Role, adopted_id};
use cmi_driver::{Capabilities, tags};

/// Returns the id of the machine's own VM, as far as it is known. An id that is only to be adopted is not the
/// machine's own.
pub fn own_provider_id(machine: &InfraMachine) -> Option<&str> {
    match Adoption::of(machine) {
        Adoption::Asked => None,
        Adoption::TooLate => adopted_id(machine),
        Adoption::None | Adoption::Confirmed => machine.spec.provider_id.as_deref(),
    }
}

/// The tags of a VM, as the administrator gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenTags {
    #[serde(rename = "kubernetes.io/cluster")]
    cluster: Option<String>,
    #[serde(rename = "kubernetes.io/role")]
    role: Option<String>,
    #[serde(rename = "capcmi.io/machine")]
    machine: Option<String>,
}

/// Returns the tags that the VM carries according to the annotation. A cluster or role that the annotation
/// leaves out is the one of this provider's own VMs; without an identity in the annotation, the VM carries
/// none.
///
/// # Errors
/// Says in words what is wrong with the annotation.
pub fn given_tags(machine: &InfraMachine, cluster_id: &str, role: Role) -> Result<IdentityTags, String> {
    let text = identity::annotation(machine, annotations::ADOPT).unwrap_or_default();
    let given = if text.trim().is_empty() {
        GivenTags::default()
    } else {
        serde_json::from_str(text).map_err(|error| {
            format!(
                "annotation {} is not a JSON object with the tags that the VM carries, of {}: {error}",
                annotations::ADOPT,
                tags::RESERVED.join(", ")
            )
        })?
    };
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

/// Returns the tags that the VM of a machine has to carry, where the VM was adopted and belongs to the
/// machine by now: the tags that were written down when the driver confirmed the VM, whatever became of the
/// annotation, and the machine's identity where the driver can add it.
///
/// # Errors
/// Says in words that the tags of such a VM are unknown: the provider's own tags would change the VM.
pub fn adopted_tags(
    machine: &InfraMachine,
    capabilities: &Capabilities,
) -> Result<Option<IdentityTags>, String> {
    let Some(id) =
        MachineId::of(machine).filter(|_| identity::vm_existence(machine) == VmExistence::MayExist)
    else {
        return Ok(None);
    };
    let applied = identity::applied_spec(machine);
    let carried = applied.and_then(|applied| IdentityTags::carried_by(&applied, capabilities));
    if adopted_id(machine).is_none() {
        let is_known = machine.spec.provider_id.is_some();
        // The tags of a create carry the machine's identity, and are left out.
        return Ok(carried.filter(|carried| is_known && carried.machine.as_deref() != Some(id.tag())));
    }
    let identified = |carried: IdentityTags| {
        let added = capabilities.adds_machine_tag().then(|| id.tag().to_owned());
        Some(IdentityTags {
            machine: carried.machine.or(added),
            ..carried
        })
    };
    carried.map(identified).ok_or_else(|| {
        format!(
            "annotation {} of an adopted VM has no tags at `{}`, where the driver expects them, so the VM \
                is not changed: restore the tags in the annotation",
            annotations::APPLIED_PROVIDER_SPEC,
            capabilities.tag_path
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::machine;

    fn given(value: &str) -> Result<IdentityTags, String> {
        let machine = machine().annotated(annotations::ADOPT, value).build();
        given_tags(&machine, "c-1", Role::Node)
    }

    #[test]
    fn what_the_annotation_leaves_out_is_the_clusters_and_an_identity_is_only_what_it_says() {
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
    fn an_annotation_that_says_something_else_is_refused_with_what_may_stand_there() {
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
