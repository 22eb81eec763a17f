//! Why a migration stops.

use capcmi::api::identity::InvalidRecord;

/// Why a migration stopped. The created objects stay, and the next run continues from there.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server refused or could not be reached.
    #[error("{action} failed")]
    Api {
        /// The attempted request.
        action: String,
        /// Why not.
        source: kube::Error,
    },
    /// The record of an InfraMachine can't be read, so the Secret that its VM uses is unknown.
    #[error("cannot read which Secret InfraMachine {name} uses")]
    Record {
        /// The object.
        name: String,
        /// Why not.
        source: InvalidRecord,
    },
    /// Objects of others have the needed names.
    #[error("objects with these names exist, and no migration created them: {0}; rename or delete them")]
    AlreadyExists(String),
    /// Cluster API does not take the Machines over.
    #[error(
        "Cluster API's core manager has not made MachineSet {set} the owner of all its Machines; missing: \
            {left}; check that it runs and that the Cluster is not paused, then run the command again"
    )]
    MachinesNotAdopted {
        /// The MachineSet.
        set: String,
        /// The Machines that are not its own.
        left: String,
    },
    /// The old controller is running, and would delete the migrated machines.
    #[error(
        "machine-controller-manager is running, as Lease {0} is held or changes, and would delete migrated \
            VMs: scale it and its provider's controller to 0, wait one minute, then run the command again"
    )]
    Running(String),
    /// The objects of an earlier run differ from the current plan.
    #[error(
        "objects of an earlier run differ from the current plan, which would replace or delete machines, or \
            create them from old data: {0}; run the command with the flags and files of the earlier run; if \
            a class or its Secrets changed, change the new objects in the same way; for added machines, \
            scale the new objects up to their number first"
    )]
    Differs(String),
    /// Machines that came after their group was migrated.
    #[error(
        "machine-controller-manager ran after the migration, and these Machines of migrated owners are not \
            marked as migrated: {0}; remove their ownerReferences to migrate each individually, or mark a \
            Machine that Cluster API has deleted with infrastructure.capcmi.io/migrated-to"
    )]
    MachinesAddedSince(String),
    /// VMs that the provider has not adopted.
    #[error(
        "the provider has not adopted the VMs of these InfraMachines, so their group stays paused: {0}; \
            check that it runs, resolve the reasons it reports, then run the command again to continue"
    )]
    VmsNotAdopted(String),
    /// An undo was begun and has not ended.
    #[error(
        "an unfinished --undo exists, with these objects left: {0}; finish it with --undo, then migrate \
            again"
    )]
    BeingUndone(String),
    /// Core has not paused the objects that are about to be deleted.
    #[error(
        "Cluster API's core manager has not paused {0}; check that it runs and that nothing removes the \
            pause, then run the command again to continue"
    )]
    NotPaused(String),
    /// Another deletes an object that is to be released.
    #[error(
        "{0} is being deleted together with its VM; wait for that, remove the Machine of \
            machine-controller-manager whose VM no longer exists, then run the command again to continue"
    )]
    BeingDeleted(String),
    /// A machine was changed between the read and the release.
    #[error("{0}; revert the change, then run the command again to continue")]
    Changed(String),
    /// Another client keeps writing the object.
    #[error(
        "another client keeps writing InfraMachine {0}, so it cannot be deleted unchanged; it may have \
            annotation {annotation}; run the command again to continue",
        annotation = capcmi::api::annotations::FORCE_DELETE
    )]
    Contended(String),
    /// An object owns Machines that the garbage collector would delete with it.
    #[error(
        "{owner} has {dependents}, which no migration created and which would be deleted with it: delete \
            them, or remove their ownerReferences, then run the command again to continue"
    )]
    HasOtherDependents {
        /// The object that is to be deleted.
        owner: String,
        /// The objects that it owns.
        dependents: String,
    },
    /// Another client refuses or removes the annotation that keeps the VM.
    #[error(
        "annotation {annotation} was removed from InfraMachine {0}, and without it the VM would be deleted, \
            so the object was kept; find out what removes the annotation, then run the command again",
        annotation = capcmi::api::annotations::FORCE_DELETE
    )]
    NotForced(String),
    /// Objects that were deleted and have not gone.
    #[error(
        "these objects are being deleted and still exist; no VM was changed: {0}; check that the provider \
            runs and what holds the objects, then run the command again to continue"
    )]
    NotGone(String),
    /// An object that can't be encoded.
    #[error("cannot encode {name}")]
    Encode {
        /// Its name.
        name: String,
        /// Why not.
        source: serde_json::Error,
    },
}

impl WriteError {
    /// Whether the write conflicted with a concurrent write (409).
    pub(super) fn is_conflict(&self) -> bool {
        self.is_answered(409)
    }

    /// Whether the object does not exist (404).
    pub(super) fn is_not_found(&self) -> bool {
        self.is_answered(404)
    }

    fn is_answered(&self, code: u16) -> bool {
        matches!(self, Self::Api { source: kube::Error::Api(refused), .. } if refused.code == code)
    }

    pub(super) fn api(action: impl Into<String>, source: kube::Error) -> Self {
        Self::Api {
            action: action.into(),
            source,
        }
    }
}
