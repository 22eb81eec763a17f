//! The next steps for an operator. Pure.

use std::collections::HashSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::machine::MachineReport;
use super::owners::OwnerState;
use super::vm::VmAnswer;
use crate::observed_vm::ObservedVm;
use capcmi::api::conditions::{self, ConditionStatus};
use capcmi::api::identity::{self, driver_name};
use capcmi::api::reason::{self, Reason};
use capcmi::api::v1alpha1::{InfraMachine, OperationState};
use capcmi::api::{ObjectMetaExt as _, annotations};

/// Returns the next steps for a machine, most important first. The list is never empty.
pub(super) fn steps(facts: &MachineReport, now: Timestamp) -> Vec<String> {
    let machine = &facts.machine;
    let status = machine.status.clone().unwrap_or_default();
    let shown = |type_| conditions::get(&status.conditions, type_);
    let is_false = |type_| shown(type_).filter(|shown| shown.status == ConditionStatus::False.as_str());
    let mut steps = Vec::new();
    if conditions::is_true(&status.conditions, conditions::PAUSED) {
        steps.push(of_pause(facts));
    }
    let summary = if machine.metadata.deletion_timestamp.is_some() {
        shown(conditions::DELETING)
    } else {
        is_false(conditions::READY)
    };
    let others = [
        conditions::VIRTUAL_MACHINE_CREATED,
        conditions::DRIVER_REACHABLE,
        conditions::VIRTUAL_MACHINE_RUNNING,
        conditions::VIRTUAL_MACHINE_UP_TO_DATE,
        conditions::NODE_JOINED,
        conditions::NOT_READY_TAINT_REMOVED,
        conditions::VOLUMES_DRAINED,
    ];
    let others = others.into_iter().filter_map(is_false);
    for shown in summary.into_iter().chain(others) {
        let step = match shown.reason.as_str() {
            reason::PAUSED => None,
            reason::CREATION_TIMED_OUT => last_code(machine)
                .and_then(of_reason)
                .or_else(|| of_reason(&shown.reason)),
            reason::DRIVER_NOT_CONFIGURED if identity::bound(machine).is_some() => {
                Some(of_driver_taken_away(machine))
            }
            why => of_reason(why),
        };
        let step = step.map(|step| with_driver(&step, &driver_name(machine)));
        steps.extend(step.map(|step| step.replace("inframachine NAME", &selector(machine))));
    }
    let mut said = HashSet::new();
    steps.retain(|step| said.insert(step.clone()));
    steps.extend(of_vm(facts));
    if steps.is_empty() {
        steps.push(without_remedy(facts, summary, now));
    }
    steps
}

fn last_code(machine: &InfraMachine) -> Option<&str> {
    machine.status.as_ref()?.last_operation.as_ref()?.code.as_deref()
}

/// The object, as kubectl takes it.
fn selector(machine: &InfraMachine) -> String {
    let meta = &machine.metadata;
    let name = meta.name();
    let namespace = meta.namespace();
    format!("inframachine {name} --namespace {namespace}")
}

/// The step, with the driver's name in its commands where that is known.
pub(super) fn with_driver(step: &str, driver: &str) -> String {
    if driver.is_empty() {
        return step.to_owned();
    }
    step.replace("describe driver NAME", &format!("describe driver {driver}"))
}

/// The step when the driver that has the VM, or may have it, is not configured: no other driver can take its
/// place.
fn of_driver_taken_away(machine: &InfraMachine) -> String {
    let last_resort = if machine.metadata.deletion_timestamp.is_some() {
        format!(
            " If the driver is gone for good, delete the VM at its back end by hand, and only then release \
                the object: kubectl annotate inframachine NAME {}=true",
            annotations::FORCE_DELETE
        )
    } else {
        String::new()
    };
    format!(
        "The driver `{}`, which has the VM, is not configured for this namespace. Add it to the drivers file \
            again and restart the provider: another driver cannot take over the VM.{last_resort}",
        driver_name(machine)
    )
}

