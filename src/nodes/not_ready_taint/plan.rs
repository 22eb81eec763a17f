//! Decides whether there is a taint to remove. Pure.

use crate::api::cluster_api::{Cluster, Machine};
use crate::api::conditions;
use crate::api::identity::MachineId;
use crate::api::paused_by;
use crate::api::progress::Task;
use crate::api::v1alpha1::InfraMachine;

/// The inputs of one reconcile.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// The Machine that owns the InfraMachine, if it exists.
    pub owner: Option<&'a Machine>,
    /// The Cluster that the machine belongs to, if it exists.
    pub cluster: Option<&'a Cluster>,
    /// Whether the Node came back or was replaced since the last reconcile.
    pub node_changed: bool,
}

/// The taint to remove, and its Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The taint's key.
    pub key: String,
    /// The Node's name.
    pub node: String,
    /// The required providerID of the Node. A Node with another providerID belongs to another machine.
    pub provider_id: String,
    /// The UID of the Node whose taint was removed before.
    pub removed_from: Option<String>,
    /// Whether the status shows that the taint was removed. Later results do not revert that.
    pub is_done: bool,
}

/// Whether the Node of a machine must be reconciled as soon as it exists. Does not need the Machine.
pub fn awaits_removal(machine: &InfraMachine) -> bool {
    let taint = machine.spec.not_ready_taint.as_ref();
    machine.is_provisioned() && taint.is_some_and(|taint| !is_done(machine, &taint.key))
}

/// Whether both the record and the status show that the taint with a key was removed.
///
/// A record without the condition is left by a process that was killed between the two writes, or by a move
/// without the status.
fn is_done(machine: &InfraMachine, key: &str) -> bool {
    removed_from(machine, key).is_some() && holds(machine, conditions::NOT_READY_TAINT_REMOVED)
}

/// Plans the removal of a taint from the Node of a machine, in the workload cluster of the returned Cluster.
/// Returns `None` if the spec names no taint, if the removal must wait, or if it is done.
///
/// # Guarantees
/// The taint is removed only when the VM is initialized (INI-05), that is provisioned, and ready. It is not
/// removed while the machine is paused or being deleted, or if another client set its providerID.
pub fn plan<'a>(machine: &InfraMachine, seen: &Observed<'a>) -> Option<(Removal, &'a Cluster)> {
    let (taint, owner, cluster) = (machine.spec.not_ready_taint.as_ref()?, seen.owner?, seen.cluster?);
    let is_up = machine.is_provisioned() && holds(machine, conditions::READY);
    let is_leaving =
        machine.metadata.deletion_timestamp.is_some() || owner.metadata.deletion_timestamp.is_some();
    let is_paused = paused_by(machine, cluster.is_paused()).is_some();
    if !is_up || is_leaving || is_paused || MachineId::of(machine).is_none() {
        return None;
    }
    if !awaits_removal(machine) && !seen.node_changed {
        return None;
    }
    let removal = Removal {
        key: taint.key.clone(),
        node: owner.status.as_ref()?.node_name.as_deref()?.to_owned(),
        provider_id: machine.spec.provider_id.clone()?,
        removed_from: removed_from(machine, &taint.key),
        is_done: is_done(machine, &taint.key),
    };
    Some((removal, cluster))
}

fn holds(machine: &InfraMachine, condition: &str) -> bool {
    let status = machine.status.as_ref();
    status.is_some_and(|status| conditions::is_true(&status.conditions, condition))
}

/// The record that the taint with a key was removed from a Node.
pub fn record(node_uid: &str, key: &str) -> String {
    format!("{node_uid}/{key}")
}

