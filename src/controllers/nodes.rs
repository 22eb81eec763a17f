//! Nodes that go silent: the reason to ask a driver about one VM. A list says that a VM is there, not that it runs.

use kube::runtime::watcher::Event;

use super::watch::Noted;
use crate::api::cluster_api::Machine;

/// Which Machines had a healthy Node the last time that they were seen.
#[derive(Default)]
pub(super) struct Nodes(Noted<bool>);

impl Nodes {
    /// The Machine of an event, if it has just lost its Node: one that was healthy before, or of which nobody knows
    /// because this process sees the Machine for the first time. A Node that is on its way up is not lost.
    pub(super) fn lost<'a>(&mut self, event: &'a Event<Machine>) -> Option<&'a Machine> {
        let is_healthy = |machine: &Machine| machine.status.unwrap_or_default().node_is_healthy;
        let (machine, _, before) = self.0.note(event, is_healthy)?;
        (is_silent(machine) && before != Some(false)).then_some(machine)
    }
}

/// Whether a Machine has a Node that does not report.
pub(super) fn is_silent(machine: &Machine) -> bool {
    let node = machine.status.unwrap_or_default();
    node.has_node && !node.node_is_healthy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster_api::{MachineSpec, MachineStatus};

    fn event(has_node: bool, node_is_healthy: bool) -> Event<Machine> {
        let mut machine = Machine::new("m", MachineSpec::default());
        machine.metadata.uid = Some("u".to_owned());
        machine.status = Some(MachineStatus {
            has_node,
            node_is_healthy,
        });
        Event::Apply(machine)
    }

    #[test]
    fn a_node_is_lost_once_and_not_while_it_comes_up() {
        let mut nodes = Nodes::default();
        let lost: Vec<_> = [
            (false, false),
            (true, false),
            (true, true),
            (true, false),
            (true, false),
            (true, true),
            (true, false),
        ]
        .into_iter()
        .map(|(has_node, healthy)| nodes.lost(&event(has_node, healthy)).is_some())
        .collect();
        assert_eq!(lost, [false, false, false, true, false, false, true]);
    }

    #[test]
    fn a_process_that_starts_asks_about_nodes_that_are_not_healthy() {
        assert!(Nodes::default().lost(&event(true, false)).is_some());
        assert!(Nodes::default().lost(&event(false, false)).is_none());
        assert!(Nodes::default().lost(&event(true, true)).is_none());
    }
}
