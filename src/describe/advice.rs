//! What an operator should do next. Pure.

use std::collections::HashSet;

use jiff::Timestamp;

use super::machine::MachineReport;
use super::vm::VmAnswer;
use crate::api::conditions::{self, ConditionStatus, reason};
use crate::api::v1alpha1::{InfraMachine, OperationState};
use crate::api::{ObjectMetaExt as _, annotations};
use crate::configured_driver::ObservedVm;
use crate::identity::{self, driver_name};
use cmi_driver::Code;

/// What an operator should do for a machine, what matters most first; never nothing.
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
        conditions::VIRTUAL_MACHINE_UP_TO_DATE,
        conditions::CREDENTIALS_MOVABLE,
        conditions::NOT_READY_TAINT_REMOVED,
        conditions::VOLUMES_DRAINED,
    ];
    let others = others.into_iter().filter_map(is_false);
    for shown in summary.into_iter().chain(others) {
        let step = match shown.reason.as_str() {
            reason::CREATION_TIMED_OUT => last_code(machine).and_then(of_reason).map(str::to_owned),
            reason::DRIVER_NOT_CONFIGURED if identity::recorded_driver(machine).is_some() => {
                Some(of_driver_taken_away(machine))
            }
            why => of_reason(why).map(str::to_owned),
        };
        let step = step.map(|step| with_driver(&step, driver_name(machine)));
        steps.extend(step.map(|step| step.replace("inframachine NAME", &selector(machine))));
    }
    let mut said = HashSet::new();
    steps.retain(|step| said.insert(step.clone()));
    steps.extend(of_vm(facts));
    if steps.is_empty() {
        steps.push(of_silence(machine, now));
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

/// The step where the driver of a VM that exists, or may, is not configured: no other driver can take its
/// place.
fn of_driver_taken_away(machine: &InfraMachine) -> String {
    let last_resort = if machine.metadata.deletion_timestamp.is_some() {
        format!(
            " If that driver is gone for good, delete the VM by hand at its back end, and only then let the \
                object go: kubectl annotate inframachine NAME {}=true",
            annotations::FORCE_DELETE
        )
    } else {
        String::new()
    };
    format!(
        "Have an administrator put the driver `{}` back into the drivers file, for this namespace, and \
            restart the provider: a VM stays at the driver that made it.{last_resort}",
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
    let of_machine = is_annotated.then(|| format!("take the annotation {} away", annotations::PAUSED));
    let ends: Vec<_> = of_cluster.into_iter().chain(of_machine).collect();
    if ends.is_empty() {
        return "It was paused when its status was written, and is not any more: the provider goes on when it \
            sees that.".to_owned();
    }
    format!(
        "It is paused, and nothing is done for it: {}, unless clusterctl moves it just now.",
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
            let text = "The driver does not see the VM now, and the status does not say so yet: the provider \
                believes it after two lists and a look-up. Look again in some minutes.";
            Some(text.to_owned())
        }
        VmAnswer::Observed(ObservedVm::Present(_)) if machine.has_vanished() => Some(
            "The driver sees the VM again: the next list takes `VirtualMachineVanished` back.".to_owned(),
        ),
        _ => None,
    }
}

/// What to do where no condition asks for anything.
fn of_silence(machine: &InfraMachine, now: Timestamp) -> String {
    let status = machine.status.clone().unwrap_or_default();
    if conditions::is_true(&status.conditions, conditions::READY) {
        return "Nothing: it is as it should be.".to_owned();
    }
    if status.conditions.is_empty() {
        let age = machine
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |created| now.duration_since(created.0).as_secs());
        if age < 120 {
            return "Wait: it is new, and the provider has not reported on it yet.".to_owned();
        }
        return "The provider has not reported on this object. Check that the provider runs and leads \
            (`kubectl -n capcmi-system get lease,pods`), that it looks at this namespace and object \
            (--namespace, --watch-filter), and that the Cluster is there."
            .to_owned();
    }
    if status
        .last_operation
        .is_some_and(|last| last.state == OperationState::Processing)
    {
        return "Wait: the driver has not answered a call yet. See the driver's own logs if that takes too \
            long."
            .to_owned();
    }
    "Wait: it is on its way.".to_owned()
}

/// What to do about a reason; nothing where time alone ends it, or nothing is wrong.
pub(super) fn of_reason(why: &str) -> Option<&'static str> {
    Code::ALL
        .into_iter()
        .find(|code| code.name() == why)
        .map(of_code)
        .or_else(|| of_own_reason(why))
}

/// What to do about a code of the driver.
const fn of_code(code: Code) -> &'static str {
    match code {
        Code::ResourceExhausted => {
            "Raise the quota or free capacity at the back end; then any annotation on the object has it \
                tried at once: kubectl annotate inframachine NAME example.com/retry=\"$(date +%s)\" \
                --overwrite"
        }
        Code::Unauthenticated | Code::PermissionDenied => {
            "Put credentials that may do this into the Secret (or the provider's directory), the same \
                account; the provider reads them anew within 10 minutes, or at once after any annotation on \
                the object."
        }
        Code::InvalidArgument => {
            "Correct the field that the message names: in the InfraMachine before its VM exists, else in a \
                new InfraMachineTemplate."
        }
        Code::AlreadyExists => {
            "The back end has a VM of this name that is not this machine's: delete that VM or let this \
                machine have another name, by deleting its Machine."
        }
        Code::OutOfRange => {
            "See the driver's message: of a look-up, there are several VMs of this machine (`capcmi orphans \
                list` shows them): delete those that no Node runs on. Of a create, correct the value that it \
                names."
        }
        Code::FailedPrecondition => {
            "The back end is in a state in which this can't be done: put right what the driver's message \
                names; the next try comes by itself."
        }
        Code::Internal | Code::DataLoss => {
            "Something is broken at the driver or its back end: see the driver's own logs. The next try \
                comes by itself."
        }
        Code::Unimplemented => {
            "The driver does not offer this call: upgrade the driver, or take back what asks for it."
        }
        Code::Unavailable | Code::DeadlineExceeded => {
            "The driver or its back end does not answer: check that the plugin runs and reaches its back end \
                (`capcmi describe driver NAME`). The provider goes on when it is back."
        }
        Code::Canceled | Code::Unknown | Code::Aborted | Code::NotFound | Code::Uninitialized => {
            "Wait: this passes by itself as a rule, and is tried again. If it does not, see the driver's own \
                logs."
        }
    }
}

