//! Reasons of conditions and events, each with its cause and its remedy.
//!
//! `capcmi describe` and the runbook print this table. A condition or event that an error of the driver
//! causes has the name of the machine code as its reason.

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
        "The object or its Cluster is paused.",
        Some("Set `spec.paused` of the Cluster to false and remove the annotation `cluster.x-k8s.io/paused`, \
            unless `clusterctl move` is running.");

    CREATING = "Creating",
        "The driver call has not answered yet.",
        None;
    INITIALIZING = "Initializing",
        "The driver call has not answered yet.",
        None;
    CREATION_TIMED_OUT = "CreationTimedOut",
        "The machine is not provisioned within `spec.creationTimeoutSeconds`; the provider keeps trying.",
        Some("Resolve the error at the end of the message. If the back end is only slow, raise the timeout.");
    SHUTTING_DOWN = "ShuttingDown",
        "The guest is shutting down, or its VM is being deleted.",
        None;
    DELETING = "Deleting",
        "The guest is shutting down, or its VM is being deleted.",
        None;
    CONFIRMING_DELETION = "ConfirmingDeletion",
        "The VM is deleted, and the driver's consistency window has not passed.",
        None;
    CREATE_UNANSWERED = "CreateUnanswered",
        "A create without an answer may still make a VM.",
        Some("Wait until the time in the message.");
    WAITING_FOR_FINALIZERS = "WaitingForFinalizers",
        "Finalizers of other controllers keep the object after its VM is deleted.",
        Some("Find out why their owners do not remove the finalizers in the message.");
    DELETE_FOR_MOVE = "DeleteForMove",
        "`clusterctl move` marked the object and did not delete it, so its VM is not touched.",
        Some("If the Cluster was moved, force delete this object. If not, remove the annotation \
            `clusterctl.cluster.x-k8s.io/delete-for-move`.");
    FORCE_DELETED = "ForceDeleted",
        "The finalizer was removed on request, and the VM may remain.",
        Some("Look for the VM at the back end by its tag `capcmi.io/machine` and delete it.");

    WAITING_FOR_CLUSTER_INFRASTRUCTURE = "WaitingForClusterInfrastructureReady",
        "The InfraCluster is not provisioned.",
        Some("Resolve the conditions of the InfraCluster.");
    WAITING_FOR_CONTROL_PLANE_ENDPOINT = "WaitingForControlPlaneEndpoint",
        "Neither the InfraCluster nor the Cluster has a control plane endpoint.",
        Some("Set `spec.controlPlaneEndpoint` of the InfraCluster.");
    CONTROL_PLANE_ENDPOINT_CHANGED = "ControlPlaneEndpointChanged",
        "The InfraCluster's endpoint differs from the Cluster's, which never changes.",
        Some("Set `spec.controlPlaneEndpoint` of the InfraCluster to the value in the message, or remove \
            it.");
    WAITING_FOR_BOOTSTRAP_DATA = "WaitingForBootstrapData",
        "The Machine names no bootstrap data Secret yet.",
        Some("Workers wait until the control plane is initialized. If this lasts, check the conditions of \
            the Machine, its bootstrap config and the control plane.");
    WAITING_FOR_ADDRESS = "WaitingForAddress",
        "The IPAM provider has not allocated the address that the VM needs.",
        Some("Resolve the reason that the IPAddressClaim in the message reports, such as `PoolExhausted`. \
            Without a reason, check the pool, its free addresses and its IPAM provider.");
    WAITING_FOR_ADDRESS_RELEASE = "WaitingForAddressRelease",
        "The VM is gone, and the IPAM provider has not released its address.",
        Some("Check that the IPAM provider runs. If it was removed for good, remove the finalizers of the \
            IPAddressClaim in the message.");
    ADDRESS_CLAIM_REFUSED = "AddressClaimRefused",
        "The API server refuses the IPAddressClaim of the machine, or does not serve the kind.",
        Some("Resolve the error in the message.");
    ADDRESS_CLAIM_INVALID = "AddressClaimInvalid",
        "The IPAddressClaim with the machine's name belongs to another object, or its IPAddress is not \
            valid.",
        Some("If nothing else needs the object in the message, remove its finalizers and delete it.");
    WAITING_FOR_OWNER = "WaitingForOwner",
        "The object has no Machine or Cluster as owner, or the owner does not exist.",
        Some("Correct `spec.infrastructureRef` of the owner, restore the owner, or delete the object.");
    CLUSTER_EXISTS = "ClusterExists",
        "The InfraCluster was deleted, and its Cluster still needs it.",
        Some("Delete the Cluster. To replace only the InfraCluster, remove the finalizer in the message and \
            apply the InfraCluster again.");
    MACHINES_EXIST = "MachinesExist",
        "The InfraCluster was deleted, and machines of its Cluster are left.",
        Some("Wait for their deletion. If they stay, resolve the conditions of the InfraMachines.");
    MACHINE_DELETED = "MachineDeleted",
        "The Machine is being deleted, so its VM is not created or changed.",
        Some("If the deletion lasts, check finalizers, hooks and conditions of the Machine.");
    CLUSTER_NOT_FOUND = "ClusterNotFound",
        "The Cluster of the Machine does not exist.",
        Some("Restore the Cluster, or delete the Machine.");
    NOT_REFERENCED = "NotReferenced",
        "`spec.infrastructureRef` of the Machine names another object, so this one gets no VM.",
        Some("Delete this InfraMachine.");
    WAITING_FOR_CAPACITY = "WaitingForCapacity",
        "A quota or a pool of the back end is exhausted.",
        Some("Raise the quota or free capacity, then change any annotation to retry immediately: kubectl \
            annotate inframachine NAME example.com/retry=\"$(date +%s)\" --overwrite");
    WAITING_FOR_DRIVER = "WaitingForDriver",
        "All concurrent calls of the driver are in use.",
        Some("Check `capcmi describe driver NAME`. If the back end can take more calls, raise \
            `maxConcurrentCalls` in the drivers file.");
    WAITING_FOR_UPDATE_REQUEST = "WaitingForUpdateRequest",
        "Cluster API updates the machine in place and has not requested the update of the VM.",
        Some("If this lasts, check other runtime extensions for updates in place.");
    NOT_HOT_UPDATABLE = "NotHotUpdatable",
        "The spec changed in fields that a running VM does not support.",
        Some("Revert the change, or replace the machine by a new InfraMachineTemplate.");

    DRIVER_NOT_CONFIGURED = "DriverNotConfigured",
        "No driver of this name serves the namespace, or several serve an object without `spec.driver`.",
        Some("Correct `spec.driver`, or add the driver to the drivers file and restart the provider.");
    INVALID_SECRET = "InvalidSecret",
        "A Secret is missing, cannot be read, or has keys that collide.",
        Some("Correct the Secret in the message, or let the bootstrap provider make it again. If \
            credentials are lost in a deletion, delete the VM by hand and force delete the object.");
    SECRET_CHANGED = "SecretChanged",
        "The spec names another driver or Secret than the create used.",
        Some("Revert the change, or replace the machine. New credentials go into the original Secret.");
    DRIVER_CHANGED = "DriverChanged",
        "The spec names another driver or Secret than the create used.",
        Some("Revert the change, or replace the machine. New credentials go into the original Secret.");
    INCOMPLETE = "Incomplete",
        "The template lacks a field that every machine needs.",
        Some("Create a template with the field in the message, unless a ClusterClass adds it.");
    INVALID_CAPACITY = "InvalidCapacity",
        "The driver reports a capacity that is not a valid resource quantity.",
        Some("Fix the driver: the message names the resource.");
    UNREADABLE = "Unreadable",
        "The object does not fit the schema of its CRD, so its status cannot be written.",
        Some("Correct the field in the message, or delete the object.");

    VIRTUAL_MACHINE_VANISHED = "VirtualMachineVanished",
        "The VM no longer exists, although its machine was not deleted.",
        Some("Find out at the back end what deleted the VM. Delete the Machine to replace it, unless a \
            MachineHealthCheck does.");
    POWERED_OFF = "PoweredOff",
        "The VM is switched off, by its guest or at the back end.",
        Some("Start it at the back end, or delete the Machine to replace it. With `spec.powerPolicy: \
            AlwaysOn` the provider starts it.");
    VIRTUAL_MACHINE_FAILED = "VirtualMachineFailed",
        "The driver reports that the VM failed and will not run again.",
        Some("Delete the Machine to replace it, unless a MachineHealthCheck does.");
    VIRTUAL_MACHINE_ORPHANED = "VirtualMachineOrphaned",
        "A VM of the Cluster has no InfraMachine.",
        Some("Run `capcmi orphans list`. If no Node runs on the VM, delete it at the back end.");
    VIRTUAL_MACHINE_DUPLICATED = "VirtualMachineDuplicated",
        "An InfraMachine has more than one VM.",
        Some("Run `capcmi orphans list`, and delete the VM that no Node runs on.");
    ORPHAN_DELETED = "OrphanDeleted",
        "The provider deleted a VM without an InfraMachine.",
        None;
    ORPHAN_SCAN_INCOMPLETE = "OrphanScanIncomplete",
        "The provider cannot list the VMs of a class, and may miss orphans.",
        Some("Resolve the error in the message, then run `capcmi orphans list`.");

    IDENTITY_NOT_GUARDED = "IdentityNotGuarded",
        "Admission policies are missing or changed, so the provider trusts no identity.",
        Some("An administrator must repair the policies in the message and confirm the identities.");
    FOREIGN_IDENTITY = "ForeignIdentity",
        "The VM's record is unreadable or of another object, so no VM is touched.",
        Some("Delete the object if it is a copy. Otherwise follow the message.");
    FOREIGN_PROVIDER_ID = "ForeignProviderID",
        "This provider did not write `spec.providerID`, so no VM is touched.",
        Some("Create the machine without a providerID, or adopt the VM by the annotation \
            `infrastructure.capcmi.io/adopt`.");
    ADOPTION_INVALID = "AdoptionInvalid",
        "The adoption lacks a field of the object or a capability of the driver.",
        Some("Correct the field in the message. To cancel, delete the InfraMachine first, then its Machine.");
    ADOPTION_CONTESTED = "AdoptionContested",
        "Another InfraMachine has or adopts the VM.",
        Some("Delete one of the InfraMachines first, then its Machine.");
    ADOPTION_UNCONFIRMED = "AdoptionUnconfirmed",
        "The driver does not find the VM to adopt.",
        Some("Correct the name, providerID or tags in the message. To cancel, delete the InfraMachine first, \
            then its Machine.");

    NOT_READY_TAINT_REMOVED = "NotReadyTaintRemoved",
        "The VM is initialized, and its Node does not have the not-ready taint.",
        None;
    INVALID_KUBECONFIG = "InvalidKubeconfig",
        "The Secret `CLUSTER-kubeconfig` is missing, cannot be read, or is invalid.",
        Some("Restore the Secret.");
    WORKLOAD_CLUSTER_UNREACHABLE = "WorkloadClusterUnreachable",
        "The API server of the workload cluster does not answer or refuses the request.",
        Some("Check that the provider reaches it with the kubeconfig in the Secret `CLUSTER-kubeconfig`.");
    WORKLOAD_CLUSTER_REFUSED = "WorkloadClusterRefused",
        "The API server of the workload cluster refuses to change this Node.",
        Some("Grant the kubeconfig's user `get` and `patch` on Nodes, or fix the admission policy in the \
            message.");
    NODE_NOT_FOUND = "NodeNotFound",
        "The workload cluster lacks the Node in `status.nodeRef` of the Machine.",
        Some("Check why the Node is missing.");
    FOREIGN_NODE = "ForeignNode",
        "The Node in `status.nodeRef` of the Machine has the providerID of another machine.",
        Some("Two machines registered under one name: delete the older Node.");

    NODE_MISSING = "NodeMissing",
        "The VM is up for longer than a bootstrap takes, and no Node with its ProviderID has joined.",
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
        "An evicted pod or its attached volumes are still on the Node.",
        None;
    WAITING_FOR_DISRUPTION_BUDGET = "WaitingForDisruptionBudget",
        "PodDisruptionBudgets do not allow more evictions.",
        Some("Make room in the PodDisruptionBudgets of the workload cluster.");
    VOLUME_DETACH_TIMED_OUT = "VolumeDetachTimedOut",
        "The volumes of an evicted pod were not detached in time, and the drain continued.",
        Some("Check the CSI driver of the workload cluster.");
    VOLUME_DRAIN_TIMED_OUT = "VolumeDrainTimedOut",
        "The drain or the workload cluster took too long, so Cluster API drains the Node itself.",
        Some("Check the PodDisruptionBudgets and the CSI driver of the workload cluster.");
    VOLUME_DRAIN_SKIPPED = "VolumeDrainSkipped",
        "There is nothing to drain, or Cluster API does not drain the Node either.",
        None;
    INVALID_VOLUME_DRAIN = "InvalidVolumeDrain",
        "The annotation for the volume drain has no valid duration.",
        Some("Correct the annotation in the message.");
    HOOK_NOT_PERMITTED = "HookNotPermitted",
        "The provider may not write Machines, so it cannot delay their drain.",
        Some("Grant it the right to patch Machines, or remove the annotation.");

    RESTARTED = "Restarted",
        "The VM was restarted or, with `AlwaysOn`, started, and its Node has time to become ready.",
        None;
    RESTARTS_EXHAUSTED = "RestartsExhausted",
        "The VM was restarted `spec.strategy.retryLimit` times without success, so the Machine is replaced.",
        Some("If it recurs, check on the VM's console why the kubelet does not start.");
    RESTART_NOT_POSSIBLE = "RestartNotPossible",
        "The driver cannot restart, or there is no VM, so the Machine is replaced.",
        None;
    WAITING_FOR_VIRTUAL_MACHINE = "WaitingForVirtualMachine",
        "The remediation waits for a running VM of the Machine.",
        None;
    WAITING_FOR_HEALTH_CHECK = "WaitingForHealthCheck",
        "The Node is healthy, and no MachineHealthCheck marks the Machine as unhealthy.",
        Some("Delete the remediation, unless a MachineHealthCheck selects the Machine.");
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
            "Grant the account the permission in the message, or put other credentials of it into the \
                Secret.",
        ),
        Code::InvalidArgument => (
            "The driver, or its schema, refuses a value of the spec.",
            "Correct the field in the message: in the InfraMachine before its VM exists, otherwise in a new \
                InfraMachineTemplate.",
        ),
        Code::AlreadyExists => (
            "The back end has a VM with this name that belongs to another machine.",
            "Delete that VM, then change any annotation of the InfraMachine. Or delete the Machine: its \
                replacement gets another name.",
        ),
        Code::OutOfRange => (
            "A value of the spec is out of range, or the machine has several VMs.",
            "Correct the value in the message. Of several VMs, delete those that no Node runs on: `capcmi \
                orphans list`.",
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
            "Check that the plugin runs and reaches its back end: `capcmi driver info --endpoint URI`.",
        ),
        Code::DeadlineExceeded => (
            "The driver did not answer in time.",
            "Check the logs of the driver and its back end. If calls always take long, raise the driver's \
                `timeouts` in the drivers file.",
        ),
        Code::Canceled | Code::Unknown => ("The call failed and is retried.", RETRIED),
        Code::Aborted => ("The call conflicted with another one and is retried.", RETRIED),
        Code::NotFound => (
            "The driver does not find the VM, which is looked up again.",
            RETRIED,
        ),
        Code::Uninitialized => (
            "The VM is not initialized, so InitializeMachine is called.",
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
