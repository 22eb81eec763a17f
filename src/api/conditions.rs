//! Condition types, and how a list of conditions changes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

pub use super::reason;

/// Summary of an object; Cluster API mirrors it to `InfrastructureReady`, which MachineHealthChecks look at.
pub const READY: &str = "Ready";
/// Whether the object is paused: the provider does nothing for it.
pub const PAUSED: &str = "Paused";
/// Whether the last call on the driver got through.
pub const DRIVER_REACHABLE: &str = "DriverReachable";
/// Whether the VM was created.
pub const VIRTUAL_MACHINE_CREATED: &str = "VirtualMachineCreated";
/// Whether the post-create initialization is done.
pub const VIRTUAL_MACHINE_INITIALIZED: &str = "VirtualMachineInitialized";
/// Whether the VM has the object's provider spec.
pub const VIRTUAL_MACHINE_UP_TO_DATE: &str = "VirtualMachineUpToDate";
/// Whether the VM is switched on. Only of machines whose VM was found switched off once.
pub const VIRTUAL_MACHINE_RUNNING: &str = "VirtualMachineRunning";
/// Whether the published failure domains are the driver's current failure domains.
pub const FAILURE_DOMAINS_UP_TO_DATE: &str = "FailureDomainsUpToDate";
/// Why no Node has joined. Only for machines that have none after the time of a bootstrap.
pub const NODE_JOINED: &str = "NodeJoined";
/// Whether the not-ready taint was removed from the Node. Only for machines whose spec names a taint.
pub const NOT_READY_TAINT_REMOVED: &str = "NotReadyTaintRemoved";
/// Whether the Node's pods with volumes were evicted one after the other. Only for machines that request it,
/// while there is a state to report.
pub const VOLUMES_DRAINED: &str = "VolumesDrained";
/// Whether a template has every field that a machine needs. Only of templates that lack one and that no
/// ClusterClass owns.
pub const COMPLETE: &str = "Complete";
/// The progress of a deletion.
pub const DELETING: &str = "Deleting";

/// The three states of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// Holds.
    True,
    /// Does not hold.
    False,
    /// Not known.
    Unknown,
}

impl ConditionStatus {
    /// The text in `condition.status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The most characters that a message keeps; the rest is cut.
pub const MAX_MESSAGE: usize = 4096;

/// Sets the condition of a type.
///
/// # Guarantees
/// `lastTransitionTime` moves only when the status does: a MachineHealthCheck measures from it.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    state: ConditionStatus,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let since = conditions
        .iter()
        .find(|c| c.type_ == type_ && c.status == state.as_str())
        .map_or(Time(now), |c| c.last_transition_time.clone());
    let condition = Condition {
        type_: type_.to_owned(),
        status: state.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.chars().take(MAX_MESSAGE).collect(),
        observed_generation: generation,
        last_transition_time: since,
    };
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(present) => *present = condition,
        None => conditions.push(condition),
    }
}

/// Sets conditions of an object: of its generation, and at one time.
pub struct Setter<'a> {
    conditions: &'a mut Vec<Condition>,
    generation: Option<i64>,
    now: Timestamp,
}

impl<'a> Setter<'a> {
    /// Of the object that has this metadata.
    pub fn new(conditions: &'a mut Vec<Condition>, object: &ObjectMeta, now: Timestamp) -> Self {
        Self {
            conditions,
            generation: object.generation,
            now,
        }
    }

    /// As [`set`].
    pub fn set(&mut self, type_: &str, state: ConditionStatus, reason: &str, message: &str) {
        let (generation, now) = (self.generation, self.now);
        set(self.conditions, type_, state, reason, message, generation, now);
    }
}

/// The condition of a type.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of a type exists and is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|c| c.status == ConditionStatus::True.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut all = Vec::new();
        set(&mut all, READY, ConditionStatus::False, "A", "a", Some(1), at(1));
        set(&mut all, READY, ConditionStatus::False, "B", "b", Some(2), at(2));
        assert_eq!(
            (all[0].last_transition_time.0, all[0].reason.as_str()),
            (at(1), "B")
        );
        set(&mut all, READY, ConditionStatus::True, "C", "c", Some(2), at(3));
        assert_eq!((all.len(), all[0].last_transition_time.0), (1, at(3)));
        assert!(is_true(&all, READY));
    }
}
