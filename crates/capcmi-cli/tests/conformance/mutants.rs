//! A suite that passes a flawed driver is useless: for each flaw, it has to name the broken rule.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{Verdict, rules};
use cmi_driver::Code::*;
use cmi_driver::Operation::{self, *};

use crate::flaw::Flaw::{self, *};
use crate::flaw::Writing::*;
use crate::mutant::Mutant;
use crate::{for_each, patiently, tested, tested_patiently, tested_with};

/// Each flaw, and the rule that it breaks.
const MUTANTS: &[(Flaw, &str)] = &[
    // Identity.
    (InfoBadName, "CMI-53"),
    (InfoLongName, "CMI-51"),
    (InfoEmptyLabel, "CMI-51"),
    (InfoLongVersion, "CMI-55"),
    (InfoLongVersion, "CMI-14"),
    (InfoNoVersion, "CMI-55"),
    (InfoNoHost, "CMI-52"),
    (InfoHugeManifest, "CMI-56"),
    (CapabilitiesChange, "CMI-59"),
    (CapabilitiesOfTheBackEnd, "CMI-59"),
    (SchemaRefusesTheSample, "CAP-07"),
    (SchemaIsNone, "CAP-07"),
    (ProbeNeverReady, "CMI-70"),
    (ProbeAlwaysReady, "CMI-68"),
    (ProbeFailsWhileStarting, "CMI-69"),
    (Says(Probe, FailedPrecondition, Internal), "CMI-75"),
    (ProbeAsksTheBackEnd, "CMI-77"),
    // Restarts.
    (RestartForgets, "CMI-84"),
    (RestartForgets, "DRV-12"),
    (RestartHides, "CMI-79"),
    (RestartNewIds, "DRV-13"),
    (RestartNewIds, "CMI-84"),
    (RestartNewCapabilities, "CMI-59"),
    (RestartNewName, "CMI-59"),
    (RestartNeverReady, "CMI-59"),
    (RestartLeavesALock, "DRV-12"),
    (RestartLeavesALock, "CMI-84"),
    // Calls that block Probe.
    (RunsAtATime(1), "CAP-34"),
    (RunsAtATime(16), "CAP-34"),
    // Capabilities that lie.
    (Boasts(GetMachineStatus), "DRV-26"),
    (Boasts(ListMachines), "DRV-33"),
    (Boasts(ShutDownMachine), "CMI-126"),
    (Boasts(GetVolumeIds), "DRV-40"),
    (Boasts(GenerateMachineClassForMigration), "DRV-48"),
    (Boasts(InitializeMachine), "INI-11"),
    (Boasts(UpdateMachine), "UPD-02"),
    (Boasts(RestartMachine), "CAP-05"),
    (Boasts(ListZones), "CAP-05"),
    (Boasts(DescribeClass), "CAP-05"),
    (Boasts(CreateMachine), "DRV-09"),
    (Boasts(DeleteMachine), "DRV-18"),
    (Hides(GetMachineStatus), "DRV-GS-12"),
    (Hides(ListMachines), "DRV-LM-12"),
    (Hides(ShutDownMachine), "PLG-SD-12"),
    (Hides(GetVolumeIds), "DRV-GV-12"),
    (Hides(GenerateMachineClassForMigration), "DRV-MG-12"),
    (Hides(UpdateMachine), "UPD-02"),
    (Hides(RestartMachine), "CAP-05"),
    (Hides(ListZones), "CAP-05"),
    (Hides(DescribeClass), "CAP-05"),
    (Wavers(GetMachineStatus), "DRV-26"),
    (Wavers(ListMachines), "DRV-33"),
    (Wavers(GetVolumeIds), "DRV-40"),
    // CreateMachine.
    (CreateForgets, "DRV-10"),
    (CreateRaces, "DRV-CR-10"),
    (CreateRacesUnseen, "DRV-CR-10"),
    (CreateAdoptsAnything, "DRV-CR-06"),
    (CreateAdoptsAnything, "CAP-01"),
    (CreateNewId, "DRV-13"),
    (CreateOneId, "DRV-11"),
    (CreateIdEndsInName, "CAP-38"),
    (CreateTriesAFullZone, "CAP-39"),
    (CreateIgnoresAFullZone, "CAP-39"),
    (CreateNoNodeName, "DRV-14"),
    (CreateBadNodeName, "CMI-93"),
    (CreateNewNodeName, "DRV-14"),
    (CreateDropsUserData, "DRV-05"),
    (CreateMakesUpFields, "DRV-04"),
    (CreateVagueMessage, "DRV-CR-03"),
    (CreateMakesThenChecks, "DRV-CR-03"),
    (CreateMakesBeyondQuota, "DRV-CR-08"),
    (CreateMakesOutOfRange, "DRV-CR-11"),
    (CreateWantsMore, "DRV-02"),
    (CreateClusterBlind, "DRV-08"),
    (CreateShortNames, "CMI-14"),
    (CutsNames(20), "CMI-83"),
    (CutsNames(63), "DRV-11"),
    (CutsNames(63), "CMI-83"),
    (CutsNames(252), "CMI-83"),
    (CreateJoinsClusterAndName, "DRV-08"),
    (CreateJoinsClusterAndName, "CMI-80"),
    (DotsAreDashes, "DRV-11"),
    (DotsAreDashes, "CMI-83"),
    (CreateRemembersRefused, "DRV-CR-00"),
    (UserDataAsText, "DRV-05"),
    (UserDataAsText, "CMI-44"),
    (UserDataCut, "DRV-05"),
    (CreateRunsOn, "DRV-23"),
    (CreateRunsOn, "CMI-34"),
    (CreateRunsOn, "PLG-DE-10"),
    (CreateRunsOnAtOnce, "DRV-23"),
    (CreateRunsOnAtOnce, "DRV-DE-10"),
    (ReadsKeysInAnyCase, "DRV-04"),
    (NeedsNoTags, "CMI-48"),
    (ChokesOnNull(CreateMachine), "PLG-CR-03"),
    (ChokesOnNull(DeleteMachine), "DRV-DE-03"),
    (ChokesOnNull(GetMachineStatus), "DRV-GS-03"),
    (ChokesOnNull(ListMachines), "DRV-LM-03"),
    (ChokesOnNull(ShutDownMachine), "PLG-SD-03"),
    (ChokesOnLists(CreateMachine), "CMI-30"),
    (ChokesOnLists(DeleteMachine), "DRV-DE-03"),
    (ChokesOnLists(GetMachineStatus), "DRV-GS-03"),
    (ChokesOnLists(ListMachines), "DRV-LM-03"),
    (ChokesOnLists(ShutDownMachine), "PLG-SD-03"),
    (ChokesOnRootFsSize(CreateMachine), "CMI-30"),
    (ChokesOnRootFsSize(ListMachines), "DRV-LM-03"),
    (ChokesOnRootFsSize(RestartMachine), "CAP-21"),
    (ChokesOnFailureDomain(CreateMachine), "DRV-CR-03"),
    (ChokesOnFailureDomain(DeleteMachine), "DRV-DE-03"),
    (ChokesOnTags(CreateMachine), "PLG-CR-03"),
    (ChokesOnTags(DeleteMachine), "DRV-DE-03"),
    (ChokesOnTags(ListMachines), "DRV-LM-03"),
    (ChokesOnTags(ShutDownMachine), "PLG-SD-03"),
    (ChokesOnTags(RestartMachine), "CAP-21"),
    (ChokesOnTags(DescribeClass), "CAP-28"),
    (ReadsTagsAsText, "CMI-30"),
    (ChokesOnUmlauts, "CMI-30"),
    (ChokesOnUmlauts, "DRV-10"),
    (ReadsTextAsLatin1, "CAP-04"),
    (DropsUmlauts, "CAP-01"),
    (CreateChokesOnState, "CMI-91"),
    (OnlyOnce(CreateMachine), "DRV-12"),
    (FailsAtOnce(CreateMachine), "DRV-CR-10"),
    (LeavesHalf(CreateMachine), "DRV-CR-01"),
    (LeavesHalf(CreateMachine), "DRV-CR-04"),
    (Hangs(CreateMachine), "DRV-CR-00"),
    (Panics(CreateMachine), "DRV-CR-00"),
    (Mute(CreateMachine), "DRV-17"),
    (Parrots(CreateMachine), "DRV-17"),
    (Says(CreateMachine, Unknown, InvalidArgument), "DRV-CR-02"),
    (Says(CreateMachine, InvalidArgument, Internal), "DRV-CR-03"),
    (Says(CreateMachine, AlreadyExists, InvalidArgument), "DRV-CR-06"),
    (
        Says(CreateMachine, PermissionDenied, Unauthenticated),
        "DRV-CR-07",
    ),
    (Says(CreateMachine, ResourceExhausted, Unavailable), "DRV-CR-08"),
    (Says(CreateMachine, FailedPrecondition, Internal), "DRV-CR-09"),
    (Says(CreateMachine, OutOfRange, ResourceExhausted), "DRV-CR-11"),
    (Says(CreateMachine, Internal, Unavailable), "DRV-CR-13"),
    (Says(CreateMachine, Unavailable, NotFound), "DRV-CR-14"),
    (
        Says(CreateMachine, Unauthenticated, PermissionDenied),
        "DRV-CR-16",
    ),
    (Pretends(CreateMachine, Unavailable), "DRV-15"),
    (Pretends(CreateMachine, OutOfRange), "DRV-CR-11"),
    (Pretends(CreateMachine, FailedPrecondition), "DRV-CR-09"),
    // DeleteMachine.
    (DeleteTooEarly, "DRV-23"),
    (DeleteDoesNothing, "DRV-DE-00"),
    (DeleteNotFound, "DRV-19"),
    (DeleteAnyCluster, "DRV-20"),
    (DeleteAnyId, "DRV-20"),
    (DeleteAnyIdOfCluster, "DRV-20"),
    (DeleteAnyIdentity, "CAP-02"),
    (DeleteAll, "DRV-07"),
    (DeleteAnother, "CMI-79"),
    (DeleteByBeginning, "DRV-07"),
    (DeleteByBeginning, "DRV-22"),
    (DeleteByBeginning, "CMI-103"),
    (DeleteWantsId, "DRV-DE-00"),
    (DeleteRefusesId, "CMI-108"),
    (DeleteWantsInitialized, "DRV-DE-00"),
    (OnlyOnce(DeleteMachine), "DRV-21"),
    (FailsAtOnce(DeleteMachine), "DRV-DE-10"),
    (LeavesHalf(DeleteMachine), "DRV-DE-01"),
    (LeavesHalf(DeleteMachine), "DRV-DE-04"),
    (Mute(DeleteMachine), "DRV-25"),
    (Says(DeleteMachine, Unknown, NotFound), "DRV-DE-02"),
    (Says(DeleteMachine, InvalidArgument, Internal), "DRV-DE-03"),
    (
        Says(DeleteMachine, PermissionDenied, Unauthenticated),
        "DRV-DE-07",
    ),
    (Says(DeleteMachine, FailedPrecondition, Aborted), "DRV-DE-09"),
    (Says(DeleteMachine, Internal, Unavailable), "DRV-DE-13"),
    (Says(DeleteMachine, Unavailable, Internal), "DRV-DE-14"),
    (
        Says(DeleteMachine, Unauthenticated, PermissionDenied),
        "DRV-DE-16",
    ),
    (Pretends(DeleteMachine, Unavailable), "DRV-23"),
    (Pretends(DeleteMachine, InvalidArgument), "CMI-106"),
    // GetMachineStatus.
    (StatusOtherId, "DRV-27"),
    (StatusOtherNodeName, "CMI-115"),
    (StatusAnyCluster, "DRV-28"),
    (StatusAnyId, "DRV-28"),
    (StatusAnyIdOfCluster, "DRV-27"),
    (StatusAnyIdentity, "CAP-03"),
    (StatusByBeginning, "DRV-07"),
    (StatusRemembersAbsence, "DRV-27"),
    (StatusRemembersAbsence, "DRV-GS-00"),
    (StatusWrites, "INI-01"),
    (StatusForgets, "DRV-29"),
    (StatusFindsAnother, "DRV-GS-05"),
    (StatusNamesNone, "DRV-GS-11"),
    (StatusForgetsMachine, "INI-18"),
    (StatusOverlooksInitialization, "INI-23"),
    (LeavesHalf(GetMachineStatus), "DRV-GS-01"),
    (LeavesHalf(GetMachineStatus), "DRV-GS-04"),
    (Mute(GetMachineStatus), "DRV-32"),
    (Says(GetMachineStatus, Unknown, NotFound), "DRV-GS-02"),
    (Says(GetMachineStatus, InvalidArgument, NotFound), "DRV-GS-03"),
    (Says(GetMachineStatus, NotFound, Unavailable), "DRV-GS-05"),
    (Says(GetMachineStatus, PermissionDenied, NotFound), "DRV-GS-07"),
    (Says(GetMachineStatus, FailedPrecondition, NotFound), "DRV-GS-09"),
    (
        Says(GetMachineStatus, OutOfRange, FailedPrecondition),
        "DRV-GS-11",
    ),
    (Says(GetMachineStatus, Internal, NotFound), "DRV-GS-13"),
    (Says(GetMachineStatus, Unavailable, NotFound), "DRV-30"),
    (
        Says(GetMachineStatus, Unauthenticated, PermissionDenied),
        "DRV-GS-16",
    ),
    (Pretends(GetMachineStatus, NotFound), "DRV-GS-05"),
    // Rules of this provider about creates and deletes.
    (CreateComparesUserData, "CAP-29"),
    (CreateRefusesControlPlanes, "CAP-32"),
    (DeleteComparesTheSpec, "CAP-30"),
    (DeleteTheFirst, "CAP-31"),
    (ListRemembers, "DRV-37"),
    (ListRemembers, "DRV-LM-14"),
    // ListMachines.
    (ListLeaks, "DRV-03"),
    (ListOnePage, "DRV-34"),
    (ListOneLongPage, "DRV-34"),
    (ListOnePageOf200, "DRV-34"),
    (ListKeepsDeleted, "DRV-34"),
    (ListSwapsNames, "DRV-36"),
    (ListNoNames, "CMI-138"),
    (ListSwapsOwners, "CAP-04"),
    (ListKnowsOneCluster, "CAP-04"),
    (ListWithoutState, "CAP-37"),
    (ListRemembersState, "CAP-37"),
    (ListKeepsStopped, "CAP-37"),
    (ListRemembersAddresses, "CAP-37"),
    (ListLosesAddresses, "CAP-37"),
    (ListSwapsAddresses, "CAP-37"),
    (ListEmptyNotFound, "DRV-LM-00"),
    (ListEverything, "DRV-LM-03"),
    (LeavesHalf(ListMachines), "DRV-LM-01"),
    (LeavesHalf(ListMachines), "DRV-LM-04"),
    (Mute(ListMachines), "DRV-39"),
    (Says(ListMachines, Unknown, Unavailable), "DRV-LM-02"),
    (Says(ListMachines, InvalidArgument, Internal), "DRV-LM-03"),
    (Says(ListMachines, PermissionDenied, Unauthenticated), "DRV-LM-07"),
    (Says(ListMachines, Internal, Unavailable), "DRV-LM-13"),
    (Says(ListMachines, Unavailable, Internal), "DRV-LM-14"),
    (Says(ListMachines, Unauthenticated, PermissionDenied), "DRV-LM-16"),
    (Pretends(ListMachines, Unavailable), "DRV-37"),
    // Static addresses.
    (CreateIgnoresStaticAddresses, "CAP-40"),
    (CreateAddsFirstStaticAddress, "CAP-40"),
    (CreateAdoptsOtherStaticAddresses, "DRV-CR-06"),
    (DeleteKeepsStaticAddresses, "CAP-41"),
    // ShutDownMachine.
    (ShutDownDoesNothing, "PLG-SD-00"),
    (ShutDownDeletes, "CMI-127"),
    (ShutDownAnyCluster, "CMI-128"),
    (Says(ShutDownMachine, Aborted, Internal), "PLG-SD-10"),
    (Mute(ShutDownMachine), "CMI-135"),
    (Says(ShutDownMachine, Unknown, NotFound), "PLG-SD-02"),
    (Says(ShutDownMachine, InvalidArgument, Internal), "PLG-SD-03"),
    (
        Says(ShutDownMachine, PermissionDenied, Unauthenticated),
        "PLG-SD-07",
    ),
    (Says(ShutDownMachine, FailedPrecondition, Internal), "PLG-SD-09"),
    (Says(ShutDownMachine, Internal, Unavailable), "PLG-SD-13"),
    (Says(ShutDownMachine, Unavailable, Internal), "PLG-SD-14"),
    (
        Says(ShutDownMachine, Unauthenticated, PermissionDenied),
        "PLG-SD-16",
    ),
    (Pretends(ShutDownMachine, Unavailable), "CMI-133"),
    (LeavesHalf(ShutDownMachine), "PLG-SD-01"),
    (LeavesHalf(ShutDownMachine), "PLG-SD-04"),
    // InitializeMachine and UpdateMachine.
    (OnlyOnce(InitializeMachine), "INI-22"),
    (InitializeWrites, "INI-22"),
    (InitializeMakes, "INI-22"),
    (InitializeOtherId, "INI-22"),
    (Says(InitializeMachine, Uninitialized, Internal), "INI-12"),
    (Pretends(InitializeMachine, Uninitialized), "INI-21"),
    (InitializeOtherId, "CAP-22"),
    (InitializeOtherNodeName, "CAP-22"),
    (InitializeOtherNodeName, "INI-22"),
    (InitializeNoNodeName, "CAP-22"),
    (ChokesOnNull(InitializeMachine), "CAP-21"),
    (ChokesOnLists(InitializeMachine), "CAP-21"),
    (Pretends(InitializeMachine, InvalidArgument), "CAP-21"),
    (Says(InitializeMachine, InvalidArgument, Internal), "CAP-21"),
    (ChokesOnNull(UpdateMachine), "CAP-21"),
    (ChokesOnLists(UpdateMachine), "CAP-21"),
    (Pretends(UpdateMachine, InvalidArgument), "CAP-21"),
    (Says(UpdateMachine, InvalidArgument, Internal), "CAP-21"),
    (CreateRefusesHotUpdates, "CAP-27"),
    (UpdateReplaces, "UPD-03"),
    (OnlyOnce(UpdateMachine), "UPD-03"),
    (OnlyOnce(UpdateMachine), "UPD-02"),
    (UpdateDoesNothing, "UPD-03"),
    (UpdateWritesAgain, "UPD-03"),
    (UpdateTrustsTheLastApplied, "UPD-03"),
    (UpdateNeedsTheLastApplied, "UPD-03"),
    (UpdateOnlyOfABareVm, "UPD-03"),
    (UpdateWritesNothing, "UPD-03"),
    (UpdateWritesOtherValues, "CAP-23"),
    (UpdateWritesOtherValues, "UPD-03"),
    (UpdateWritesTheFirst, "CAP-23"),
    (UpdateTakesNothingBack, "CAP-23"),
    (UpdateWritesAscii, "CAP-23"),
    (UpdateDropsTheOwner, "CAP-33"),
    (UpdateDropsOtherLabels, "CAP-33"),
    (UpdateNotThere, "UPD-02"),
    (UpdateAnyCluster, "UPD-03"),
    (UpdateLosesTheVm, "UPD-02"),
    (UpdateAddsNoMachineTag, "CAP-18"),
    (StatusWantsMachineTag, "CAP-19"),
    (DeleteWantsMachineTag, "CAP-19"),
    (UpdateReplacesMachineTag, "CAP-20"),
    // RestartMachine.
    (RestartDoesNothing, "CAP-14"),
    (OnlyOnce(RestartMachine), "CAP-14"),
    (RestartReplaces, "CAP-15"),
    (RestartNotThere, "CAP-16"),
    (RestartMakes, "CAP-16"),
    (RestartAnyCluster, "CAP-17"),
    (RestartAnyIdentity, "CAP-17"),
    (ChokesOnNull(RestartMachine), "CAP-21"),
    (ChokesOnLists(RestartMachine), "CAP-21"),
    (Pretends(RestartMachine, InvalidArgument), "CAP-21"),
    (Says(RestartMachine, InvalidArgument, Internal), "CAP-21"),
    // GetConsole.
    (Hides(GetConsole), "CAP-05"),
    (ConsoleRestarts, "CAP-35"),
    (ConsoleOfNothing, "CAP-36"),
    (ConsoleByName, "CAP-36"),
    (ChokesOnNull(GetConsole), "CAP-21"),
    // ListZones and DescribeClass.
    (ZonesTwice, "CAP-08"),
    (ZonesNameless, "CAP-08"),
    (ZonesChange, "CAP-08"),
    (ZonesMadeUp, "CAP-09"),
    (DescribesGarbage, "CAP-10"),
    (DescribesUnknownArchitecture, "CAP-10"),
    (ChokesOnNull(ListZones), "CAP-28"),
    (ChokesOnLists(ListZones), "CAP-28"),
    (ChokesOnNull(DescribeClass), "CAP-28"),
    (ChokesOnLists(DescribeClass), "CAP-28"),
    // Rules that only hooks show.
    (OnlyOnce(CreateMachine), "CAP-11"),
    (OnlyOnce(DeleteMachine), "CAP-11"),
    (DeleteNotFound, "CAP-12"),
    (StatusWrites, "CAP-13"),
    // GetVolumeIDs.
    (VolumesForgetOne, "DRV-43"),
    (VolumesFirstAlone, "CMI-147"),
    (VolumesUntilForeign, "CMI-147"),
    (VolumesSorted, "DRV-42"),
    (VolumesChokeOnNull, "DRV-GV-03"),
    (VolumesChokeOnHandles, "CMI-152"),
    (VolumesWriteAnyHandle, "PLG-GV-03"),
    (VolumesMakeUp, "DRV-44"),
    (VolumesRefuseForeign, "CMI-148"),
    (VolumesOnce, "DRV-45"),
    (Mute(GetVolumeIds), "DRV-46"),
    (Pretends(GetVolumeIds, InvalidArgument), "DRV-GV-03"),
    (Says(GetVolumeIds, Unavailable, NotFound), "DRV-GV-14"),
    (Says(GetVolumeIds, Internal, InvalidArgument), "DRV-GV-13"),
    (Says(GetVolumeIds, Unknown, NotFound), "DRV-GV-02"),
    // Migration.
    (MigrateRenames, "DRV-50"),
    (MigrateAdds, "DRV-51"),
    (Mute(GenerateMachineClassForMigration), "DRV-52"),
    (
        Says(GenerateMachineClassForMigration, Internal, InvalidArgument),
        "DRV-MG-13",
    ),
    (Pretends(GenerateMachineClassForMigration, Internal), "DRV-MG-13"),
    // Secrets.
    (SecretInMessage, "OPS-11"),
    (SecretOfUserData, "OPS-11"),
    (SecretEncoded, "CMI-13"),
    (SecretWritten(Decimal), "OPS-11"),
    (SecretWritten(Hexadecimal), "OPS-11"),
    (SecretWritten(Capitals), "OPS-11"),
    (SecretWritten(PercentEncoded), "OPS-11"),
    (SecretWritten(Base64Url), "OPS-11"),
    (SecretWritten(InBase64), "OPS-11"),
    (SecretWritten(InLines), "OPS-11"),
    (LogsWhenBroken, "CMI-186"),
    (LogsWhenBroken, "OPS-11"),
    (LogsRefused, "CMI-186"),
    (SecretInState, "CMI-186"),
    (SecretInAddress, "CMI-165"),
    // Rows that several cases prove together: rows about all codes, and rows of the published specification
    // that the driver contract repeats.
    (Mute(CreateMachine), "DRV-06"),
    (Says(CreateMachine, Unavailable, NotFound), "DRV-16"),
    (Says(CreateMachine, Unavailable, NotFound), "CMI-26"),
    (Says(CreateMachine, Unavailable, NotFound), "CMI-96"),
    (NeedsNoTags, "CMI-27"),
    (Says(CreateMachine, PermissionDenied, Unauthenticated), "CMI-32"),
    (CreateForgets, "CMI-82"),
    (Pretends(CreateMachine, Unavailable), "CMI-95"),
    (CreateRemembersRefused, "PLG-CR-00"),
    (Says(Probe, FailedPrecondition, Internal), "CMI-73"),
    (OnlyOnce(DeleteMachine), "CMI-102"),
    (DeleteTooEarly, "CMI-111"),
    (Says(DeleteMachine, Unavailable, Internal), "CMI-112"),
    (Mute(DeleteMachine), "CMI-113"),
    (DeleteDoesNothing, "PLG-DE-00"),
    (LeavesHalf(DeleteMachine), "PLG-DE-01"),
    (Says(DeleteMachine, Unknown, NotFound), "PLG-DE-02"),
    (Says(GetMachineStatus, Unavailable, NotFound), "DRV-31"),
    (StatusForgets, "CMI-117"),
    (Says(GetMachineStatus, InvalidArgument, NotFound), "CMI-119"),
    (StatusOtherId, "CMI-121"),
    (StatusOtherNodeName, "CMI-122"),
    (Says(GetMachineStatus, Unavailable, NotFound), "CMI-123"),
    (Says(GetMachineStatus, Unavailable, NotFound), "CMI-124"),
    (Mute(GetMachineStatus), "CMI-125"),
    (StatusRemembersAbsence, "PLG-GS-00"),
    (LeavesHalf(GetMachineStatus), "PLG-GS-01"),
    (Says(GetMachineStatus, Unknown, NotFound), "PLG-GS-02"),
    (Says(ShutDownMachine, InvalidArgument, Internal), "CMI-131"),
    (Says(ShutDownMachine, Unavailable, Internal), "CMI-134"),
    (Says(ListMachines, Unavailable, Internal), "DRV-38"),
    (ListEmptyNotFound, "CMI-17"),
    (ListEmptyNotFound, "CMI-141"),
    (Pretends(ListMachines, Unavailable), "CMI-142"),
    (Says(ListMachines, Unavailable, Internal), "CMI-143"),
    (Mute(ListMachines), "CMI-145"),
    (ListEmptyNotFound, "PLG-LM-00"),
    (VolumesOnce, "CMI-149"),
    (Panics(GetVolumeIds), "CMI-151"),
    (Mute(GetVolumeIds), "CMI-152"),
    (VolumesSorted, "PLG-GV-00"),
    (Panics(GetVolumeIds), "PLG-GV-01"),
    (Says(GetVolumeIds, Unknown, NotFound), "PLG-GV-02"),
    (Pretends(GetVolumeIds, InvalidArgument), "PLG-GV-03"),
    (Panics(GetVolumeIds), "PLG-GV-04"),
    (Hides(GetVolumeIds), "PLG-GV-12"),
    (Says(GetVolumeIds, Internal, InvalidArgument), "PLG-GV-13"),
    (Says(GetVolumeIds, Unavailable, NotFound), "PLG-GV-14"),
    (Panics(GenerateMachineClassForMigration), "DRV-49"),
];

