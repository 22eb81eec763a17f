//! The condition `NodeJoined`. Pure.

use jiff::Timestamp;

use super::console::{CloudInit, Summary};
use super::look::{ConsoleFinding, Findings, NodeFinding};
use super::plan::Awaited;
use crate::api::conditions::{self, ConditionStatus, Setter, reason};
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus};
use crate::nodes::workload_cluster::Unreachable;
use cmi_driver::ErrorChain;

/// The status of a machine whose Node has joined: without the condition.
pub fn joined(machine: &InfraMachine) -> InfraMachineStatus {
    let mut status = machine.status.clone().unwrap_or_default();
    status
        .conditions
        .retain(|shown| shown.type_ != conditions::NODE_JOINED);
    status
}

/// The status of a machine whose Node is missing.
pub fn missing(
    machine: &InfraMachine,
    awaited: &Awaited<'_>,
    findings: &Findings,
    now: Timestamp,
) -> InfraMachineStatus {
    let mut status = machine.status.clone().unwrap_or_default();
    Setter::new(&mut status.conditions, &machine.metadata, now).set(
        conditions::NODE_JOINED,
        ConditionStatus::False,
        reason_of(findings),
        &message(awaited, findings),
    );
    status
}

/// The reason is the most likely cause.
fn reason_of(findings: &Findings) -> &'static str {
    let has_failed = matches!(
        &findings.console,
        ConsoleFinding::Read(Summary {
            cloud_init: CloudInit::Failed,
            ..
        })
    );
    match &findings.node {
        NodeFinding::Other { .. } => reason::PROVIDER_ID_MISMATCH,
        NodeFinding::Unseen { .. } => reason::NODE_NOT_MATCHED,
        NodeFinding::NotFound | NodeFinding::Unreachable(_) if has_failed => reason::BOOTSTRAP_FAILED,
        NodeFinding::Unreachable(cause) => cause.reason(),
        NodeFinding::NotFound => reason::NODE_MISSING,
    }
}

/// One line with the facts, then the last lines of the console.
fn message(awaited: &Awaited<'_>, findings: &Findings) -> String {
    let facts = [
        of_node(awaited, &findings.node),
        of_endpoint(awaited, &findings.node),
        of_console(&findings.console),
    ];
    let facts = facts.join("; ");
    match &findings.console {
        ConsoleFinding::Read(console) if !console.last_lines.is_empty() => {
            format!("{facts}; its last lines:\n{}", console.last_lines.join("\n"))
        }
        ConsoleFinding::Read(_) | ConsoleFinding::NotOffered | ConsoleFinding::Unread(_) => facts,
    }
}

fn of_node(awaited: &Awaited<'_>, node: &NodeFinding) -> String {
    let expected = awaited.provider_id;
    match node {
        NodeFinding::Other {
            node,
            provider_id: Some(other),
        } => format!(
            "Node `{node}` has ProviderID `{other}`, and the VM has `{expected}`: correct `provider-id` of \
                the kubelet in the bootstrap data, and replace the machine"
        ),
        NodeFinding::Other {
            node,
            provider_id: None,
        } => format!(
            "Node `{node}` has no ProviderID, and the VM has `{expected}`: set `provider-id` of the kubelet \
                in the bootstrap data, or check the cloud controller manager"
        ),
        NodeFinding::Unseen { node } => format!(
            "Node `{node}` has ProviderID `{expected}`, and Cluster API has not matched it: check the \
                condition NodeReady of the Machine"
        ),
        NodeFinding::NotFound => format!(
            "no Node `{}` with ProviderID `{expected}` has joined",
            awaited.names.join("` or `")
        ),
        NodeFinding::Unreachable(_) => format!("no Node with ProviderID `{expected}` is known"),
    }
}

fn of_endpoint(awaited: &Awaited<'_>, node: &NodeFinding) -> String {
    let endpoint = awaited.cluster.spec.control_plane_endpoint.as_ref();
    let endpoint = endpoint.map(|endpoint| format!(" {}:{}", endpoint.host, endpoint.port));
    let endpoint = format!("the control plane endpoint{}", endpoint.unwrap_or_default());
    let NodeFinding::Unreachable(cause) = node else {
        return format!("{endpoint} answers");
    };
    let why = ErrorChain(&**cause);
    match &**cause {
        Unreachable::Secret(_) | Unreachable::Kubeconfig { .. } => {
            format!("{endpoint} was not tried: {why}")
        }
        Unreachable::Refused { .. } => format!("{endpoint} refuses the provider: {why}"),
        Unreachable::TimedOut | Unreachable::NotAnApiServer | Unreachable::Slow | Unreachable::Failed(_) => {
            format!("{endpoint} does not answer: {why}")
        }
    }
}

fn of_console(console: &ConsoleFinding) -> String {
    let console = match console {
        ConsoleFinding::NotOffered => return "the driver cannot read the console".to_owned(),
        ConsoleFinding::Unread(why) => return format!("the console is not shown: {why}"),
        ConsoleFinding::Read(console) if console.last_lines.is_empty() => {
            return "the console is empty".to_owned();
        }
        ConsoleFinding::Read(console) => console,
    };
    let state = match console.cloud_init {
        CloudInit::NotSeen => "shows nothing of cloud-init",
        CloudInit::Running => "shows that cloud-init has not ended",
        CloudInit::Ended => "shows that cloud-init has ended without an error",
        CloudInit::Failed => "shows that cloud-init has failed",
    };
    format!("the console {state}")
}
