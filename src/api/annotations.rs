//! Annotations: ours, and those of Cluster API that are honoured.

/// Annotation: the id under which a driver knows the VMs of one Cluster. Reserved.
pub const CLUSTER_ID: &str = "infrastructure.capcmi.io/cluster-id";
/// Annotation: `<namespace>/<name>/<id>`, the identity of one InfraMachine. Reserved.
///
/// Namespace and name are part of it because Cluster API copies annotations from templates and Machines: an
/// identity that was copied to another object identifies no machine.
pub const MACHINE_ID: &str = "infrastructure.capcmi.io/machine-id";
/// Annotation: `may-exist`, `refused` or `none`, see [`super::VmExistence`]. Reserved.
pub const VM_EXISTENCE: &str = "infrastructure.capcmi.io/vm-existence";
/// Annotation: the provider spec, as JSON, that the VM was made from or last updated to. Reserved.
pub const APPLIED_PROVIDER_SPEC: &str = "infrastructure.capcmi.io/applied-provider-spec";
/// Annotation: what the driver wants back with the next call, in base64. Reserved.
pub const LAST_KNOWN_STATE: &str = "infrastructure.capcmi.io/last-known-state";
/// Annotation: the driver that made the VM, so that a deletion finds it whatever
/// became of the spec. Reserved.
pub const DRIVER: &str = "infrastructure.capcmi.io/driver";
/// Annotation: the Secret whose credentials the VM was made with, nothing where it was made without, so that
/// every later call goes to the same account whatever becomes of `spec.secretRef`. Reserved.
pub const SECRET: &str = "infrastructure.capcmi.io/secret";
/// Annotation: when a CreateMachine was issued whose answer is not written here, RFC 3339; where there is
/// another one before it, that one's time as well, with a comma between. The back end may still carry
/// out such a create. Reserved.
pub const CREATE_ISSUED_AT: &str = "infrastructure.capcmi.io/create-issued-at";
/// Annotation: when the driver first accepted to shut the guest down, RFC 3339: the guest's time
/// runs from then. Reserved.
pub const SHUT_DOWN_ACCEPTED_AT: &str = "infrastructure.capcmi.io/shut-down-accepted-at";
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
/// Annotation, `true`: an update was issued whose end was not written down, so that the VM may have some of
/// the new spec and some of the old. In the metadata, since `clusterctl move` leaves a status behind.
/// Reserved: without it, a VM that is half way would pass for one that has its spec.
pub const UPDATE_ISSUED: &str = "infrastructure.capcmi.io/update-issued";
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
/// Annotation: the id of the VM that was made by another and that the driver has confirmed. Reserved.
pub const ADOPTED: &str = "infrastructure.capcmi.io/adopted";

/// Annotation of an InfraMachineRemediation: how often the driver was asked to restart the VM. In the
/// metadata, since `clusterctl move` leaves a status behind.
pub const RESTARTS: &str = "infrastructure.capcmi.io/restarts";
/// Annotation of an InfraMachineRemediation: when the driver was asked the last time, RFC 3339. Written
/// before the call: the Node's time runs from then.
pub const RESTART_ISSUED_AT: &str = "infrastructure.capcmi.io/restart-issued-at";

/// The annotations that the provider writes to what says which VM is whose.
pub const OWN_ANNOTATIONS: [&str; 14] = [
    CLUSTER_ID,
    MACHINE_ID,
    VM_EXISTENCE,
    APPLIED_PROVIDER_SPEC,
    LAST_KNOWN_STATE,
    DRIVER,
    SECRET,
    CREATE_ISSUED_AT,
    UPDATE_ISSUED,
    SHUT_DOWN_ACCEPTED_AT,
    ADOPTED,
    NOT_READY_TAINT_REMOVED_FROM,
    VOLUME_DRAIN_EVICTION,
    IN_PLACE_UPDATE,
];

/// The annotations that only the provider and the administrator may write: a user with forged ones could
/// claim the VM of another cluster, or have one forgotten.
pub const RESERVED_ANNOTATIONS: [&str; 14] = [
    CLUSTER_ID,
    MACHINE_ID,
    VM_EXISTENCE,
    APPLIED_PROVIDER_SPEC,
    LAST_KNOWN_STATE,
    DRIVER,
    SECRET,
    CREATE_ISSUED_AT,
    UPDATE_ISSUED,
    SHUT_DOWN_ACCEPTED_AT,
    FORCE_DELETE,
    ADOPT,
    ADOPTED,
    DELETE_FOR_MOVE,
];

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