/// Whether the rule was seen broken; if not, how it fared.
async fn survives(flaw: Flaw, rule: &'static str) -> Option<String> {
    let simulated = Simulated::new().unwrap();
    let mutant = Mutant::new(simulated.driver.clone(), flaw);
    let mutant = Arc::new(mutant.logging_to(&simulated.config.logs[0]));
    // The driver writes this only when a case breaks its back end.
    let only = match flaw {
        LogsWhenBroken => vec![rule, "create-internal"],
        _ => vec![rule],
    };
    let report = tested_with(&simulated, mutant, &only, |config| match flaw {
        // If a busy computer creates VMs slowly, the case creates only the configured number.
        ListOneLongPage => config.many_machines = Some(110),
        ListOnePageOf200 => config.many_machines = Some(210),
        CreateRunsOn | CreateRunsOnAtOnce => patiently(config),
        _ => {}
    })
    .await;
    let found = report.rule(rule).unwrap();
    let binding = rules::find(rule).unwrap().is_binding();
    // In real time, a busy computer may delay any call, which does not show a flaw.
    let reason = found.verdict.reason().unwrap_or_default();
    let is_late = reason.contains("did not answer within") && !matches!(flaw, Hangs(_));
    let seen = found.verdict.is_failure() && !is_late && !(binding && report.passed);
    (!seen).then(|| {
        format!(
            "{flaw:?}: {rule} {} ({})",
            found.verdict,
            found.verdict.reason().unwrap_or("-")
        )
    })
}