fn of_pause(facts: &MachineReport) -> String {
    let annotations = facts.machine.metadata.annotations.as_ref();
    let is_annotated = annotations.is_some_and(|all| all.contains_key(annotations::PAUSED));
    let of_cluster = facts
        .cluster
        .as_ref()
        .is_ok_and(|cluster| cluster.paused)
        .then(|| "set spec.paused of the Cluster to false".to_owned());
    let of_machine = is_annotated.then(|| format!("remove the annotation {}", annotations::PAUSED));
    let ends: Vec<_> = of_cluster.into_iter().chain(of_machine).collect();
    if ends.is_empty() {
        return "The pause has ended, and the status does not show it yet: wait for the next reconcile."
            .to_owned();
    }
    format!(
        "The machine is paused. To resume, {}, unless `clusterctl move` is running.",
        ends.join(" and ")
    )
}

/// The step that the driver's view of the VM adds.
fn of_vm(facts: &MachineReport) -> Option<String> {
    let machine = &facts.machine;
    let is_up = machine.is_provisioned() && machine.metadata.deletion_timestamp.is_none();
    match &facts.vm {
        VmAnswer::Observed(ObservedVm::Absent) | VmAnswer::Listed(None)
            if is_up && !machine.has_vanished() =>
        {
            let text = "The driver does not find the VM, and the status does not show that yet: two lists \
                and a look-up must confirm it. Check again in a few minutes.";
            Some(text.to_owned())
        }
        VmAnswer::Observed(ObservedVm::Present(_)) if machine.has_vanished() => Some(
            "The driver finds the VM again: the next list resets the reason `VirtualMachineVanished`."
                .to_owned(),
        ),
        _ => None,
    }
}

/// Returns the advice when no condition has a remedy.
fn without_remedy(facts: &MachineReport, summary: Option<&Condition>, now: Timestamp) -> String {
    let machine = &facts.machine;
    let status = machine.status.clone().unwrap_or_default();
    if conditions::is_true(&status.conditions, conditions::READY) {
        let text = if is_without_node(facts) {
            "The VM is up, and its Machine has no Node yet. If this lasts, compare the ProviderIDs: see \
                docs/operate/no-node.md."
        } else {
            "Nothing: the machine is in the desired state."
        };
        return text.to_owned();
    }
    if status.conditions.is_empty() {
        let age = machine
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |created| now.duration_since(created.0).as_secs());
        if age < 60 {
            return "Wait: the object is new, and the provider has not reported a status yet.".to_owned();
        }
        return "The provider has not reported a status. Check that it runs and leads (`kubectl -n \
            capcmi-system get lease,pods`; a crashed leader stays the holder), that it watches this \
            namespace and object (--namespace, --watch-filter), and that the Cluster exists."
            .to_owned();
    }
    let cause = summary.and_then(|shown| Reason::named(&shown.reason));
    let cause = cause
        .map(|reason| format!("{} ", reason.cause))
        .unwrap_or_default();
    let is_processing = status
        .last_operation
        .is_some_and(|last| last.state == OperationState::Processing);
    if is_processing {
        return format!("{cause}Wait. If this takes too long, check the logs of the driver.");
    }
    format!("{cause}Wait.")
}

/// Whether Cluster API is still waiting for the Node of a running VM.
fn is_without_node(facts: &MachineReport) -> bool {
    let is_provisioned = |phase: &Option<String>| phase.as_deref() == Some("Provisioned");
    facts.owners.iter().any(|owner| {
        owner.kind == "Machine"
            && matches!(&owner.state, OwnerState::There { phase, .. } if is_provisioned(phase))
    })
}

/// Returns cause and remedy of a reason; `None` if no action is needed.
pub(super) fn of_reason(why: &str) -> Option<String> {
    let reason = Reason::named(why)?;
    reason.remedy.map(|_| reason.explanation())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reasons_with_a_remedy_ask_for_a_step() {
        let step = of_reason(reason::WAITING_FOR_CONTROL_PLANE_ENDPOINT).unwrap();
        assert!(step.starts_with("Neither the InfraCluster"), "{step}");
        assert!(
            step.ends_with("Set `spec.controlPlaneEndpoint` of the InfraCluster."),
            "{step}"
        );
        assert_eq!(of_reason(reason::READY), None);
        assert_eq!(of_reason("Other"), None);
    }
}
