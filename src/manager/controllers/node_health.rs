//! Nodes that stop reporting, or report again: a reason to ask a driver about one VM. A list shows that a VM
//! exists, not that it runs.

use kube_fleet::Change;

use crate::api::cluster_api::Machine;
use crate::reconcile::caches::InfraMachineFacts;

/// A change of a Machine's Node that gives reason to ask the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeChange {
    /// The Node does not report: its VM may be gone.
    Lost,
    /// The Node reports: a VM that was found missing may be back.
    Back,
    /// The Node was silent and reports again: its VM may have another address.
    Recovered,
}

impl NodeChange {
    /// Reads from a change of a Machine whether its Node was just lost or came back. A Machine that this
    /// process sees for the first time counts as changed, because its earlier state is unknown. A Node that
    /// is still starting is not lost.
    pub(super) fn of_change(change: &Change<Machine>) -> Option<Self> {
        match change {
            Change::Added(machine) => Self::of(machine),
            Change::Updated { before, now } => {
                let (was, is) = (is_healthy(before), is_healthy(now));
                match Self::of(now).filter(|_| was != is)? {
                    Self::Back if Self::of(before) == Some(Self::Lost) => Some(Self::Recovered),
                    other => Some(other),
                }
            }
            Change::Deleted(_) => None,
        }
    }

    /// Reads the current state of a Machine's Node.
    pub(super) fn of(machine: &Machine) -> Option<Self> {
        let node = machine.status.as_ref()?;
        match (node.node_name.is_some(), node.node_is_healthy) {
            (true, false) => Some(Self::Lost),
            (true, true) => Some(Self::Back),
            (false, _) => None,
        }
    }

    /// Whether the state of the Node contradicts the recorded state of the machine.
    pub(super) fn concerns(self, machine: &InfraMachineFacts) -> bool {
        match self {
            Self::Lost | Self::Recovered => true,
            Self::Back => machine.has_vanished,
        }
    }
}

fn is_healthy(machine: &Machine) -> bool {
    machine
        .status
        .as_ref()
        .is_some_and(|status| status.node_is_healthy)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::cluster_api::{MachineSpec, MachineStatus};

    fn machine((has_node, node_is_healthy): (bool, bool)) -> Arc<Machine> {
        let mut machine = Machine::new("m", MachineSpec::default());
        machine.status = Some(MachineStatus {
            node_name: has_node.then(|| "n".into()),
            node_is_healthy,
        });
        Arc::new(machine)
    }

    const NONE: (bool, bool) = (false, false);
    const SILENT: (bool, bool) = (true, false);
    const HEALTHY: (bool, bool) = (true, true);

    #[test]
    fn a_node_is_lost_or_back_once_and_not_lost_while_it_comes_up() {
        let history = [NONE, SILENT, HEALTHY, HEALTHY, SILENT, SILENT, HEALTHY, SILENT];
        let raised: Vec<_> = history
            .windows(2)
            .map(|pair| {
                NodeChange::of_change(&Change::Updated {
                    before: machine(pair[0]),
                    now: machine(pair[1]),
                })
            })
            .collect();
        let (lost, recovered) = (Some(NodeChange::Lost), Some(NodeChange::Recovered));
        assert_eq!(raised, [None, recovered, None, lost, None, recovered, lost]);
        let appears = NodeChange::of_change(&Change::Updated {
            before: machine(NONE),
            now: machine(HEALTHY),
        });
        assert_eq!(appears, Some(NodeChange::Back));
    }

    #[test]
    fn a_process_that_starts_asks_about_nodes_that_are_not_healthy() {
        let raised = |state| NodeChange::of_change(&Change::Added(machine(state)));
        assert_eq!(raised(SILENT), Some(NodeChange::Lost));
        assert_eq!(raised(NONE), None);
        assert_eq!(raised(HEALTHY), Some(NodeChange::Back));
        assert_eq!(NodeChange::of_change(&Change::Deleted(machine(SILENT))), None);
    }

    /// If a driver does not list its VMs, only the Node shows that a VM is back.
    #[test]
    fn a_returned_node_concerns_only_a_vanished_vm() {
        let mut infra = InfraMachineFacts::default();
        assert!(NodeChange::Lost.concerns(&infra) && NodeChange::Recovered.concerns(&infra));
        assert!(!NodeChange::Back.concerns(&infra));
        infra.has_vanished = true;
        assert!(NodeChange::Back.concerns(&infra));
    }
}