#[test]
fn the_rule_that_a_mutant_breaks_is_named() {
    let ended = for_each(MUTANTS, |(flaw, rule)| survives(*flaw, rule));
    let survivors: Vec<_> = ended.into_iter().flatten().collect();
    assert!(
        survivors.is_empty(),
        "{} survived:\n{}",
        survivors.len(),
        survivors.join("\n")
    );
}

/// CMI-59: the change comes with the very first restart, and a whole run has several.
#[tokio::test(start_paused = true)]
async fn what_changes_with_the_first_restart_is_found_beside_other_restarts() {
    let case = "restart-changes-nothing-said";
    for flaw in [RestartNewCapabilities, RestartNewName] {
        let simulated = Simulated::new().unwrap();
        let mutant = Arc::new(Mutant::new(simulated.driver.clone(), flaw));
        let only = [
            "restart-finds-the-vm",
            "restart-adopts-the-vm",
            "restart-deletes-the-vm",
            case,
        ];
        let report = tested(&simulated, mutant, &only).await;
        let found = report.cases.iter().find(|found| found.name == case).unwrap();
        assert!(found.verdict.is_failure(), "{flaw:?}: {found:?}");
    }
}

/// CMI-10: where the back end answers immediately, two creates have to meet within microseconds. That takes
/// several processors.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_without_any_latency_is_found_time_after_time() {
    for rule in ["DRV-CR-10", "PLG-CR-10", "CMI-84"].repeat(3) {
        assert_eq!(survives(CreateRacesAtOnce, rule).await, None);
    }
}

