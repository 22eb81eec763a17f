//! The status and the events of a machine about its Node's taint. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::plan::Removal;
use crate::api::conditions::{self, ConditionStatus, Setter, reason};
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus};
use crate::apiserver::NewEvent;
use crate::nodes::workload_cluster::Unreachable;
use cmi_driver::ErrorChain;

/// The result of an attempt to remove the taint.
#[derive(Debug)]
pub enum Progress {
    /// The taint was removed from the Node of this UID.
    Removed(String),
    /// The taint was removed before, from the same Node.
    RemovedBefore,
    /// The Node of this UID has no such taint.
    NotTainted(String),
    /// There is no such Node.
    NoNode,
    /// The Node has another providerID, or none.
    ForeignNode(Option<String>),
    /// The API server refuses to change this Node.
    Refused(String),
    /// The workload cluster can't be reached.
    Unreachable(Arc<Unreachable>),
}

/// The status after an attempt.
pub fn after(
    machine: &InfraMachine,
    removal: &Removal,
    progress: &Progress,
    now: Timestamp,
) -> InfraMachineStatus {
    let mut status = machine.status.clone().unwrap_or_default();
    if removal.is_done && matches!(progress, Progress::RemovedBefore) {
        return status;
    }
    let (state, reason, message) = condition(removal, progress);
    Setter::new(&mut status.conditions, &machine.metadata, now).set(
        conditions::NOT_READY_TAINT_REMOVED,
        state,
        reason,
        &message,
    );
    status
}

/// The event of an attempt; `None` if the status shows the result, or for a repeated attempt.
pub fn event(machine: &InfraMachine, removal: &Removal, progress: &Progress) -> Option<NewEvent> {
    let (state, reason, text) = condition(removal, progress);
    let status = machine.status.as_ref();
    let shown =
        status.and_then(|status| conditions::get(&status.conditions, conditions::NOT_READY_TAINT_REMOVED));
    let is_new = match progress {
        Progress::Removed(_) => true,
        Progress::RemovedBefore | Progress::NotTainted(_) => false,
        Progress::NoNode | Progress::ForeignNode(_) | Progress::Refused(_) | Progress::Unreachable(_) => {
            shown.is_none_or(|shown| shown.reason != reason)
        }
    };
    is_new.then(|| NewEvent {
        warning: state != ConditionStatus::True,
        reason: reason.to_owned(),
        action: "RemoveTaint",
        note: text,
    })
}

fn condition(removal: &Removal, progress: &Progress) -> (ConditionStatus, &'static str, String) {
    let Removal { key, node, .. } = removal;
    match progress {
        Progress::RemovedBefore => (
            ConditionStatus::True,
            reason::NOT_READY_TAINT_REMOVED,
            format!("Node {node} was already initialized: taint {key} on it was added later"),
        ),
        Progress::NoNode => (
            ConditionStatus::False,
            reason::NODE_NOT_FOUND,
            format!("Node {node} of the Machine does not exist in the workload cluster"),
        ),
        Progress::Refused(why) => (
            ConditionStatus::False,
            reason::WORKLOAD_CLUSTER_REFUSED,
            format!("cannot remove taint {key} from Node {node}: {why}"),
        ),
        Progress::Removed(_) => (
            ConditionStatus::True,
            reason::NOT_READY_TAINT_REMOVED,
            format!("removed taint {key} from Node {node}"),
        ),
        Progress::NotTainted(_) => (
            ConditionStatus::True,
            reason::NOT_READY_TAINT_REMOVED,
            format!("Node {node} has no taint {key}"),
        ),
        Progress::ForeignNode(found) => {
            let found = found.as_ref();
            let other = found.map_or_else(|| "no providerID".to_owned(), |id| format!("providerID {id}"));
            let message = format!(
                "Node {node} has {other}, but the machine has {}: its taints are not touched",
                removal.provider_id
            );
            (ConditionStatus::False, reason::FOREIGN_NODE, message)
        }
        Progress::Unreachable(cause) => {
            let message = format!(
                "taint {key} may still be on Node {node}: {}",
                ErrorChain(&**cause)
            );
            (ConditionStatus::False, cause.reason(), message)
        }
    }
}
