//! Reasons of conditions and events, each with its cause and its remedy.
//!
//! `capcmi describe` and the reference documentation print this table. A condition or event that an error of
//! the driver causes has the name of the machine code as its reason.

use cmi_driver::Code;

/// A reason of conditions and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The name, as conditions and events have it.
    pub name: &'static str,
    /// The cause, in one sentence.
    pub cause: &'static str,
    /// The remedy, in one or two sentences; `None` where nothing is to be done.
    pub remedy: Option<&'static str>,
}

impl Reason {
    /// Every reason: the provider's own, then those of machine codes.
    pub fn all() -> impl Iterator<Item = Self> {
        OWN.iter().copied().chain(Code::ALL.map(of_code))
    }

    /// Returns the reason of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|reason| reason.name == name)
    }

    /// Returns cause and remedy, as text to print.
    pub fn explanation(self) -> String {
        let remedy = self.remedy.map(|remedy| format!(" {remedy}"));
        format!("{}{}", self.cause, remedy.unwrap_or_default())
    }
}

/// Defines a constant for the name of each reason, and the table of all.
macro_rules! reasons {
    ($($constant:ident = $name:literal, $cause:literal, $remedy:expr;)+) => {
        $(#[doc = $cause] pub const $constant: &str = $name;)+

        /// The reasons that are not machine codes.
        const OWN: &[Reason] = &[$(Reason { name: $name, cause: $cause, remedy: $remedy },)+];
    };
}

reasons! {
    READY = "Ready",
        "The object is in the desired state.",
        None;
    PROVISIONED = "Provisioned",
        "The VM is created and initialized, and Cluster API knows its providerID.",
        None;
    CREATED = "Created",
        "The VM exists.",
        None;
    INITIALIZED = "Initialized",
        "The driver has initialized the VM.",
        None;
    RUNNING = "Running",
        "The VM is switched on.",
        None;
    UP_TO_DATE = "UpToDate",
        "The VM has the provider spec that the object asks for, or the failure domains match the driver's.",
        None;
    REACHABLE = "Reachable",
        "The driver answered the last call.",
        None;
    NOT_PAUSED = "NotPaused",
        "The object is not paused.",
        None;
    DELETED = "Deleted",
        "The VM is deleted.",
        None;
    PAUSED = "Paused",
        "The object or its Cluster is paused, so nothing is created, updated or deleted.",
        Some("Set `spec.paused` of the Cluster to false and remove the annotation `cluster.x-k8s.io/paused`, \
            unless `clusterctl move` is running.");

    CREATING = "Creating",
        "CreateMachine was called and has not answered yet.",
        None;
    INITIALIZING = "Initializing",
        "InitializeMachine was called and has not answered yet.",
        None;
    CREATION_TIMED_OUT = "CreationTimedOut",
        "The machine is not provisioned within `spec.creationTimeoutSeconds`; the provider keeps trying.",
        Some("Resolve the error at the end of the message. If the back end is only slow, raise the timeout.");
    SHUTTING_DOWN = "ShuttingDown",
        "The guest is shutting down before its VM is deleted.",
        None;
    DELETING = "Deleting",
        "The VM is being deleted.",
        None;
    CONFIRMING_DELETION = "ConfirmingDeletion",
        "The VM is deleted, and the provider waits for the driver's consistency window before it confirms \
            that.",
        None;
    CREATE_UNANSWERED = "CreateUnanswered",
        "A create was never answered and may still complete, so the provider keeps looking for its VM.",
        Some("Wait until the time in the message.");
    WAITING_FOR_FINALIZERS = "WaitingForFinalizers",
        "This provider has finished the deletion, and finalizers of other controllers keep the object.",
        Some("Find out why the owners of the finalizers in the message do not remove them.");
    DELETE_FOR_MOVE = "DeleteForMove",
        "`clusterctl move` marked the object as moved and did not delete it, so its VM is not touched.",
        Some("If the Cluster was moved, force delete this object. If not, remove the annotation \
            `clusterctl.cluster.x-k8s.io/delete-for-move`.");
    FORCE_DELETED = "ForceDeleted",
        "The finalizer was removed on request, without a confirmation that the VM is deleted.",
        Some("Look for the VM at the back end by its tag `capcmi.io/machine` and delete it.");

    WAITING_FOR_CLUSTER_INFRASTRUCTURE = "WaitingForClusterInfrastructureReady",
        "The InfraCluster is not provisioned, and no machine is created before it is.",
        Some("Resolve the conditions of the InfraCluster.");
    WAITING_FOR_CONTROL_PLANE_ENDPOINT = "WaitingForControlPlaneEndpoint",
        "Neither the InfraCluster nor the Cluster has a control plane endpoint.",
        Some("Set `spec.controlPlaneEndpoint` of the InfraCluster.");
    CONTROL_PLANE_ENDPOINT_CHANGED = "ControlPlaneEndpointChanged",
        "The endpoint of the InfraCluster differs from the endpoint of its Cluster, which never changes.",
        Some("Set `spec.controlPlaneEndpoint` of the InfraCluster to the value in the message, or remove \
            it.");
    WAITING_FOR_BOOTSTRAP_DATA = "WaitingForBootstrapData",
        "The Machine names no bootstrap data Secret yet.",
        Some("If this lasts, check the conditions of the Machine, its bootstrap config and the control \
            plane. Workers wait until the control plane is initialized.");
    WAITING_FOR_OWNER = "WaitingForOwner",
        "No Machine controls the InfraMachine, no Cluster owns the InfraCluster, or the owner does not \
            exist.",
        Some("Correct `spec.infrastructureRef` of the Machine or Cluster, or restore it. Otherwise delete \
            the object.");
    CLUSTER_EXISTS = "ClusterExists",
        "The InfraCluster was deleted, and its Cluster still needs it.",
        Some("Delete the Cluster. To replace only the InfraCluster, remove the finalizer in the message and \
            apply the InfraCluster again.");
    MACHINES_EXIST = "MachinesExist",
        "The InfraCluster was deleted, and machines of its Cluster are left.",
        Some("Wait for their deletion. If they stay, resolve the conditions of the InfraMachines.");
    MACHINE_DELETED = "MachineDeleted",
        "The Machine is being deleted, so its VM is neither created nor changed.",
        Some("If the deletion lasts, check finalizers, hooks and conditions of the Machine.");
    CLUSTER_NOT_FOUND = "ClusterNotFound",
        "The Cluster of the Machine does not exist.",
        Some("Restore the Cluster, or delete the Machine.");
    NOT_REFERENCED = "NotReferenced",
        "`spec.infrastructureRef` of the Machine names another object, so this one gets no VM.",
        Some("Delete this InfraMachine.");
    WAITING_FOR_CAPACITY = "WaitingForCapacity",
        "The back end has no capacity for this class, so creates of the class are suspended.",
        Some("Raise the quota or free capacity, then change any annotation to retry immediately: kubectl \
            annotate inframachine NAME example.com/retry=\"$(date +%s)\" --overwrite");
    WAITING_FOR_DRIVER = "WaitingForDriver",
        "All concurrent calls of the driver are in use.",
        Some("Check `capcmi describe driver NAME`. If the back end can take more calls, raise \
            `maxConcurrentCalls` in the drivers file.");
    WAITING_FOR_UPDATE_REQUEST = "WaitingForUpdateRequest",
        "Cluster API updates the machine in place and has not asked this provider to change the VM.",
        Some("If this lasts, check the other runtime extensions that update machines in place.");
    NOT_HOT_UPDATABLE = "NotHotUpdatable",
        "The spec changed in fields that a running VM does not support.",
        Some("Revert the change, or replace the machine: a new InfraMachineTemplate rolls out a \
            MachineDeployment.");

    DRIVER_NOT_CONFIGURED = "DriverNotConfigured",
        "The drivers file has no such driver for this namespace, or `spec.driver` is needed to choose one.",
        Some("Correct `spec.driver`, or add the driver to the drivers file and restart the provider.");
    INVALID_SECRET = "InvalidSecret",
        "A Secret is missing, cannot be read, or has keys that collide.",
        Some("Create or correct the Secret in the message. If it is lost during a deletion, restore it, or \
            delete the VM by hand and force delete the object.");
    SECRET_CHANGED = "SecretChanged",
        "`spec.secretRef` names another Secret than the one that the VM was created with.",
        Some("Put the new credentials into the original Secret, or replace the machine.");
    DRIVER_CHANGED = "DriverChanged",
        "`spec.driver` names another driver than the one that may have made the VM.",
        Some("Set `spec.driver` back, or replace the machine.");
    INCOMPLETE = "Incomplete",
        "The template lacks a field that every machine needs.",
        Some("If a ClusterClass adds the field, nothing. Otherwise create a template that has the field in \
            the message.");
    INVALID_CAPACITY = "InvalidCapacity",
        "The driver reports a capacity that is not a valid resource quantity.",
        Some("Fix the driver: the message names the resource.");
    UNREADABLE = "Unreadable",
        "The object does not match the schema of its CRD, so the provider cannot write its status.",
        Some("Correct the field in the message, or delete the object.");

    VIRTUAL_MACHINE_VANISHED = "VirtualMachineVanished",
        "The driver confirmed that the VM no longer exists, although its machine was not deleted.",
        Some("Find out at the back end what deleted the VM. Delete the Machine to replace it, unless a \
            MachineHealthCheck does.");
    POWERED_OFF = "PoweredOff",
        "The VM exists and is switched off, by its guest or at the back end.",
        Some("Start it at the back end, or delete the Machine to replace it. With \
            `spec.powerPolicy: AlwaysOn` the provider starts it.");
    VIRTUAL_MACHINE_FAILED = "VirtualMachineFailed",
        "The driver reports that the VM failed and will not run again.",
        Some("Delete the Machine to replace it, unless a MachineHealthCheck does.");
    VIRTUAL_MACHINE_ORPHANED = "VirtualMachineOrphaned",
        "A VM of the Cluster has no InfraMachine.",
        Some("Run `capcmi orphans list`. Delete the VM at the back end, or start the provider with \
            `--orphans=delete`.");
    VIRTUAL_MACHINE_DUPLICATED = "VirtualMachineDuplicated",
        "An InfraMachine has more than one VM.",
        Some("Run `capcmi orphans list`, and delete the VM that no Node runs on.");
    ORPHAN_DELETED = "OrphanDeleted",
        "The provider deleted a VM without an InfraMachine.",
        None;
    ORPHAN_SCAN_INCOMPLETE = "OrphanScanIncomplete",
        "The provider cannot list the VMs of a class, so orphans of deleted machines may be missed.",
        Some("Resolve the error in the message, then run `capcmi orphans list`.");

    IDENTITY_NOT_GUARDED = "IdentityNotGuarded",
        "The admission policies that protect identities are missing or changed, so the provider trusts none.",
        Some("An administrator must repair the policies in the message and confirm the identities that were \
            written meanwhile.");
    FOREIGN_IDENTITY = "ForeignIdentity",
        "The record of the VM cannot be read or belongs to another object, so no VM is touched.",
        Some("Delete the object if it is a copy. Otherwise follow the message.");
    FOREIGN_PROVIDER_ID = "ForeignProviderID",
        "This provider did not write `spec.providerID`, so no VM is touched.",
        Some("Create the machine without a providerID, or adopt the VM by the annotation \
            `infrastructure.capcmi.io/adopt`.");
    ADOPTION_INVALID = "AdoptionInvalid",
        "The VM cannot be adopted, because a field of the object or a capability of the driver is missing.",
        Some("Correct the field in the message. To cancel, delete the InfraMachine first, then its Machine.");
    ADOPTION_CONTESTED = "AdoptionContested",
        "Another InfraMachine has the VM, or is to adopt it.",
        Some("Delete one of the two InfraMachines first, then its Machine.");
    ADOPTION_UNCONFIRMED = "AdoptionUnconfirmed",
        "The driver does not find the VM that is to be adopted.",
        Some("Correct the name, the providerID or the tags of the VM. To cancel, delete the InfraMachine \
            first, then its Machine.");

    NOT_READY_TAINT_REMOVED = "NotReadyTaintRemoved",
        "The VM is initialized, and its Node does not have the not-ready taint.",
        None;
    INVALID_KUBECONFIG = "InvalidKubeconfig",
        "The Secret with the kubeconfig of the workload cluster is missing, cannot be read, or is invalid.",
        Some("Restore the Secret `CLUSTER-kubeconfig`.");
    WORKLOAD_CLUSTER_UNREACHABLE = "WorkloadClusterUnreachable",
        "The API server of the workload cluster does not answer or refuses the request.",
        Some("Check that the provider reaches the API server with the kubeconfig in the Secret \
            `CLUSTER-kubeconfig`.");
    WORKLOAD_CLUSTER_REFUSED = "WorkloadClusterRefused",
        "The API server of the workload cluster refuses to change this Node.",
        Some("Grant the user of the kubeconfig `get` and `patch` on Nodes, or fix the admission policy that \
            the message names.");
    NODE_NOT_FOUND = "NodeNotFound",
        "The workload cluster does not have the Node in `status.nodeRef` of the Machine.",
        Some("Check why the Node is missing in the workload cluster.");
    FOREIGN_NODE = "ForeignNode",
        "The Node in `status.nodeRef` of the Machine has the providerID of another machine.",
        Some("Two machines registered under one name: delete the older Node.");

    NODE_MISSING = "NodeMissing",
        "The VM has been up for longer than a bootstrap takes, and no Node with its ProviderID has joined.",
        Some("Read the last lines of the console in the message, and follow docs/operate/no-node.md.");
    PROVIDER_ID_MISMATCH = "ProviderIDMismatch",
        "The Node has another ProviderID than the VM, or none, so Cluster API does not match them.",
        Some("Correct `provider-id` in the kubelet's arguments of the bootstrap data, and replace the \
            machine.");
    NODE_NOT_MATCHED = "NodeNotMatched",
        "The Node has the ProviderID of the VM, and Cluster API has not matched them.",
        Some("Check the condition `NodeReady` of the Machine and the log of Cluster API's core.");
    BOOTSTRAP_FAILED = "BootstrapFailed",
        "cloud-init has failed in the guest, and no Node has joined.",
        Some("Read the last lines of the console in the message, and correct the image or the bootstrap \
            data.");

    VOLUMES_DRAINED = "VolumesDrained",
        "No pod with volumes is left on the Node.",
        None;
    WAITING_FOR_VOLUMES = "WaitingForVolumes",
        "A pod was evicted, and the pod or its attached volumes are still on the Node.",
        None;
    WAITING_FOR_DISRUPTION_BUDGET = "WaitingForDisruptionBudget",
        "PodDisruptionBudgets do not allow the eviction of the remaining pods with volumes.",
        Some("Make room in the PodDisruptionBudgets of the workload cluster.");
    VOLUME_DETACH_TIMED_OUT = "VolumeDetachTimedOut",
        "The volumes of an evicted pod were not detached in time, and the drain continued with the next pod.",
        Some("Check the CSI driver of the workload cluster.");
    VOLUME_DRAIN_TIMED_OUT = "VolumeDrainTimedOut",
        "The drain took too long or the workload cluster did not answer, so Cluster API drains the Node by \
            itself.",
        Some("Check the PodDisruptionBudgets and the CSI driver of the workload cluster.");
    VOLUME_DRAIN_SKIPPED = "VolumeDrainSkipped",
        "There is nothing to drain, or Cluster API does not drain the Node either.",
        None;
    INVALID_VOLUME_DRAIN = "InvalidVolumeDrain",
        "The annotation that asks for the volume drain has no valid duration.",
        Some("Correct the annotation in the message.");
    HOOK_NOT_PERMITTED = "HookNotPermitted",
        "The provider is not permitted to write Machines, so it cannot delay their drain.",
        Some("Grant the provider the right to patch Machines, or remove the annotation.");

    RESTARTED = "Restarted",
        "The VM was restarted, and its Node has time to become ready.",
        None;
    RESTARTS_EXHAUSTED = "RestartsExhausted",
        "The VM was restarted `spec.strategy.retryLimit` times, and the Machine is still unhealthy.",
        Some("Nothing for this Machine, which is replaced. If it recurs, check on the VM's console why the \
            kubelet does not start.");
    RESTART_NOT_POSSIBLE = "RestartNotPossible",
        "The driver does not support restarts, or the Machine has no VM to restart, so it is replaced.",
        None;
    WAITING_FOR_VIRTUAL_MACHINE = "WaitingForVirtualMachine",
        "The Machine has no running VM of this provider yet, and the remediation waits for it.",
        None;
    WAITING_FOR_HEALTH_CHECK = "WaitingForHealthCheck",
        "The Node is healthy, and no MachineHealthCheck marks the Machine as unhealthy.",
        Some("Nothing if a MachineHealthCheck selects the Machine. Otherwise delete the remediation.");
    LEFT_TO_OWNER = "LeftToOwner",
        "The owner of the Machine replaces it.",
        None;
}

/// Returns the reason of a machine code.
const fn of_code(code: Code) -> Reason {
    let (cause, remedy) = match code {
        Code::ResourceExhausted => (
            "A quota or a pool of the back end is exhausted.",
            "Raise the quota or free capacity, then change any annotation to retry immediately: kubectl \
                annotate inframachine NAME example.com/retry=\"$(date +%s)\" --overwrite",
        ),
        Code::Unauthenticated => (
            "The back end does not accept the credentials.",
            "Put valid credentials of the same account into the Secret, or into the provider's directory.",
        ),
        Code::PermissionDenied => (
            "The back end does not permit the call with these credentials.",
            "Grant the account the permission in the message, or put other credentials of the same account \
                into the Secret.",
        ),
        Code::InvalidArgument => (
            "The driver, or its schema, refuses a value of the spec.",
            "Correct the field in the message: in the InfraMachine before its VM exists, otherwise in a new \
                InfraMachineTemplate.",
        ),
        Code::AlreadyExists => (
            "The back end has a VM with this name that belongs to another machine.",
            "Delete that VM, then change any annotation of the InfraMachine. Or delete the Machine, so that \
                its replacement gets another name.",
        ),
        Code::OutOfRange => (
            "A value of the spec is out of range or, for a look-up, several VMs have the identity of this \
                machine.",
            "Correct the value in the message. If there are several VMs, run `capcmi orphans list` and \
                delete those that no Node runs on.",
        ),
        Code::FailedPrecondition => (
            "The back end is in a state that does not allow the call.",
            "Resolve the problem in the message at the back end.",
        ),
        Code::Internal => (
            "The driver or its back end failed with an internal error.",
            "Check the logs of the driver.",
        ),
        Code::DataLoss => (
            "The back end lost or corrupted data of the VM.",
            "Ask the operators of the back end before you delete anything.",
        ),
        Code::Unimplemented => (
            "The driver does not implement the call.",
            "Upgrade the driver, or remove the setting that needs the call.",
        ),
        Code::Unavailable => (
            "The driver or its back end cannot be reached.",
            "Check that the plugin runs and reaches its back end: `capcmi driver info --endpoint URI`. The \
                provider continues when it is back.",
        ),
        Code::DeadlineExceeded => (
            "The driver did not answer in time.",
            "Check the logs of the driver and its back end. If calls take long in normal operation, raise \
                `timeouts` of the driver in the drivers file.",
        ),
        Code::Canceled => ("The call was canceled and is retried.", RETRIED),
        Code::Unknown => (
            "The driver failed without a known cause, and the call is retried.",
            RETRIED,
        ),
        Code::Aborted => ("The call conflicted with another one and is retried.", RETRIED),
        Code::NotFound => (
            "The driver does not find the VM, and the provider looks it up again.",
            RETRIED,
        ),
        Code::Uninitialized => (
            "The VM exists and is not initialized, so InitializeMachine is called.",
            RETRIED,
        ),
    };
    Reason {
        name: code.name(),
        cause,
        remedy: Some(remedy),
    }
}

/// The remedy where the next try is expected to succeed.
const RETRIED: &str = "If this lasts, check the logs of the driver.";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn names_are_unique_and_have_the_form_of_a_condition_reason() {
        let mut names = BTreeSet::new();
        for Reason { name, .. } in Reason::all() {
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.starts_with(|c: char| c.is_ascii_uppercase()), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        }
    }

    #[test]
    fn cause_is_one_sentence_and_remedy_at_most_two() {
        let sentences = |text: &str| text.split(". ").count();
        for Reason { name, cause, remedy } in Reason::all() {
            assert!(cause.ends_with('.') && sentences(cause) == 1, "{name}: {cause}");
            let remedy = remedy.unwrap_or("None.");
            assert!(sentences(remedy) <= 2, "{name}: {remedy}");
        }
    }

    #[test]
    fn explanation_has_cause_and_remedy() {
        let explained = |name| Reason::named(name).map(Reason::explanation);
        assert_eq!(explained(CREATED).unwrap(), "The VM exists.");
        assert_eq!(
            explained(Code::Aborted.name()).unwrap(),
            format!("The call conflicted with another one and is retried. {RETRIED}")
        );
        assert_eq!(explained("Other"), None);
    }

    #[test]
    fn code_publishes_every_reason() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut text = String::new();
        read_sources(&sources, &mut text);
        let table = include_str!("reason.rs");
        let mut checked = 0;
        for line in table.lines() {
            let Some((constant, value)) = line.split_once(" = \"") else {
                continue;
            };
            let (constant, name) = (constant.trim(), value.split('"').next().unwrap_or_default());
            if OWN.iter().any(|reason| reason.name == name) {
                assert!(
                    text.contains(&format!("reason::{constant}")),
                    "nothing publishes {name}"
                );
                checked += 1;
            }
        }
        assert_eq!(checked, OWN.len());
    }

    /// Appends the sources that may publish a reason: no tests, and not the advice of `capcmi describe`.
    fn read_sources(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_sources(&path, text);
            } else if !path.ends_with("describe/advice.rs") && !path.ends_with("tests.rs") {
                let source = fs::read_to_string(&path).unwrap_or_default();
                text.push_str(
                    source
                        .split("#[cfg(test)]\nmod tests {")
                        .next()
                        .unwrap_or_default(),
                );
            }
        }
    }
}
