//! Decides whether the Node of a machine is missing, and when to look for the cause. Pure.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::ObjectMetaExt as _;
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::conditions;
use crate::api::identity::MachineId;
use crate::api::paused_by;
use crate::api::retry::jitter;
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock::elapsed;

/// How long after the create of its VM a machine may be without a Node. A MachineHealthCheck deletes it after
/// 10 minutes by default, and this is half of it: the cause is shown before.
pub const BOOTSTRAP_TIME: Duration = Duration::from_mins(5);
/// The longest pause between two looks at a machine.
const MAX_PAUSE: Duration = Duration::from_hours(1);

/// The inputs of one reconcile, apart from the InfraMachine.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// The Machine that owns the InfraMachine, if it exists.
    pub owner: Option<&'a Machine>,
    /// The Cluster that the machine belongs to, if it exists.
    pub cluster: Option<&'a Cluster>,
}

/// The next step for a machine.
#[derive(Debug, PartialEq)]
pub enum Plan<'a> {
    /// No Node is expected: the VM is not up yet, or on its way out.
    Nothing,
    /// Cluster API has found the Node.
    Joined,
    /// The machine is paused, or its VM has failed: check later.
    OnHold,
    /// Cluster API has not found the Node yet.
    Awaited(Awaited<'a>),
}

/// A machine whose Node is awaited.
#[derive(Debug, PartialEq)]
pub struct Awaited<'a> {
    /// When its VM was created.
    pub since: Timestamp,
    /// The ProviderID that its Node should have.
    pub provider_id: &'a str,
    /// The possible names of its Node: from the driver, and the name of the VM.
    pub names: Vec<&'a str>,
    /// Its Machine.
    pub owner: &'a Machine,
    /// Its Cluster.
    pub cluster: &'a Cluster,
}

/// Plans the look for the Node of a machine.
pub fn plan<'a>(machine: &'a InfraMachine, seen: &Observed<'a>) -> Plan<'a> {
    let is_deleted = machine.metadata.deletion_timestamp.is_some()
        || seen
            .owner
            .is_some_and(|owner| owner.metadata.deletion_timestamp.is_some());
    if !machine.is_provisioned() || is_deleted || MachineId::of(machine).is_none() {
        return Plan::Nothing;
    }
    let (Some(owner), Some(cluster)) = (seen.owner, seen.cluster) else {
        return Plan::OnHold;
    };
    let node = owner.status.as_ref().and_then(|status| status.node_name.as_ref());
    if node.is_some() {
        return Plan::Joined;
    }
    let conditions = machine.status.as_ref().map(|status| &*status.conditions);
    let conditions = conditions.unwrap_or_default();
    let created = conditions::get(conditions, conditions::VIRTUAL_MACHINE_CREATED);
    let is_up = conditions::is_true(conditions, conditions::READY);
    let is_paused = paused_by(machine, cluster.is_paused()).is_some();
    match (created, machine.spec.provider_id.as_deref()) {
        (Some(created), Some(provider_id)) if is_up && !is_paused => Plan::Awaited(Awaited {
            since: created.last_transition_time.0,
            provider_id,
            names: names(machine),
            owner,
            cluster,
        }),
        _ => Plan::OnHold,
    }
}

fn names(machine: &InfraMachine) -> Vec<&str> {
    let reported = machine
        .status
        .as_ref()
        .and_then(|status| status.node_name.as_deref());
    let mut names: Vec<_> = reported.into_iter().chain([machine.metadata.name()]).collect();
    names.dedup();
    names
}

/// Whether the status shows that the Node is missing.
pub fn is_reported(machine: &InfraMachine) -> bool {
    let status = machine.status.as_ref();
    status.is_some_and(|status| conditions::get(&status.conditions, conditions::NODE_JOINED).is_some())
}

/// The wait before the first look of this process. If the time of a bootstrap was over before, the look is
/// spread over the pause: a restart must not cause a look at each machine.
pub fn first_look(uid: &str, since: Timestamp, now: Timestamp) -> Duration {
    match BOOTSTRAP_TIME.checked_sub(elapsed(since, now).unwrap_or_default()) {
        Some(rest) => rest,
        None => pause(since, now).mul_f64(jitter(uid, 0)),
    }
}