fn of_own_reason(why: &str) -> Option<&'static str> {
    Some(match why {
        reason::WAITING_FOR_CAPACITY => of_code(Code::ResourceExhausted),
        reason::DRIVER_NOT_CONFIGURED => {
            "Name a driver that is configured in spec.driver, or have an administrator add it to the drivers \
                file, for this namespace, and restart the provider."
        }
        reason::WAITING_FOR_OWNER => {
            "Nothing is done for an InfraMachine that no Machine controls: delete it, or restore the Machine \
                that metadata.ownerReferences names."
        }
        reason::CLUSTER_NOT_FOUND => {
            "Restore the Cluster that the message names, or delete the Machine: nothing is done for it \
                meanwhile."
        }
        reason::NOT_REFERENCED => "Delete this InfraMachine: its Machine has another one.",
        reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE => {
            "Put right what the InfraCluster says below: no machine is made before it is provisioned."
        }
        reason::WAITING_FOR_BOOTSTRAP_DATA => {
            "See why the bootstrap provider has not named a Secret: the conditions of the Machine, of its \
                KubeadmConfig, and of the control plane (workers wait for the first control plane)."
        }
        reason::WAITING_FOR_DRIVER => {
            "The driver is busy with the calls of others: see `capcmi describe driver NAME`; raise \
                maxConcurrentCalls in the drivers file if its back end can bear it."
        }
        reason::INVALID_SECRET => {
            "Create or correct the Secret that the message names. In a deletion, restore it, or delete the \
                VM by hand and use force delete."
        }
        reason::VIRTUAL_MACHINE_VANISHED | reason::VIRTUAL_MACHINE_FAILED => {
            "Delete the Machine to have it replaced, or let a MachineHealthCheck do so: the VM is not made \
                again under this one."
        }
        reason::FOREIGN_IDENTITY | reason::FOREIGN_PROVIDER_ID => {
            "The provider touches no VM for this object, since nothing proves which one is its own: do what \
                the message says."
        }
        reason::IDENTITY_NOT_GUARDED => {
            "An administrator has to repair the admission policies that the message names; nothing is \
                created or deleted before."
        }
        reason::DELETE_FOR_MOVE => {
            "If the Cluster was moved to another management cluster, force delete this object; if not, take \
                the annotation clusterctl.cluster.x-k8s.io/delete-for-move away."
        }
        reason::WAITING_FOR_FINALIZERS => {
            "This provider is done. See why the owners of the finalizers that the message names do not take \
                them away."
        }
        reason::NOT_HOT_UPDATABLE => {
            "Replace the machine (a new InfraMachineTemplate rolls a MachineDeployment), or take the change \
                back."
        }
        reason::SECRET_CHANGED => {
            "Put the new credentials into the Secret that the VM was made with, or replace the machine."
        }
        reason::ADOPTION_INVALID | reason::ADOPTION_CONTESTED | reason::ADOPTION_UNCONFIRMED => {
            "Put right what the message names, and the VM is adopted. To give up, delete the InfraMachine \
                first and only then its Machine."
        }
        reason::MOVE_LABEL_MISSING => "Before a clusterctl move: label the Secret, as the message says.",
        reason::INVALID_KUBECONFIG
        | reason::WORKLOAD_CLUSTER_UNREACHABLE
        | reason::WORKLOAD_CLUSTER_REFUSED => {
            "Check that the workload cluster's API server answers the provider with the kubeconfig in the \
                Secret <cluster>-kubeconfig."
        }
        reason::NODE_NOT_FOUND | reason::FOREIGN_NODE => {
            "See the Node that the Machine names in the workload cluster: it is gone, or another machine's."
        }
        reason::WAITING_FOR_DISRUPTION_BUDGET => {
            "See the PodDisruptionBudgets in the workload cluster that keep the last pods with volumes."
        }
        reason::INVALID_VOLUME_DRAIN => "Correct the annotation that the message names.",
        reason::HOOK_NOT_PERMITTED => {
            "Give the provider the right to write Machines, or take the annotation away."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_a_driver_and_every_reason_that_waits_for_an_operator_has_a_next_step() {
        for code in Code::ALL {
            assert!(of_reason(code.name()).is_some(), "{code}");
        }
        for why in [
            reason::WAITING_FOR_CAPACITY,
            reason::DRIVER_NOT_CONFIGURED,
            reason::WAITING_FOR_OWNER,
            reason::CLUSTER_NOT_FOUND,
            reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE,
            reason::INVALID_SECRET,
            reason::VIRTUAL_MACHINE_VANISHED,
            reason::DELETE_FOR_MOVE,
            reason::IDENTITY_NOT_GUARDED,
        ] {
            assert!(of_reason(why).is_some(), "{why}");
        }
        assert_eq!(of_reason(reason::READY), None);
    }
}
