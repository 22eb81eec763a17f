//! The remediated Machine: the fields that the provider reads, and the conditions that report the remediation
//! to Cluster API's controllers. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::cluster_api::{self, ObjectReference};

/// Whether the MachineHealthCheck finds the Machine healthy.
pub const HEALTH_CHECK_SUCCEEDED: &str = "HealthCheckSucceeded";
/// Whether the Machine's owner has remediated it, by a replacement.
pub const OWNER_REMEDIATED: &str = "OwnerRemediated";
/// Whether a controller other than the owner has remediated the Machine.
pub const EXTERNALLY_REMEDIATED: &str = "ExternallyRemediated";
/// Cluster API's condition for the health of the Machine's Node.
const NODE_HEALTHY: &str = "NodeHealthy";
/// The reason that tells the owner to remediate the Machine.
const WAITING_FOR_REMEDIATION: &str = "WaitingForRemediation";

/// The fields of a Machine that the provider reads. They are read for each reconcile instead of cached,
/// because few Machines are remediated at a time.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct RemediatedMachine {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its spec.
    #[serde(default)]
    pub spec: RemediatedMachineSpec,
    /// Its status.
    #[serde(default)]
    pub status: RemediatedMachineStatus,
}

/// The fields of the spec that the provider reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RemediatedMachineSpec {
    /// The Cluster that it belongs to.
    pub cluster_name: String,
    /// The InfraMachine.
    pub infrastructure_ref: ObjectReference,
    /// Where its bootstrap data is.
    pub bootstrap: cluster_api::Bootstrap,
}

/// The fields of the status that the provider reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RemediatedMachineStatus {
    /// Its conditions, with all fields that other controllers wrote.
    pub conditions: Vec<Map<String, Value>>,
}

/// The `OwnerRemediated` condition of a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRemediation {
    /// Whether the owner must remediate, because the VM cannot be repaired.
    pub owner_must_remediate: bool,
    /// The reason.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// The Machine that owns an object, with any API version. A MachineHealthCheck does not set it as the
/// controller.
pub fn owner_reference(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        owner.kind == "Machine" && group == cluster_api::GROUP
    })
}

impl RemediatedMachine {
    fn status_of(&self, type_: &str) -> Option<&str> {
        self.condition(type_)?.get("status")?.as_str()
    }

    fn condition(&self, type_: &str) -> Option<&Map<String, Value>> {
        let mut all = self.status.conditions.iter();
        all.find(|condition| condition.get("type").and_then(Value::as_str) == Some(type_))
    }

    /// Whether the conditions tell the owner to replace the Machine. The owner checks both conditions.
    pub fn is_left_to_its_owner(&self) -> bool {
        [HEALTH_CHECK_SUCCEEDED, OWNER_REMEDIATED]
            .iter()
            .all(|type_| self.status_of(type_) == Some("False"))
    }

    /// Whether the MachineHealthCheck has just found the Machine healthy. It deletes the remediation before
    /// it writes the condition.
    pub fn is_healthy(&self) -> bool {
        self.status_of(HEALTH_CHECK_SUCCEEDED) == Some("True")
    }

    /// Whether a MachineHealthCheck reports the Machine as unhealthy. The condition is missing if `clusterctl
    /// move` lost it, or if a user created the remediation.
    pub fn is_unhealthy(&self) -> bool {
        self.status_of(HEALTH_CHECK_SUCCEEDED) == Some("False")
    }

    /// Since when the Machine's Node is healthy, if it is.
    pub fn node_is_healthy_since(&self) -> Option<Timestamp> {
        let healthy = self
            .condition(NODE_HEALTHY)
            .filter(|condition| condition.get("status").and_then(Value::as_str) == Some("True"))?;
        healthy.get("lastTransitionTime")?.as_str()?.parse().ok()
    }

    /// All conditions with the conditions of the remediation; `None` if they are set already.
    ///
    /// A MachineHealthCheck reports a Machine as unhealthy when it creates the remediation, and does not
    /// repeat that while the remediation exists. `clusterctl move` moves the remediation without the
    /// condition, and without the condition no owner replaces the Machine. So a missing condition is
    /// restored.
    pub fn with(
        &self,
        owner_remediation: &OwnerRemediation,
        now: Timestamp,
    ) -> Option<Vec<Map<String, Value>>> {
        let mut all = self.status.conditions.clone();
        let holds = if owner_remediation.owner_must_remediate {
            "False"
        } else {
            "True"
        };
        set(
            &mut all,
            EXTERNALLY_REMEDIATED,
            holds,
            owner_remediation.reason,
            &owner_remediation.message,
            now,
        );
        if owner_remediation.owner_must_remediate && !self.is_left_to_its_owner() {
            set(
                &mut all,
                OWNER_REMEDIATED,
                "False",
                WAITING_FOR_REMEDIATION,
                &owner_remediation.message,
                now,
            );
            if self.condition(HEALTH_CHECK_SUCCEEDED).is_none() {
                let message = "a MachineHealthCheck requested a remediation";
                set(
                    &mut all,
                    HEALTH_CHECK_SUCCEEDED,
                    "False",
                    WAITING_FOR_REMEDIATION,
                    message,
                    now,
                );
            }
        }
        (all != self.status.conditions).then_some(all)
    }
}

