//! Condition types and reasons, and how a list of conditions changes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

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
/// Whether the VM has the provider spec that the object asks for.
pub const VIRTUAL_MACHINE_UP_TO_DATE: &str = "VirtualMachineUpToDate";
/// Whether the failure domains that are shown are those that the driver names now.
pub const FAILURE_DOMAINS_UP_TO_DATE: &str = "FailureDomainsUpToDate";
/// Whether `clusterctl move` moves the Secret with the credentials. Only of machines whose
/// Secret it once left behind.
pub const CREDENTIALS_MOVABLE: &str = "CredentialsMovable";
/// Whether the Node was freed of its not-ready taint. Only of machines whose spec names one.
pub const NOT_READY_TAINT_REMOVED: &str = "NotReadyTaintRemoved";
/// Whether the pods with volumes of the Node were evicted one after the other. Only of machines that ask for
/// it, while there is something to say.
pub const VOLUMES_DRAINED: &str = "VolumesDrained";
/// Where a deletion stands.
pub const DELETING: &str = "Deleting";

/// Reasons that are no machine code. A condition that a driver's error sets has the
/// code's name as its reason.
pub mod reason {
    /// All is well.
    pub const READY: &str = "Ready";
    /// The object is paused.
    pub const PAUSED: &str = "Paused";
    /// The object is not paused.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// The Cluster's infrastructure is not provisioned.
    pub const WAITING_FOR_CLUSTER_INFRASTRUCTURE: &str = "WaitingForClusterInfrastructureReady";
    /// No Machine is the controller owner, or the one that is named can't be found.
    pub const WAITING_FOR_OWNER: &str = "WaitingForOwner";
    /// The Cluster of the Machine that owns it can't be found.
    pub const CLUSTER_NOT_FOUND: &str = "ClusterNotFound";
    /// The Machine that owns it refers to another object by `spec.infrastructureRef`.
    pub const NOT_REFERENCED: &str = "NotReferenced";
    /// The Machine names no bootstrap data secret.
    pub const WAITING_FOR_BOOTSTRAP_DATA: &str = "WaitingForBootstrapData";
    /// Capacity was exhausted for another machine of the same class, and no create is made meanwhile.
    pub const WAITING_FOR_CAPACITY: &str = "WaitingForCapacity";
    /// Others call the driver, and it takes no more calls at a time.
    pub const WAITING_FOR_DRIVER: &str = "WaitingForDriver";
    /// Neither the InfraCluster nor the Cluster says where the control plane is reached.
    pub const WAITING_FOR_CONTROL_PLANE_ENDPOINT: &str = "WaitingForControlPlaneEndpoint";
    /// The driver has been asked to create the VM and has not answered yet.
    pub const CREATING: &str = "Creating";
    /// The driver has been asked to initialize the VM and has not answered yet.
    pub const INITIALIZING: &str = "Initializing";
    /// The VM exists.
    pub const CREATED: &str = "Created";
    /// The VM is initialized.
    pub const INITIALIZED: &str = "Initialized";
    /// Creation takes longer than the creation timeout.
    pub const CREATION_TIMED_OUT: &str = "CreationTimedOut";
    /// The driver confirmed that the VM is gone.
    pub const VIRTUAL_MACHINE_VANISHED: &str = "VirtualMachineVanished";
    /// The driver says that the VM will not run again.
    pub const VIRTUAL_MACHINE_FAILED: &str = "VirtualMachineFailed";
    /// A VM of the Cluster has no InfraMachine: an event's reason.
    pub const VIRTUAL_MACHINE_ORPHANED: &str = "VirtualMachineOrphaned";
    /// An InfraMachine has a second VM: an event's reason.
    pub const VIRTUAL_MACHINE_DUPLICATED: &str = "VirtualMachineDuplicated";
    /// A VM that had no InfraMachine was deleted: an event's reason.
    pub const ORPHAN_DELETED: &str = "OrphanDeleted";
    /// What deleted machines of a class may have left behind can't be looked for: an event's reason.
    pub const ORPHAN_SCAN_INCOMPLETE: &str = "OrphanScanIncomplete";
    /// The object is being deleted.
    pub const DELETING: &str = "Deleting";
    /// The guest is being shut down.
    pub const SHUTTING_DOWN: &str = "ShuttingDown";
    /// The VM is gone and is watched for as long as the driver may still be wrong.
    pub const CONFIRMING_DELETION: &str = "ConfirmingDeletion";
    /// `clusterctl move` has marked the object, which is at another management cluster by then.
    pub const DELETE_FOR_MOVE: &str = "DeleteForMove";
    /// The provider has let the object go, and finalizers of others keep it.
    pub const WAITING_FOR_FINALIZERS: &str = "WaitingForFinalizers";
    /// A create was never answered and may still be carried out: the VM is looked for
    /// until it can't be any more.
    pub const CREATE_UNANSWERED: &str = "CreateUnanswered";
    /// The object was let go without a confirmation that its VM is gone.
    pub const FORCE_DELETED: &str = "ForceDeleted";
    /// The driver answered.
    pub const REACHABLE: &str = "Reachable";
    /// The VM has the wanted provider spec, or the failure domains are the driver's.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// The wanted provider spec differs in fields that a living VM can't change.
    pub const NOT_HOT_UPDATABLE: &str = "NotHotUpdatable";
    /// Cluster API updates the machine in place, and has not asked this provider to change the VM.
    pub const WAITING_FOR_UPDATE_REQUEST: &str = "WaitingForUpdateRequest";
    /// `spec.secretRef` names another Secret than the one that the VM was made with.
    pub const SECRET_CHANGED: &str = "SecretChanged";
    /// No driver of that name, or not for this namespace.
    pub const DRIVER_NOT_CONFIGURED: &str = "DriverNotConfigured";
    /// A secret is missing, can't be read, or its keys collide.
    pub const INVALID_SECRET: &str = "InvalidSecret";
    /// The Secret with the credentials has no owner, and not the label by which clusterctl moves it.
    pub const MOVE_LABEL_MISSING: &str = "MoveLabelMissing";
    /// The Secret with the credentials is moved.
    pub const MOVABLE: &str = "Movable";
    /// What the driver said that a machine has can't be shown; the message names the resource.
    pub const INVALID_CAPACITY: &str = "InvalidCapacity";
    /// The object does not fit its definition, so that its status can't be written: an event's reason.
    pub const UNREADABLE: &str = "Unreadable";
    /// The providerID was not written by this provider.
    pub const FOREIGN_PROVIDER_ID: &str = "ForeignProviderID";
    /// A VM is to be adopted, and the object or its driver does not say enough to do so.
    pub const ADOPTION_INVALID: &str = "AdoptionInvalid";
    /// A VM is to be adopted that another InfraMachine has, or wants as well.
    pub const ADOPTION_CONTESTED: &str = "AdoptionContested";
    /// A VM is to be adopted, and the driver does not see it.
    pub const ADOPTION_UNCONFIRMED: &str = "AdoptionUnconfirmed";
    /// The admission policies do not guard identities, so that none is trusted.
    pub const IDENTITY_NOT_GUARDED: &str = "IdentityNotGuarded";
    /// The object's identity annotation belongs to another object.
    pub const FOREIGN_IDENTITY: &str = "ForeignIdentity";
    /// The VM is initialized, and its Node does not have the not-ready taint, or not any more.
    pub const NOT_READY_TAINT_REMOVED: &str = "NotReadyTaintRemoved";
    /// The Secret with the kubeconfig of the workload cluster is missing, can't be read, or can't be used.
    pub const INVALID_KUBECONFIG: &str = "InvalidKubeconfig";
    /// The API server of the workload cluster can't be reached, or refuses.
    pub const WORKLOAD_CLUSTER_UNREACHABLE: &str = "WorkloadClusterUnreachable";
    /// The API server of the workload cluster refuses to change this Node.
    pub const WORKLOAD_CLUSTER_REFUSED: &str = "WorkloadClusterRefused";
    /// The workload cluster does not have the Node that the Machine names.
    pub const NODE_NOT_FOUND: &str = "NodeNotFound";
    /// The Node that the Machine names is another machine's by its providerID.
    pub const FOREIGN_NODE: &str = "ForeignNode";
    /// No pod with volumes is left to be evicted.
    pub const VOLUMES_DRAINED: &str = "VolumesDrained";
    /// A pod was evicted, and is there or has volumes that are attached to the Node.
    pub const WAITING_FOR_VOLUMES: &str = "WaitingForVolumes";
    /// No pod may be evicted now: as a rule, PodDisruptionBudgets forbid it.
    pub const WAITING_FOR_DISRUPTION_BUDGET: &str = "WaitingForDisruptionBudget";
    /// The volumes of a pod were not waited for any longer: an event's reason.
    pub const VOLUME_DETACH_TIMED_OUT: &str = "VolumeDetachTimedOut";
    /// The drain took too long, or the workload cluster was away: Cluster API drains by itself.
    pub const VOLUME_DRAIN_TIMED_OUT: &str = "VolumeDrainTimedOut";
    /// There is nothing to be drained, or Cluster API does not drain the Node either.
    pub const VOLUME_DRAIN_SKIPPED: &str = "VolumeDrainSkipped";
    /// The annotation names no time.
    pub const INVALID_VOLUME_DRAIN: &str = "InvalidVolumeDrain";
    /// The provider may not write Machines.
    pub const HOOK_NOT_PERMITTED: &str = "HookNotPermitted";
    /// The driver was asked to restart the VM, and its Node has time to come back.
    pub const RESTARTED: &str = "Restarted";
    /// The VM was restarted as often as it may be, and the Machine is still unhealthy.
    pub const RESTARTS_EXHAUSTED: &str = "RestartsExhausted";
    /// The driver can't restart VMs, or not this one.
    pub const RESTART_NOT_POSSIBLE: &str = "RestartNotPossible";
    /// The Machine has no VM of this provider that is up.
    pub const WAITING_FOR_VIRTUAL_MACHINE: &str = "WaitingForVirtualMachine";
    /// The Node of a Machine that is remediated is healthy, and no MachineHealthCheck says otherwise.
    pub const WAITING_FOR_HEALTH_CHECK: &str = "WaitingForHealthCheck";
    /// The Machine's owner replaces it.
    pub const LEFT_TO_OWNER: &str = "LeftToOwner";
    /// Created, initialized, and known to Cluster API.
    pub const PROVISIONED: &str = "Provisioned";
}

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

/// Whether the condition of a type is there and True.
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
