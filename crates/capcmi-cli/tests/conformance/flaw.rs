//! The flaws of the mutants. Each breaks one rule.

use cmi_driver::{Code, Operation};

/// A flaw of a driver.
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
    /// The errors of a call contain only their code.
    Parrots(Operation),
    /// A call never ends.
    Hangs(Operation),
    /// This many calls run concurrently, including Probe.
    RunsAtATime(u32),
    /// A create that is running when the driver is killed leaves a lock behind.
    RestartLeavesALock,
    /// A call panics.
    Panics(Operation),
    /// The driver dies after this many calls.
    DiesAfter(u32),
    /// The driver dies at a name with a dot.
    DiesOfDots,
    /// An abandoned call leaves its work half done.
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
    /// The updatable fields come from the back end: none during an outage.
    CapabilitiesOfTheBackEnd,
    /// The schema refuses its author's sample spec.
    SchemaRefusesTheSample,
    /// The schema is not valid JSON Schema.
    SchemaIsNone,
    /// The driver is never ready.
    ProbeNeverReady,
    /// The driver is always ready.
    ProbeAlwaysReady,
    /// A starting driver reports that it is broken.
    ProbeFailsWhileStarting,
    /// Probe returns the back end's result.
    ProbeAsksTheBackEnd,

    /// The driver forgets its VMs at a restart.
    RestartForgets,
    /// After a restart, lookups miss the existing VMs; the rest works as before.
    RestartHides,
    /// A VM has another id after a restart.
    RestartNewIds,
    /// The driver can do something else after a restart.
    RestartNewCapabilities,
    /// The driver has another name after a restart.
    RestartNewName,
    /// The driver never becomes ready after a restart.
    RestartNeverReady,

    /// CreateMachine creates a second VM for a machine that has one.
    CreateForgets,
    /// CreateMachine checks, waits, then creates: two concurrent calls create two VMs.
    CreateRaces,
    /// CreateMachine checks and creates without a lock, with almost no time in between.
    CreateRacesAtOnce,
    /// CreateMachine checks, waits and creates. If there are several VMs, it returns the first, so that later
    /// calls do not reveal them.
    CreateRacesUnseen,
    /// A VM is created and then refused as out of range.
    CreateMakesOutOfRange,
    /// VMs have no static addresses.
    CreateIgnoresStaticAddresses,
    /// Every VM also has the static address of the first one.
    CreateAddsFirstStaticAddress,
    /// CreateMachine adopts a VM with another static address.
    CreateAdoptsOtherStaticAddresses,
    /// The static address of a deleted VM stays taken.
    DeleteKeepsStaticAddresses,
    /// CreateMachine creates a VM without a cluster, which DeleteMachine refuses.
    CreateNeedsNoCluster,
    /// CreateMachine adopts any VM with the name.
    CreateAdoptsAnything,
    /// CreateMachine answers a new id every time.
    CreateNewId,
    /// Every VM has the same id.
    CreateOneId,
    /// The id ends in the machine's name, which other clusters have, too.
    CreateIdEndsInName,
    /// CreateMachine tries a full failure domain and gives up.
    CreateTriesAFullZone,
    /// CreateMachine ignores that the requested failure domain is full.
    CreateIgnoresAFullZone,
    /// The node has no name.
    CreateNoNodeName,
    /// The node name is not valid in Kubernetes.
    CreateBadNodeName,
    /// The node's name is another the second time.
    CreateNewNodeName,
    /// The VM gets no bootstrap data.
    CreateDropsUserData,
    /// Missing mandatory fields get made-up values.
    CreateMakesUpFields,
    /// A message does not name the field.
    CreateVagueMessage,
    /// A VM is created and then refused as invalid.
    CreateMakesThenChecks,
    /// A VM is created beyond the quota.
    CreateMakesBeyondQuota,
    /// An optional field is required.
    CreateWantsMore,
    /// A cluster's VM is every cluster's.
    CreateClusterBlind,
    /// Names have to be short.
    CreateShortNames,
    /// Of a name, these first characters count.
    CutsNames(usize),
    /// A machine is identified by its cluster and its name joined in one text, which may be ambiguous.
    CreateJoinsClusterAndName,
    /// `.` in a name is `-`.
    DotsAreDashes,
    /// CreateMachine reserves the name of a machine whose spec it refused.
    CreateRemembersRefused,
    /// Bootstrap data is read as text: invalid UTF-8 is replaced.
    UserDataAsText,
    /// Of bootstrap data, the first bytes count.
    UserDataCut,
    /// A log holds bootstrap data, in base64, when the back end is broken.
    LogsWhenBroken,
    /// A log holds credentials that were refused.
    LogsRefused,
    /// An abandoned CreateMachine continues, and does not block a deletion.
    CreateRunsOn,
    /// The same if it takes no longer than its back end.
    CreateRunsOnAtOnce,
    /// The names of fields are read in any case.
    ReadsKeysInAnyCase,
    /// A spec without tags belongs to a separate cluster.
    NeedsNoTags,
    /// A field that is null is a broken invariant.
    ChokesOnNull(Operation),
    /// A list in place of a text is an error without a code.
    ChokesOnLists(Operation),
    /// A size of the root file system (optional) that is not a number is a broken invariant.
    ChokesOnRootFsSize(Operation),
    /// A failure domain (optional) that is not text is a broken invariant.
    ChokesOnFailureDomain(Operation),
    /// A tag that is not text, except for the cluster's tag, is a broken invariant.
    ChokesOnTags(Operation),
    /// A tag of the machine object that is not text is converted to text: null to `null`.
    ReadsTagsAsText,
    /// A tag with a character outside of ASCII is a broken invariant.
    ChokesOnUmlauts,
    /// The bytes of the tag of the machine object are read as Latin-1.
    ReadsTextAsLatin1,
    /// Characters outside of ASCII are left out of the tag of the machine object.
    DropsUmlauts,
    /// A source of a volume that is null is a broken invariant.
    VolumesChokeOnNull,
    /// A volume handle that is null or not text is returned unchanged.
    VolumesWriteAnyHandle,
    /// A handle of a volume that is no text is an error without a code.
    VolumesChokeOnHandles,
    /// A LastKnownState that is not its own is a broken invariant.
    CreateChokesOnState,

    /// A VM with other bootstrap data counts as another VM.
    CreateComparesUserData,
    /// A machine of a control plane is refused.
    CreateRefusesControlPlanes,
    /// A VM with another spec is not found, and so not deleted.
    DeleteComparesTheSpec,
    /// Of several VMs of a machine, DeleteMachine deletes the first.
    DeleteTheFirst,
    /// During an outage, ListMachines returns the previous list.
    ListRemembers,
    /// DeleteMachine answers OK before the VM is gone.
    DeleteTooEarly,
    /// DeleteMachine answers OK and does nothing.
    DeleteDoesNothing,
    /// DeleteMachine can't.
    DeleteFails,
    /// Deleting an absent VM is NOT_FOUND.
    DeleteNotFound,
    /// DeleteMachine deletes by name in every cluster.
    DeleteAnyCluster,
    /// DeleteMachine deletes any VM with the id.
    DeleteAnyId,
    /// DeleteMachine deletes any VM with the id in the cluster.
    DeleteAnyIdOfCluster,
    /// DeleteMachine deletes the VM of another machine object.
    DeleteAnyIdentity,
    /// DeleteMachine deletes the whole cluster.
    DeleteAll,
    /// DeleteMachine deletes another VM of the cluster.
    DeleteAnother,
    /// DeleteMachine deletes every VM of the cluster with this prefix in its name.
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
    /// GetMachineStatus finds any VM with the id.
    StatusAnyId,
    /// GetMachineStatus finds any VM with the id in the cluster.
    StatusAnyIdOfCluster,
    /// GetMachineStatus finds the VM of another machine object.
    StatusAnyIdentity,
    /// GetMachineStatus finds a VM with this prefix in its name.
    StatusByBeginning,
    /// A VM that GetMachineStatus once missed stays not found.
    StatusRemembersAbsence,
    /// GetMachineStatus changes the back end.
    StatusWrites,
    /// GetMachineStatus answers NOT_FOUND every third time.
    StatusForgets,
    /// GetMachineStatus finds any VM of the cluster.
    StatusFindsAnother,
    /// GetMachineStatus names no VM of several.
    StatusNamesNone,
    /// GetMachineStatus does not report whether the VM runs. That breaks no rule.
    StatusWithoutPower,
    /// Code 17 lacks the VM.
    StatusForgetsMachine,
    /// An uninitialized VM is reported as fine.
    StatusOverlooksInitialization,

    /// The list holds the VMs of all clusters.
    ListLeaks,
    /// The list ends after a page.
    ListOnePage,
    /// The list ends after a page of 100.
    ListOneLongPage,
    /// The list ends after a page of 200.
    ListOnePageOf200,
    /// The list still has deleted VMs.
    ListKeepsDeleted,
    /// The list leads from ids to the names of others.
    ListSwapsNames,
    /// The list leads from ids to no names.
    ListNoNames,
    /// The list gives each VM to the machine of another.
    ListSwapsOwners,
    /// The list reports the same cluster for every VM.
    ListKnowsOneCluster,
    /// The list declares the state of VMs and shows none.
    ListWithoutState,
    /// The list shows the state of a VM as in its first entry.
    ListRemembersState,
    /// The list shows a VM that was once stopped as stopped.
    ListKeepsStopped,
    /// The list shows the addresses that a VM had at first.
    ListRemembersAddresses,
    /// The list shows no address of a VM that once had none.
    ListLosesAddresses,
    /// The list gives each VM the addresses of another.
    ListSwapsAddresses,
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
    /// InitializeMachine creates an absent VM.
    InitializeMakes,
    /// InitializeMachine answers with another VM.
    InitializeOtherId,
    /// InitializeMachine answers another node name than CreateMachine.
    InitializeOtherNodeName,
    /// InitializeMachine answers no node name.
    InitializeNoNodeName,

    /// CreateMachine treats a VM with other hot-updatable fields as another VM.
    CreateRefusesHotUpdates,

    /// UpdateMachine replaces the VM.
    UpdateReplaces,
    /// UpdateMachine answers OK and changes nothing.
    UpdateDoesNothing,
    /// UpdateMachine changes the VM every time.
    UpdateWritesAgain,
    /// UpdateMachine does nothing if the last applied spec equals the new spec, even if the VM differs.
    UpdateTrustsTheLastApplied,
    /// UpdateMachine refuses if the VM differs from the last applied spec.
    UpdateNeedsTheLastApplied,
    /// UpdateMachine changes only a VM without labels, and always answers OK.
    UpdateOnlyOfABareVm,
    /// UpdateMachine changes the VM even if nothing differs.
    UpdateWritesNothing,
    /// UpdateMachine writes values that differ from the requested ones, and compares with these.
    UpdateWritesOtherValues,
    /// Of several new values, UpdateMachine writes the first.
    UpdateWritesTheFirst,
    /// UpdateMachine does not remove its earlier values from the VM.
    UpdateTakesNothingBack,
    /// UpdateMachine writes a question mark for each character outside of ASCII.
    UpdateWritesAscii,
    /// UpdateMachine takes the tag of its machine object from the VM, as the list shows it.
    UpdateDropsTheOwner,
    /// UpdateMachine takes a label from the VM that the back end has given it.
    UpdateDropsOtherLabels,
    /// UpdateMachine of an absent VM is OK.
    UpdateNotThere,
    /// UpdateMachine updates the VM of another cluster.
    UpdateAnyCluster,
    /// UpdateMachine does not add a missing machine tag, and answers OK.
    UpdateAddsNoMachineTag,
    /// UpdateMachine gives a VM the tag of another machine.
    UpdateReplacesMachineTag,
    /// A VM that got the tag of its machine is not found without it.
    StatusWantsMachineTag,
    /// A VM that got the tag of its machine is not deleted without it.
    DeleteWantsMachineTag,
    /// After an update, the new spec does not find the VM.
    UpdateLosesTheVm,

    /// RestartMachine answers OK and does nothing.
    RestartDoesNothing,
    /// RestartMachine recreates the VM.
    RestartReplaces,
    /// RestartMachine of an absent VM is OK.
    RestartNotThere,
    /// RestartMachine creates an absent VM.
    RestartMakes,
    /// RestartMachine restarts the VM of another cluster.
    RestartAnyCluster,
    /// RestartMachine restarts the VM of another machine object.
    RestartAnyIdentity,

    /// GetConsole restarts the VM.
    ConsoleRestarts,
    /// GetConsole of an absent VM is OK and empty.
    ConsoleOfNothing,
    /// GetConsole shows the console of any VM with this name.
    ConsoleByName,

    /// A failure domain is listed twice.
    ZonesTwice,
    /// A failure domain has no name.
    ZonesNameless,
    /// The listed failure domains accept no machine.
    ZonesMadeUp,
    /// The failure domains are others every time.
    ZonesChange,
    /// A capacity is no quantity.
    DescribesGarbage,
    /// The architecture is unknown.
    DescribesUnknownArchitecture,

    /// The last volume is forgotten.
    VolumesForgetOne,
    /// The first own volume alone counts.
    VolumesFirstAlone,
    /// The list ends at the first foreign volume.
    VolumesUntilForeign,
    /// The volumes come in another order.
    VolumesSorted,
    /// A volume of another driver gets an id.
    VolumesMakeUp,
    /// A volume of another driver is an error.
    VolumesRefuseForeign,
    /// A repeated request returns an empty list.
    VolumesOnce,
    /// An empty list is INVALID_ARGUMENT. That breaks no rule.
    VolumesRefuseNone,
    /// A volume without a source is INVALID_ARGUMENT. That breaks no rule.
    VolumesRefuseNoSource,

    /// Migration renames the class.
    MigrateRenames,
    /// Migration adds fields to its input.
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