/// Sets a condition; its transition time changes only with its status.
fn set(
    all: &mut Vec<Map<String, Value>>,
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let present = all
        .iter_mut()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some(type_));
    let wanted = [
        ("type", type_),
        ("status", status),
        ("reason", reason),
        ("message", message),
    ];
    let is_same = |condition: &Map<String, Value>, field: &str, value: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or_default() == value
    };
    let Some(present) = present else {
        let fields = wanted.map(|(field, value)| (field.to_owned(), json!(value)));
        let time = ("lastTransitionTime".to_owned(), json!(seconds(now)));
        all.push(fields.into_iter().chain([time]).collect());
        return;
    };
    if !is_same(present, "status", status) {
        present.insert("lastTransitionTime".to_owned(), json!(seconds(now)));
    }
    for (field, value) in wanted {
        if !is_same(present, field, value) {
            present.insert(field.to_owned(), json!(value));
        }
    }
}

/// A time in the format of conditions.
fn seconds(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(conditions: &Value) -> RemediatedMachine {
        let machine = json!({"metadata": {"name": "m"}, "status": {"conditions": conditions}});
        serde_json::from_value(machine).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn owner_remediation(owner_must_remediate: bool) -> OwnerRemediation {
        OwnerRemediation {
            owner_must_remediate,
            reason: "Why",
            message: "because".to_owned(),
        }
    }

    fn statuses(machine: &RemediatedMachine, owner_remediation: &OwnerRemediation) -> Vec<(String, String)> {
        let text =
            |condition: &Map<String, Value>, field: &str| condition[field].as_str().unwrap().to_owned();
        let all = machine.with(owner_remediation, at(9)).unwrap_or_default();
        all.iter()
            .map(|condition| (text(condition, "type"), text(condition, "status")))
            .collect()
    }

    #[test]
    fn a_restart_is_shown_on_the_machine_and_leaves_its_owner_out_of_it() {
        let unhealthy = machine(&json!([
            {"type": "Ready", "status": "False", "reason": "R", "message": "", "lastTransitionTime": "t"},
            {"type": EXTERNALLY_REMEDIATED, "status": "False", "reason": "W", "lastTransitionTime": "t"},
        ]));
        let shown = statuses(&unhealthy, &owner_remediation(false));
        let expected = [("Ready", "False"), (EXTERNALLY_REMEDIATED, "True")];
        assert_eq!(shown, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn the_owner_gets_its_turn_also_after_a_move_lost_the_health_check() {
        let failed = json!({"type": HEALTH_CHECK_SUCCEEDED, "status": "False", "reason": "UnhealthyNode",
            "message": "silent", "lastTransitionTime": "t"});
        for (conditions, is_put_back) in [(json!([failed]), false), (json!([]), true)] {
            let before = machine(&conditions);
            assert!(!before.is_left_to_its_owner());
            let after = machine(&json!(before.with(&owner_remediation(true), at(9)).unwrap()));
            assert!(after.is_left_to_its_owner(), "{after:?}");
            assert_eq!(
                after.condition(HEALTH_CHECK_SUCCEEDED).unwrap()["reason"] == WAITING_FOR_REMEDIATION,
                is_put_back
            );
            assert_eq!(
                after.with(&owner_remediation(true), at(10)),
                None,
                "it is said once"
            );
        }
    }

    /// MachineSets defer remediations, and report that in this condition.
    #[test]
    fn what_the_owner_says_of_its_turn_stays() {
        let deferred = machine(&json!([
            {"type": HEALTH_CHECK_SUCCEEDED, "status": "False", "reason": "U", "lastTransitionTime": "t"},
            {"type": OWNER_REMEDIATED, "status": "False", "reason": "RemediationDeferred",
            "lastTransitionTime": "t"},
        ]));
        let after = machine(&json!(deferred.with(&owner_remediation(true), at(9)).unwrap()));
        let owner = after.condition(OWNER_REMEDIATED).unwrap();
        assert_eq!(owner["reason"], "RemediationDeferred");
    }

    #[test]
    fn the_time_of_a_condition_moves_with_its_status_alone() {
        let before = machine(&json!([
            {"type": EXTERNALLY_REMEDIATED, "status": "True", "reason": "Old", "lastTransitionTime": "t"},
        ]));
        let after = before.with(&owner_remediation(false), at(9)).unwrap();
        assert_eq!(
            (&after[0]["lastTransitionTime"], &after[0]["reason"]),
            (&json!("t"), &json!("Why"))
        );
    }
}