/// The intact driver keeps the rules in the table, tested one by one like its mutants: so a mutant fails due
/// to its flaw.
#[tokio::test(start_paused = true)]
async fn the_intact_driver_passes_where_its_mutants_fail() {
    let rules: BTreeSet<_> = MUTANTS.iter().map(|(_, rule)| *rule).collect();
    let simulated = Simulated::new().unwrap();
    let report = tested_patiently(
        &simulated,
        simulated.driver.clone(),
        &Vec::from_iter(rules.clone()),
    )
    .await;
    for rule in rules {
        assert_eq!(report.rule(rule).unwrap().verdict, Verdict::Passed, "{rule}");
    }
}

/// A whole run, as its author would see it: no hook, no case and no cleanup may depend
/// on the driver being right.
#[tokio::test(start_paused = true)]
async fn a_whole_run_against_a_mutant_ends_in_time_and_says_no() {
    for flaw in [CreateForgets, DeleteTooEarly, ListLeaks] {
        let simulated = Simulated::new().unwrap();
        let mutant = Arc::new(Mutant::new(simulated.driver.clone(), flaw));
        let run = tested(&simulated, mutant, &[]);
        let report = tokio::time::timeout(Duration::from_mins(1), run).await.unwrap();
        assert!(!report.passed && report.broken().count() > 0, "{flaw:?}");
    }
}

