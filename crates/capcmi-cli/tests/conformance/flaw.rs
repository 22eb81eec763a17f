//! What can be wrong with a driver: each breaks one rule.

use cmi_driver::{Code, Operation};

/// What is wrong with a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing is.
    Nothing,
    /// A call answers the second code where the first belongs.
    Says(Operation, Code, Code),
    /// A call answers OK where this code belongs.
    Pretends(Operation, Code),
    /// The errors of a call have no message.
    Mute(Operation),
    /// The errors of a call say no more than their code.
    Parrots(Operation),
    /// A call never ends.
    Hangs(Operation),
    /// So many calls run at a time, and Probe is one of them.
    RunsAtATime(u32),
    /// A create that is under way when the driver is killed leaves a lock behind.
    RestartLeavesALock,
    /// A call panics.
    Panics(Operation),
    /// After so many calls the driver is gone.
    DiesAfter(u32),
    /// A name with a dot is the end of the driver.
    DiesOfDots,
    /// A call that is given up leaves something half made.
    LeavesHalf(Operation),
    /// A call that runs beside another of its kind fails with INTERNAL.
    FailsAtOnce(Operation),
    /// A call is declared and not implemented.
    Boasts(Operation),
    /// A call is implemented and not declared.
    Hides(Operation),
    /// A call is UNIMPLEMENTED every second time.
    Wavers(Operation),
    /// The second call of this kind on a machine fails with INTERNAL.
    OnlyOnce(Operation),

    /// The name is no domain name.
    InfoBadName,
    /// The name is longer than 63 bytes.
    InfoLongName,
    /// The name has dots with nothing between them.
    InfoEmptyLabel,
    /// The version is longer than any text may be.
    InfoLongVersion,
    /// There is no version.
    InfoNoVersion,
    /// The name holds no host name.
    InfoNoHost,
    /// The manifest is beyond every limit.
    InfoHugeManifest,
    /// The capabilities are others every time.
    CapabilitiesChange,
    /// What can be updated is asked of the back end: nothing while that is away.
    CapabilitiesOfTheBackEnd,
    /// The schema refuses what its author takes for a spec.
    SchemaRefusesTheSample,
    /// The schema is none.
    SchemaIsNone,
    /// The driver is never ready.
    ProbeNeverReady,
    /// The driver is always ready.
    ProbeAlwaysReady,
    /// A driver that starts says that it is broken.
    ProbeFailsWhileStarting,
    /// Probe answers what the back end does.
    ProbeAsksTheBackEnd,

    /// What was made before a restart is forgotten.
    RestartForgets,
    /// What was made before a restart is not found, and the rest of it is as it was.
    RestartHides,
    /// A VM has another id after a restart.
    RestartNewIds,
    /// The driver can do something else after a restart.
    RestartNewCapabilities,
    /// The driver has another name after a restart.
    RestartNewName,
    /// The driver is not ready any more after a restart.
    RestartNeverReady,

    /// CreateMachine makes a second VM of a machine that has one.
    CreateForgets,
    /// CreateMachine looks, waits, and makes: two at once make two.
    CreateRaces,
    /// CreateMachine looks and makes, without a lock and with next to no time between them.
    CreateRacesAtOnce,
    /// CreateMachine looks, waits, and makes; of several it gives the first, so that
    /// they are not noticed later.
    CreateRacesUnseen,
    /// A VM is made and then found to be out of range.
    CreateMakesOutOfRange,
    /// CreateMachine makes a VM of no cluster, which DeleteMachine refuses.
    CreateNeedsNoCluster,
    /// CreateMachine adopts whatever has the name.
    CreateAdoptsAnything,
    /// CreateMachine answers a new id every time.
    CreateNewId,
    /// Every VM has the same id.
    CreateOneId,
    /// The node has no name.
    CreateNoNodeName,
    /// The node's name is none that Kubernetes takes.
    CreateBadNodeName,
    /// The node's name is another the second time.
    CreateNewNodeName,
    /// The VM gets no bootstrap data.
    CreateDropsUserData,
    /// What is mandatory is made up when it is missing.
    CreateMakesUpFields,
    /// A message does not name the field.
    CreateVagueMessage,
    /// A VM is made and then found to be invalid.
    CreateMakesThenChecks,
    /// A VM is made beyond the quota.
    CreateMakesBeyondQuota,
    /// A field that is not mandatory has to be there.
    CreateWantsMore,
    /// A cluster's VM is every cluster's.
    CreateClusterBlind,
    /// Names have to be short.
    CreateShortNames,
    /// Of a name, these first characters count.
    CutsNames(usize),
    /// A machine is known by its cluster and its name in one text, which others may give, too.
    CreateJoinsClusterAndName,
    /// `.` in a name is `-`.
    DotsAreDashes,
    /// CreateMachine keeps the name of a machine whose spec it refused.
    CreateRemembersRefused,
    /// Bootstrap data is read as text: what is none is replaced.
    UserDataAsText,
    /// Of bootstrap data, the first bytes count.
    UserDataCut,
    /// A log holds bootstrap data, in base64, when the back end is broken.
    LogsWhenBroken,
    /// A log holds credentials that were refused.
    LogsRefused,
    /// CreateMachine goes on when its caller has given it up, and keeps no deletion away.
    CreateRunsOn,
    /// The same where it takes no longer than its back end.
    CreateRunsOnAtOnce,
    /// The names of fields are read in any case.
    ReadsKeysInAnyCase,
    /// A spec without tags is one of a cluster of its own.
    NeedsNoTags,
    /// A field that is null is a broken invariant.
    ChokesOnNull(Operation),
    /// A list in place of a text is an error without a code.
    ChokesOnLists(Operation),
    /// A size of the root file system, which need not be there, that is no number is a broken invariant.
    ChokesOnRootFsSize(Operation),
    /// A failure domain, which need not be there, that is no text is a broken invariant.
    ChokesOnFailureDomain(Operation),
    /// A tag beside that of the cluster that is no text is a broken invariant.
    ChokesOnTags(Operation),
    /// A tag of the machine object that is no text is read as one: null as `null`.
    ReadsTagsAsText,
    /// A tag with a character outside of ASCII is a broken invariant.
    ChokesOnUmlauts,
    /// The bytes of the tag of the machine object are read as Latin-1.
    ReadsTextAsLatin1,
    /// Characters outside of ASCII are left out of the tag of the machine object.
    DropsUmlauts,
    /// A source of a volume that is null is a broken invariant.
    VolumesChokeOnNull,
    /// A handle of a volume that is null or no text is written as it is.
    VolumesWriteAnyHandle,
    /// A handle of a volume that is no text is an error without a code.
    VolumesChokeOnHandles,
    /// A LastKnownState that is not its own is a broken invariant.
    CreateChokesOnState,

    /// A VM that was made with other bootstrap data is another one.
    CreateComparesUserData,
    /// A machine of a control plane is refused.
    CreateRefusesControlPlanes,
    /// A VM that was made from another spec is not found, and so not deleted.
    DeleteComparesTheSpec,
    /// Of several VMs of a machine, DeleteMachine deletes the first.
    DeleteTheFirst,
    /// What was listed last is the list while the back end is away.
    ListRemembers,
    /// DeleteMachine answers OK before the VM is gone.
    DeleteTooEarly,
    /// DeleteMachine answers OK and does nothing.
    DeleteDoesNothing,
    /// DeleteMachine can't.
    DeleteFails,
    /// What is not there is NOT_FOUND.
    DeleteNotFound,
    /// DeleteMachine deletes by name in every cluster.
    DeleteAnyCluster,
    /// DeleteMachine deletes whatever has the id.
    DeleteAnyId,
    /// DeleteMachine deletes whatever has the id in the cluster.
    DeleteAnyIdOfCluster,
    /// DeleteMachine deletes the VM of another machine object.
    DeleteAnyIdentity,
    /// DeleteMachine deletes the whole cluster.
    DeleteAll,
    /// DeleteMachine deletes another VM of the cluster.
    DeleteAnother,
    /// DeleteMachine deletes every VM of the cluster whose name begins so.
    DeleteByBeginning,
    /// DeleteMachine wants an id.
    DeleteWantsId,
    /// DeleteMachine refuses an id.
    DeleteRefusesId,
    /// DeleteMachine wants a VM that is initialized.
    DeleteWantsInitialized,

    /// GetMachineStatus answers another id than CreateMachine.
    StatusOtherId,
    /// GetMachineStatus answers another node name than CreateMachine.
    StatusOtherNodeName,
    /// GetMachineStatus finds by name in every cluster.
    StatusAnyCluster,
    /// GetMachineStatus finds whatever has the id.
    StatusAnyId,
    /// GetMachineStatus finds whatever has the id in the cluster.
    StatusAnyIdOfCluster,
    /// GetMachineStatus finds the VM of another machine object.
    StatusAnyIdentity,
    /// GetMachineStatus finds a VM whose name begins so.
    StatusByBeginning,
    /// What GetMachineStatus did not find once it does not find any more.
    StatusRemembersAbsence,
    /// GetMachineStatus changes the back end.
    StatusWrites,
    /// GetMachineStatus answers NOT_FOUND every third time.
    StatusForgets,
    /// GetMachineStatus finds any VM of the cluster.
    StatusFindsAnother,
    /// GetMachineStatus names no VM of several.
    StatusNamesNone,
    /// GetMachineStatus does not say whether the VM runs. That breaks no rule.
    StatusWithoutPower,
    /// Code 17 comes without the VM.
    StatusForgetsMachine,
    /// What is not initialized is fine.
    StatusOverlooksInitialization,

    /// The list holds the VMs of all clusters.
    ListLeaks,
    /// The list ends after a page.
    ListOnePage,
    /// The list ends after a page of 100.
    ListOneLongPage,
    /// The list ends after a page of 200.
    ListOnePageOf200,
    /// The list still holds what was deleted.
    ListKeepsDeleted,
    /// The list leads from ids to the names of others.
    ListSwapsNames,
    /// The list leads from ids to no names.
    ListNoNames,
    /// The list gives each VM to the machine of another.
    ListSwapsOwners,
    /// The list says of every VM that it is of one cluster, whichever that is.
    ListKnowsOneCluster,
    /// An empty cluster is NOT_FOUND.
    ListEmptyNotFound,
    /// Without a cluster everything is listed.
    ListEverything,

    /// ShutDownMachine answers OK and does nothing.
    ShutDownDoesNothing,
    /// ShutDownMachine answers OK when the guest has accepted to stop, and GetMachineStatus sees it run until
    /// it has. That breaks no rule.
    ShutDownAccepts,
    /// ShutDownMachine deletes.
    ShutDownDeletes,
    /// ShutDownMachine stops every guest of the name.
    ShutDownAnyCluster,

    /// InitializeMachine changes the VM every time.
    InitializeWrites,
    /// InitializeMachine makes what is not there.
    InitializeMakes,
    /// InitializeMachine answers with another VM.
    InitializeOtherId,
    /// InitializeMachine answers another node name than CreateMachine.
    InitializeOtherNodeName,
    /// InitializeMachine answers no node name.
    InitializeNoNodeName,

    /// CreateMachine takes a VM with other hot-updatable fields for another one.
    CreateRefusesHotUpdates,

    /// UpdateMachine replaces the VM.
    UpdateReplaces,
    /// UpdateMachine answers OK and changes nothing.
    UpdateDoesNothing,
    /// UpdateMachine changes the VM every time.
    UpdateWritesAgain,
    /// UpdateMachine does nothing when the last applied spec is the new one, whatever the VM has.
    UpdateTrustsTheLastApplied,
    /// UpdateMachine refuses where the VM has not what was applied last.
    UpdateNeedsTheLastApplied,
    /// UpdateMachine changes a VM that has no labels yet, and says of any other that it did.
    UpdateOnlyOfABareVm,
    /// UpdateMachine changes the VM when there is nothing to change.
    UpdateWritesNothing,
    /// UpdateMachine writes other values than those that are asked for, and compares with these.
    UpdateWritesOtherValues,
    /// Of several new values, UpdateMachine writes the first.
    UpdateWritesTheFirst,
    /// UpdateMachine leaves on the VM what it has set before.
    UpdateTakesNothingBack,
    /// UpdateMachine writes a question mark for each character outside of ASCII.
    UpdateWritesAscii,
    /// UpdateMachine takes the tag of its machine object from the VM, as the list shows it.
    UpdateDropsTheOwner,
    /// UpdateMachine takes a label from the VM that the back end has given it.
    UpdateDropsOtherLabels,
    /// UpdateMachine of what is not there is OK.
    UpdateNotThere,
    /// UpdateMachine updates the VM of another cluster.
    UpdateAnyCluster,
    /// UpdateMachine leaves a VM without the tag of its machine, and says OK.
    UpdateAddsNoMachineTag,
    /// UpdateMachine gives a VM the tag of another machine.
    UpdateReplacesMachineTag,
    /// A VM that got the tag of its machine is not found without it.
    StatusWantsMachineTag,
    /// A VM that got the tag of its machine is not deleted without it.
    DeleteWantsMachineTag,
    /// What was updated is not found by its new spec.
    UpdateLosesTheVm,

    /// RestartMachine answers OK and does nothing.
    RestartDoesNothing,
    /// RestartMachine makes the VM anew.
    RestartReplaces,
    /// RestartMachine of what is not there is OK.
    RestartNotThere,
    /// RestartMachine makes what is not there.
    RestartMakes,
    /// RestartMachine restarts the VM of another cluster.
    RestartAnyCluster,
    /// RestartMachine restarts the VM of another machine object.
    RestartAnyIdentity,

    /// A failure domain is listed twice.
    ZonesTwice,
    /// A failure domain has no name.
    ZonesNameless,
    /// No machine can be made in the failure domains that are listed.
    ZonesMadeUp,
    /// The failure domains are others every time.
    ZonesChange,
    /// A capacity is no quantity.
    DescribesGarbage,
    /// The architecture is none that is known.
    DescribesUnknownArchitecture,

    /// The last volume is forgotten.
    VolumesForgetOne,
    /// The first own volume alone counts.
    VolumesFirstAlone,
    /// What is between own volumes ends the list.
    VolumesUntilForeign,
    /// The volumes come in another order.
    VolumesSorted,
    /// A volume of another driver gets an id.
    VolumesMakeUp,
    /// A volume of another driver is an error.
    VolumesRefuseForeign,
    /// What was asked before is not answered again.
    VolumesOnce,
    /// An empty list is INVALID_ARGUMENT. That breaks no rule.
    VolumesRefuseNone,
    /// A volume without a source is INVALID_ARGUMENT. That breaks no rule.
    VolumesRefuseNoSource,

    /// Migration renames the class.
    MigrateRenames,
    /// Migration adds to what it finds.
    MigrateAdds,

    /// An error holds a credential.
    SecretInMessage,
    /// An error holds a word of the bootstrap data.
    SecretOfUserData,
    /// An error holds bootstrap data, in base64.
    SecretEncoded,
    /// An error holds bootstrap data, written so.
    SecretWritten(Writing),
    /// A LastKnownState holds a credential.
    SecretInState,
    /// An address holds a credential.
    SecretInAddress,
}

/// How a program writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// As Go's `%v` does.
    Decimal,
    /// As Go's `%x` does.
    Hexadecimal,
    /// As Go's `%X` does.
    Capitals,
    /// As an URL has them.
    PercentEncoded,
    /// As a JSON Web Token has them.
    Base64Url,
    /// As a part of something longer.
    InBase64,
    /// In base64 with the line breaks of a mail, as a literal has them.
    InLines,
}
