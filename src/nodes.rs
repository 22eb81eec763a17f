//! The Nodes of machines that are up: the cause when none appears, the not-ready taint, the drain of volumes,
//! the restart of a VM whose Node is unhealthy, and the connections to workload clusters.

pub mod missing_node;
pub mod not_ready_taint;
pub mod remediation;
pub mod volume_drain;
pub mod workload_cluster;