/// The UID of the Node that was freed of the taint with this key. A record for another key does not count.
fn removed_from(machine: &InfraMachine, key: &str) -> Option<String> {
    let record: String = Task::NotReadyTaint.progress(&machine.metadata)?;
    let (node_uid, of_key) = record.split_once('/')?;
    (of_key == key).then(|| node_uid.to_owned())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::api::annotations;
    use crate::api::cluster_api::MachineSpec;
    use crate::api::conditions::{ConditionStatus, reason};
    use crate::api::identity::fixtures::existing;

    fn machine() -> InfraMachine {
        let record = existing("ns/m/1", &json!({"driver": "pool", "providerSpec": {}}));
        let mut machine: InfraMachine = serde_json::from_value(json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": {"name": "m", "namespace": "ns", "uid": "u",
                "annotations": {annotations::VM_RECORD: record}},
            "spec": {"providerID": "p", "notReadyTaint": {}},
            "status": {"initialization": {"provisioned": true}},
        }))
        .unwrap();
        set(&mut machine, conditions::READY, ConditionStatus::True);
        machine
    }

    fn set(machine: &mut InfraMachine, condition: &str, state: ConditionStatus) {
        let conditions = &mut machine.status.get_or_insert_default().conditions;
        let now = Timestamp::UNIX_EPOCH;
        conditions::set(conditions, condition, state, reason::READY, "", None, now);
    }

    fn owner() -> Machine {
        let mut owner = Machine::new("m", MachineSpec::default());
        owner.status.get_or_insert_default().node_name = Some("n".into());
        owner
    }

    fn removed_from_node(change: impl FnOnce(&mut InfraMachine, &mut Machine, &mut Cluster) -> bool) -> bool {
        let mut cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c"},
            "spec": {},
        }))
        .unwrap();
        let (mut machine, mut owner) = (machine(), owner());
        let node_changed = change(&mut machine, &mut owner, &mut cluster);
        let seen = Observed {
            owner: Some(&owner),
            cluster: Some(&cluster),
            node_changed,
        };
        plan(&machine, &seen).is_some()
    }

    /// INI-05: only from the Node of a machine that is up, and only once.
    #[test]
    fn the_taint_goes_from_the_node_of_a_machine_that_is_up_and_of_no_other() {
        assert!(removed_from_node(|_, _, _| false));
        let deleted = || {
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                Timestamp::UNIX_EPOCH,
            ))
        };
        assert!(!removed_from_node(|machine, _, _| {
            machine.spec.not_ready_taint = None;
            false
        }));
        assert!(!removed_from_node(|machine, _, _| {
            machine.status.get_or_insert_default().initialization = None;
            false
        }));
        assert!(!removed_from_node(|machine, _, _| {
            set(machine, conditions::READY, ConditionStatus::False);
            false
        }));
        assert!(!removed_from_node(|machine, _, _| {
            machine.metadata.deletion_timestamp = deleted();
            false
        }));
        assert!(!removed_from_node(|_, owner, _| {
            owner.metadata.deletion_timestamp = deleted();
            false
        }));
        assert!(!removed_from_node(|_, owner, _| {
            owner.status = None;
            false
        }));
        assert!(!removed_from_node(|_, _, cluster| {
            cluster.spec.paused = Some(true);
            false
        }));
        // Another client set the providerID.
        assert!(!removed_from_node(|machine, _, _| {
            machine.metadata.annotations = None;
            false
        }));
    }

    #[test]
    fn a_returned_or_different_node_is_checked_again_for_the_taint() {
        let record = |machine: &mut InfraMachine| {
            set(
                machine,
                conditions::NOT_READY_TAINT_REMOVED,
                ConditionStatus::True,
            );
            let record = super::record("n-1", "node.machine.sapcloud.io/instance-not-ready");
            let progress = Task::NotReadyTaint
                .with_progress(&machine.metadata, record)
                .unwrap();
            let annotations = machine.metadata.annotations.get_or_insert_default();
            annotations.insert(annotations::PROGRESS.to_owned(), progress);
        };
        assert!(!removed_from_node(|machine, _, _| {
            record(machine);
            false
        }));
        assert!(removed_from_node(|machine, _, _| {
            record(machine);
            true
        }));
        // The key was wrong, and was corrected.
        assert!(removed_from_node(|machine, _, _| {
            record(machine);
            machine.spec.not_ready_taint.as_mut().unwrap().key = "another".to_owned();
            false
        }));
        // Killed between the record and the condition, or moved without its status.
        assert!(removed_from_node(|machine, _, _| {
            record(machine);
            set(
                machine,
                conditions::NOT_READY_TAINT_REMOVED,
                ConditionStatus::False,
            );
            false
        }));
    }
}