/// The report names a VM that the driver does not delete, and a driver that leaves VMs behind is not
/// compliant.
#[tokio::test(start_paused = true)]
async fn what_can_not_be_deleted_is_reported_by_name() {
    let simulated = Simulated::new().unwrap();
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), DeleteFails));
    let report = tested(&simulated, mutant, &["create-again"]).await;
    assert!(report.broken().next().is_none() && !report.passed);
    let vms = simulated.driver.console().vms().unwrap();
    let [left] = report.leftovers.as_slice() else {
        panic!("{:?}", report.leftovers);
    };
    let left = left.to_string();
    assert!(
        left.contains(&vms[0].name) && left.contains("it is stuck"),
        "{left}"
    );
}

/// A VM that the driver still shows is left, although its deletion answered OK.
#[tokio::test(start_paused = true)]
async fn a_vm_that_a_deletion_left_there_is_reported_by_its_id() {
    for hidden in [None, Some(ListMachines)] {
        let simulated = Simulated::new().unwrap();
        let offered = Operation::ALL
            .into_iter()
            .filter(|operation| Some(*operation) != hidden);
        let mutant = Mutant::offering(offered, simulated.driver.clone(), DeleteDoesNothing);
        let report = tested(&simulated, Arc::new(mutant), &["create-again"]).await;
        assert!(report.broken().next().is_none() && !report.passed);
        let vms = simulated.driver.console().vms().unwrap();
        let [left] = report.leftovers.as_slice() else {
            panic!("{:?}", report.leftovers);
        };
        let left = left.to_string();
        assert!(
            left.contains(&vms[0].name) && left.contains(&vms[0].provider_id()),
            "{left}"
        );
    }
}

