//! Annotations: ours, and those of Cluster API that are honoured.

/// Annotation of an InfraMachine: everything that the provider has to know of its VM, as JSON; see
/// [`crate::api::identity::VmRecord`]. Reserved.
pub const VM_RECORD: &str = "infrastructure.capcmi.io/vm-record";
/// Annotation of an InfraCluster: the id under which a driver knows the VMs of the Cluster. Reserved.
pub const CLUSTER_ID: &str = "infrastructure.capcmi.io/cluster-id";
/// Annotation: the UID of the Node from which the not-ready taint was removed, so that a taint of that key
/// which comes later is left alone. Not reserved: a forged one keeps a taint on a Node of the user's own
/// cluster.
pub const NOT_READY_TAINT_REMOVED_FROM: &str = "infrastructure.capcmi.io/not-ready-taint-removed-from";
/// Annotation, of a user: the pods with volumes of the Node are evicted one after the other when its Machine
/// is deleted. The value is how long to wait for the volumes of each.
pub const VOLUME_DRAIN: &str = "infrastructure.capcmi.io/volume-drain";
/// Annotation: the pod that was evicted last, and for which volumes it is waited. Not reserved: a forged one
/// has pods of the user's own cluster evicted sooner or later.
pub const VOLUME_DRAIN_EVICTION: &str = "infrastructure.capcmi.io/volume-drain-eviction";
/// Annotation of a Machine: Cluster API does not drain its Node before the provider takes it away.
pub const VOLUME_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/capcmi-volume-drain";
/// The value of [`VOLUME_DRAIN_HOOK`]: what takes it away, for operators.
pub const VOLUME_DRAIN_HOOK_OWNER: &str = "cluster-api-provider-cmi";
/// Annotation of a Machine, any value: Cluster API does not drain its Node.
pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
/// Annotation of a Machine, any value: Cluster API waits for no volume of its Node.
pub const EXCLUDE_VOLUME_DETACH: &str = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
/// Annotation: `<uid>/<generation>/requested` where Cluster API has asked the provider's Runtime Extension to
/// update the VM in place to the spec of that generation, and `…/done` when the VM has it. Not reserved: a
/// forged request leads to an update that its author could have had by changing the spec, and a forged `done`
/// ends Cluster API's update early, after which the spec is applied as one that was changed by hand.
pub const IN_PLACE_UPDATE: &str = "infrastructure.capcmi.io/in-place-update";
/// Annotation: `true` lets an InfraMachine go without a confirmation that its VM is gone. The last resort,
/// and the administrator's: reserved, and in a template it would lose every VM.
pub const FORCE_DELETE: &str = "infrastructure.capcmi.io/force-delete";

/// Annotation: the VM that `spec.providerID` names was made by another, and is adopted once the driver has
/// confirmed it; the value says, as JSON, which of the reserved tags that VM carries. The administrator's:
/// reserved, since it claims a VM.
pub const ADOPT: &str = "infrastructure.capcmi.io/adopt";
/// Annotation of an InfraMachineRemediation: how often the driver was asked to restart the VM. In the
/// metadata, since `clusterctl move` leaves a status behind.
pub const RESTARTS: &str = "infrastructure.capcmi.io/restarts";
/// Annotation of an InfraMachineRemediation: when the driver was asked the last time, RFC 3339. Written
/// before the call: the Node's time runs from then.
pub const RESTART_ISSUED_AT: &str = "infrastructure.capcmi.io/restart-issued-at";

/// The annotations that the provider writes to an InfraMachine.
pub const OWN_ANNOTATIONS: [&str; 4] = [
    VM_RECORD,
    NOT_READY_TAINT_REMOVED_FROM,
    VOLUME_DRAIN_EVICTION,
    IN_PLACE_UPDATE,
];

/// The annotations that only the provider and the administrator may write: a user with forged ones could
/// claim the VM of another cluster, or have one forgotten.
pub const RESERVED_ANNOTATIONS: [&str; 5] = [VM_RECORD, CLUSTER_ID, FORCE_DELETE, ADOPT, DELETE_FOR_MOVE];

/// Annotation, any value: the object is paused.
pub const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Annotation, any value: `clusterctl move` sets it on an object that is at the target already,
/// before it deletes the one at the source and removes its finalizers itself. Reserved: it
/// keeps a VM from being deleted.
pub const DELETE_FOR_MOVE: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
/// Annotation, any value: `clusterctl move` waits until it is gone.
pub const BLOCK_MOVE: &str = "clusterctl.cluster.x-k8s.io/block-move";
/// The value of [`BLOCK_MOVE`] while a call that changes the VM is in flight. With any other value it is the
/// user's.
pub const BLOCK_MOVE_VALUE: &str = "capcmi";
/// Annotation, any value: Cluster API updates the machine in place, and has written the new spec.
pub const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
/// Annotation of an InfraCluster that is managed externally.
pub const MANAGED_BY: &str = "cluster.x-k8s.io/managed-by";

#[cfg(test)]
mod tests {
    use super::*;

    /// An operator meets them on objects, and looks them up.
    #[test]
    fn every_annotation_of_the_provider_is_in_the_documentation() {
        let (api, security) = (
            include_str!("../../docs/reference/api.md"),
            include_str!("../../docs/internals/security.md"),
        );
        let of_remediations = [RESTARTS, RESTART_ISSUED_AT, VOLUME_DRAIN, VOLUME_DRAIN_HOOK];
        for annotation in OWN_ANNOTATIONS
            .into_iter()
            .chain(RESERVED_ANNOTATIONS)
            .chain(of_remediations)
        {
            let short = annotation
                .strip_prefix("infrastructure.capcmi.io/")
                .map(|name| format!("| `{name}` |"));
            let is_reserved = short.is_some_and(|row| security.contains(&row));
            assert!(
                api.contains(annotation) || is_reserved || security.contains(annotation),
                "{annotation}"
            );
        }
    }
}
