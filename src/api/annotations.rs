//! Annotations of the provider, and the annotations of Cluster API that it honours.

/// Annotation of an InfraMachine: all facts about its VM, as JSON; see [`crate::api::identity::VmRecord`].
/// Reserved.
pub const VM_RECORD: &str = "infrastructure.capcmi.io/vm-record";
/// Annotation of an InfraCluster: the driver's cluster id for the VMs of the Cluster. Reserved.
pub const CLUSTER_ID: &str = "infrastructure.capcmi.io/cluster-id";
/// Annotation of an InfraMachine: the progress of tasks beside its VM, as JSON; see
/// [`crate::api::progress::Task`].
///
/// Not reserved: a forged one keeps a taint on a Node of the user's own cluster, or changes when pods of that
/// cluster are evicted. The author of a forged update request could also get the update by changing the spec.
/// A forged end of an update ends Cluster API's update early, and the provider then applies the spec like any
/// other change.
pub const PROGRESS: &str = "infrastructure.capcmi.io/progress";
/// Annotation, set by a user: when the Machine is deleted, the Node's pods with volumes are evicted one after
/// the other. The value is how long to wait for the volumes of each pod.
pub const VOLUME_DRAIN: &str = "infrastructure.capcmi.io/volume-drain";
/// Annotation of a Machine: Cluster API does not drain its Node until the provider removes this annotation.
pub const VOLUME_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/capcmi-volume-drain";
/// The value of [`VOLUME_DRAIN_HOOK`]: tells operators who removes the hook.
pub const VOLUME_DRAIN_HOOK_OWNER: &str = "cluster-api-provider-cmi";
/// Annotation of a Machine, any value: Cluster API does not drain its Node.
pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
/// Annotation of a Machine, any value: Cluster API waits for no volume of its Node.
pub const EXCLUDE_VOLUME_DETACH: &str = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
/// Annotation: `true` deletes an InfraMachine without confirmation that its VM is deleted. The last resort,
/// for administrators only. Reserved: in a template it would lose every VM.
pub const FORCE_DELETE: &str = "infrastructure.capcmi.io/force-delete";

/// Annotation: the VM in `spec.providerID` was created by another controller, and is adopted once the driver
/// confirms it. The value lists the VM's reserved tags, as JSON. For administrators only; reserved, since it
/// claims a VM.
pub const ADOPT: &str = "infrastructure.capcmi.io/adopt";
/// Annotation of an InfraMachineRemediation: how often the provider asked the driver to restart the VM. It is
/// not in the status, because `clusterctl move` does not move a status.
pub const RESTARTS: &str = "infrastructure.capcmi.io/restarts";
/// Annotation of an InfraMachineRemediation: when the provider last asked the driver for a restart, RFC 3339.
/// Written before the call: the Node's time runs from then.
pub const RESTART_ISSUED_AT: &str = "infrastructure.capcmi.io/restart-issued-at";

/// The annotations that the provider writes to an InfraMachine.
pub const OWN_ANNOTATIONS: [&str; 2] = [VM_RECORD, PROGRESS];

/// The annotations that only the provider and the administrator may write. With forged ones a user could
/// claim the VM of another cluster, or make the provider forget a VM.
pub const RESERVED_ANNOTATIONS: [&str; 5] = [VM_RECORD, CLUSTER_ID, FORCE_DELETE, ADOPT, DELETE_FOR_MOVE];

/// Annotation of an InfraMachine, set by a user: each new value makes the provider look up the VM, and
/// publish its addresses and power state.
pub const REFRESH: &str = "infrastructure.capcmi.io/refresh";

/// Annotation, any value: the object is paused.
pub const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Annotation, any value: `clusterctl move` sets it on an object that already exists at the target, before it
/// deletes the object at the source and removes its finalizers itself. Reserved: it keeps a VM from being
/// deleted.
pub const DELETE_FOR_MOVE: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
/// Annotation, any value: `clusterctl move` waits until it is removed.
pub const BLOCK_MOVE: &str = "clusterctl.cluster.x-k8s.io/block-move";
/// The value of [`BLOCK_MOVE`] while a call that changes the VM is in flight. Any other value is set by a
/// user.
pub const BLOCK_MOVE_VALUE: &str = "capcmi";
/// Annotation, any value: Cluster API updates the machine in place, and has written the new spec.
pub const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
/// Annotation of an InfraCluster that is managed externally.
pub const MANAGED_BY: &str = "cluster.x-k8s.io/managed-by";

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators see them on objects, and look them up.
    #[test]
    fn every_annotation_of_the_provider_is_in_the_documentation() {
        let (api, security) = (
            include_str!("../../docs/reference/api.md"),
            include_str!("../../docs/internals/security.md"),
        );
        let others = [
            REFRESH,
            RESTARTS,
            RESTART_ISSUED_AT,
            VOLUME_DRAIN,
            VOLUME_DRAIN_HOOK,
        ];
        for annotation in OWN_ANNOTATIONS
            .into_iter()
            .chain(RESERVED_ANNOTATIONS)
            .chain(others)
        {
            let short = annotation
                .strip_prefix("infrastructure.capcmi.io/")
                .map(|name| format!("\n* `{name}`"));
            let is_reserved = short.is_some_and(|item| security.contains(&item));
            assert!(
                api.contains(annotation) || is_reserved || security.contains(annotation),
                "{annotation}"
            );
        }
    }
}