/// The created VM is left, although its deletion is refused as invalid.
#[tokio::test(start_paused = true)]
async fn a_vm_that_create_took_and_delete_refuses_as_invalid_is_left_behind() {
    let simulated = Simulated::new().unwrap();
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), CreateNeedsNoCluster));
    let report = tested(&simulated, mutant, &["create-cluster-tag"]).await;
    let left = simulated.driver.console().vms().unwrap();
    assert!(!left.is_empty() && !report.passed);
    assert!(
        report
            .leftovers
            .iter()
            .any(|left_behind| left_behind.to_string().contains(&left[0].name)),
        "{:?}",
        report.leftovers
    );
}

/// A panic ends its case, and the cleanup still deletes the VMs of the case.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_driver_fails_the_case_and_leaves_nothing_behind() {
    let simulated = Simulated::new().unwrap();
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), Panics(GetMachineStatus)));
    let report = tested(&simulated, mutant, &["status-like-create", "create-again"]).await;
    assert!(report.rule("DRV-27").unwrap().verdict.is_failure());
    assert_eq!(report.rule("DRV-10").unwrap().verdict, Verdict::Passed);
    assert!(report.leftovers.is_empty(), "{:?}", report.leftovers);
    assert_eq!(simulated.driver.console().vms().unwrap(), []);
}

#[test]
fn there_are_enough_mutants_and_each_is_another() {
    let different: BTreeSet<_> = MUTANTS.iter().map(|(flaw, _)| format!("{flaw:?}")).collect();
    assert!(different.len() >= 60, "{}", different.len());
}
