//! Why a migration stops.

/// Why a migration stopped. The objects that were made stay, and the next run goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server refused or could not be reached.
    #[error("{action} failed")]
    Api {
        /// What was about to be done.
        action: String,
        /// Why not.
        source: kube::Error,
    },
    /// Objects of others have the needed names.
    #[error(
        "objects of these names are there already, and no migration has made them: {0}; rename or delete them"
    )]
    AlreadyExists(String),
    /// Cluster API does not take the Machines over.
    #[error(
        "Cluster API's core manager has not made MachineSet `{set}` the owner of all its Machines; left are: \
            {left}; check that it runs and the Cluster is not paused, and run the command again"
    )]
    MachinesNotAdopted {
        /// The MachineSet.
        set: String,
        /// The Machines that are not its own.
        left: String,
    },
    /// The old controller runs, and would delete what is migrated.
    #[error(
        "machine-controller-manager runs: the Lease {0} is held or changes, and it would delete VMs that are \
            migrated; scale it and its provider's controller to 0, wait a minute, and run the command again"
    )]
    Running(String),
    /// The objects of an earlier run differ from what is planned now.
    #[error(
        "what an earlier run has made differs from what is planned now, so that machines would be replaced \
            or deleted, or be made from what is old: {0}; run the command with the flags and files of the \
            earlier run; where a class or its Secrets have changed since, change the new objects in the same \
            way; for machines that have come since, scale the new objects up to their number first"
    )]
    Differs(String),
    /// Machines that came after their group was migrated.
    #[error(
        "machine-controller-manager has run since: these Machines are not marked as migrated, and what keeps \
            them was migrated before without them: {0}; take their ownerReferences away to migrate each on \
            its own, or mark one that Cluster API has deleted since with infrastructure.capcmi.io/migrated-to"
    )]
    MachinesAddedSince(String),
    /// VMs that the provider has not adopted.
    #[error(
        "the provider has not adopted the VMs of these InfraMachines, so that their group stays paused: {0}; \
            check that it runs, repair what it says, and run the command again, which goes on from here"
    )]
    VmsNotAdopted(String),
    /// An undo was begun and has not ended.
    #[error(
        "a migration is being undone, of which these are left: {0}; end that with --undo, with which it goes \
            on where it stopped, and then migrate again"
    )]
    BeingUndone(String),
    /// Core has not paused the objects that are about to be deleted.
    #[error(
        "Cluster API's core manager has not paused {0}; check that it runs and nothing takes the pause away, \
            and run the command again, which goes on from here"
    )]
    NotPaused(String),
    /// Another deletes an object that is to be released.
    #[error(
        "{0} is being deleted, and its VM with it: let that end, take the Machine of \
            machine-controller-manager away whose VM has gone, and run the command again, which goes on from \
            here"
    )]
    BeingDeleted(String),
    /// A machine was changed between the read and the release.
    #[error("{0}; change it back, and run the command again, which goes on from here")]
    Changed(String),
    /// Another keeps writing the object.
    #[error(
        "InfraMachine {0} is written again and again by another, so that it can't be deleted as it was \
            looked at; it may carry the annotation {annotation} by now; run the command again, which goes on \
            from here",
        annotation = crate::api::annotations::FORCE_DELETE
    )]
    Contended(String),
    /// An object owns Machines that the garbage collector would delete with it.
    #[error(
        "{owner} has {dependents}, which no migration has made, and which would be deleted with it: delete \
            them, or take their ownerReferences away, and run the command again, which goes on from here"
    )]
    HasOtherDependents {
        /// The object that is to be deleted.
        owner: String,
        /// The objects that it owns.
        dependents: String,
    },
    /// Another refuses or removes the annotation that keeps the VM.
    #[error(
        "InfraMachine {0} does not keep the annotation {annotation}, without which its VM would be deleted, \
            so it was left; find out what takes the annotation away, and run the command again",
        annotation = crate::api::annotations::FORCE_DELETE
    )]
    NotForced(String),
    /// Objects that were deleted and have not gone.
    #[error(
        "these objects are deleted and have not gone, but no VM was touched: {0}; check that the provider \
            runs and what holds them, and run the command again, which goes on from here"
    )]
    NotGone(String),
    /// An object that can't be encoded.
    #[error("{name} can't be put together")]
    Encode {
        /// Its name.
        name: String,
        /// Why not.
        source: serde_json::Error,
    },
}

impl WriteError {
    /// Whether the write lost to a concurrent one (409).
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
