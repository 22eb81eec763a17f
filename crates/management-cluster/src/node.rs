//! Nodes of workload clusters.

use k8s_openapi::api::core::v1::Node;

/// Whether the kubelet reports that the Node can run Pods.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