/// The pause after a look: as long as the Node has been awaited already, within bounds.
pub fn pause(since: Timestamp, now: Timestamp) -> Duration {
    elapsed(since, now)
        .unwrap_or_default()
        .clamp(BOOTSTRAP_TIME, MAX_PAUSE)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::annotations;
    use crate::api::identity::fixtures::existing;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn planned(change: impl FnOnce(&mut Value, &mut Value, &mut Value)) -> String {
        let condition = |type_: &str| {
            json!({"type": type_, "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": "2026-11-29T12:00:00Z"})
        };
        let record = existing("ns/m/1", &json!({"driver": "pool", "providerSpec": {}}));
        let mut machine = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": {"name": "m", "namespace": "ns", "uid": "u",
                "annotations": {annotations::VM_RECORD: record}},
            "spec": {"providerID": "p", "providerSpec": {}},
            "status": {"initialization": {"provisioned": true}, "nodeName": "ip-1",
                "conditions": [condition("VirtualMachineCreated"), condition("Ready")]},
        });
        let mut owner = json!({"metadata": {"name": "m"}, "spec": {}, "status": {}});
        let mut cluster = json!({"metadata": {"name": "c"}, "spec": {}});
        change(&mut machine, &mut owner, &mut cluster);
        let machine: InfraMachine = serde_json::from_value(machine).unwrap();
        let (owner, cluster): (Machine, Cluster) = (
            serde_json::from_value(owner).unwrap(),
            serde_json::from_value(cluster).unwrap(),
        );
        let seen = Observed {
            owner: Some(&owner),
            cluster: Some(&cluster),
        };
        match plan(&machine, &seen) {
            Plan::Nothing => "nothing".to_owned(),
            Plan::Joined => "joined".to_owned(),
            Plan::OnHold => "on hold".to_owned(),
            Plan::Awaited(awaited) => awaited.names.join(","),
        }
    }

    #[test]
    fn only_a_running_vm_of_this_provider_awaits_its_node() {
        let deleted = json!("2026-11-29T12:00:00Z");
        assert_eq!(planned(|_, _, _| {}), "ip-1,m");
        assert_eq!(
            planned(|machine, _, _| machine["status"]["nodeName"] = json!("m")),
            "m"
        );
        assert_eq!(
            planned(|_, owner, _| owner["status"]["nodeRef"] = json!({"name": "n"})),
            "joined"
        );
        assert_eq!(
            planned(|_, _, cluster| cluster["spec"]["paused"] = json!(true)),
            "on hold"
        );
        assert_eq!(
            planned(|machine, _, _| machine["status"]["conditions"][1]["status"] = json!("False")),
            "on hold"
        );
        for pointer in ["/metadata/annotations", "/status/initialization"] {
            assert_eq!(
                planned(|machine, _, _| *machine.pointer_mut(pointer).unwrap() = json!({})),
                "nothing",
                "{pointer}"
            );
        }
        assert_eq!(
            planned(|machine, _, _| machine["metadata"]["deletionTimestamp"] = deleted.clone()),
            "nothing"
        );
        assert_eq!(
            planned(|_, owner, _| owner["metadata"]["deletionTimestamp"] = deleted.clone()),
            "nothing"
        );
    }

    #[test]
    fn looks_begin_after_the_bootstrap_with_growing_pauses() {
        let minutes = Duration::from_mins;
        assert_eq!(first_look("u", at(0), at(60)), minutes(4));
        assert_eq!(
            first_look("u", at(60), at(0)),
            minutes(5),
            "the clock was set back"
        );
        let spread: Vec<_> = (0..50)
            .map(|uid| first_look(&uid.to_string(), at(0), at(1200)))
            .collect();
        assert!(spread.iter().all(|wait| *wait < minutes(20)));
        assert!(spread.iter().any(|wait| *wait > minutes(10)));
        for (age, expected) in [(5, 5), (10, 10), (40, 40), (200, 60)] {
            assert_eq!(pause(at(0), at(age * 60)), minutes(expected));
        }
    }
}
