//! The error tables of the driver contract: what each call answers when.

use super::{Level, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule::proven(
        "DRV-CR-00",
        Level::Must,
        "CreateMachine answers OK when it is done",
    ),
    Rule::proven(
        "DRV-CR-01",
        Level::Must,
        "CreateMachine answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "DRV-CR-02",
        Level::Must,
        "CreateMachine answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "DRV-CR-03",
        Level::Must,
        "CreateMachine answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "DRV-CR-04",
        Level::Must,
        "CreateMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "DRV-CR-06",
        Level::Must,
        "CreateMachine answers ALREADY_EXISTS when the VM of this name is another",
    ),
    Rule::proven(
        "DRV-CR-07",
        Level::Must,
        "CreateMachine answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "DRV-CR-08",
        Level::Must,
        "CreateMachine answers RESOURCE_EXHAUSTED when quota or pool is used up",
    ),
    Rule::proven(
        "DRV-CR-09",
        Level::Must,
        "CreateMachine answers FAILED_PRECONDITION when the state of the VM forbids it",
    ),
    Rule::proven(
        "DRV-CR-10",
        Level::Must,
        "CreateMachine answers ABORTED, if not OK, when an operation on the machine is pending",
    ),
    Rule::proven(
        "DRV-CR-11",
        Level::Must,
        "CreateMachine answers OUT_OF_RANGE when there is no such size",
    ),
    Rule::proven(
        "DRV-CR-12",
        Level::Must,
        "CreateMachine answers UNIMPLEMENTED never: it is REQUIRED",
    ),
    Rule::proven(
        "DRV-CR-13",
        Level::Must,
        "CreateMachine answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "DRV-CR-14",
        Level::Must,
        "CreateMachine answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "DRV-CR-16",
        Level::Must,
        "CreateMachine answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "DRV-DE-00",
        Level::Must,
        "DeleteMachine answers OK when it is done",
    ),
    Rule::proven(
        "DRV-DE-01",
        Level::Must,
        "DeleteMachine answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "DRV-DE-02",
        Level::Must,
        "DeleteMachine answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "DRV-DE-03",
        Level::Must,
        "DeleteMachine answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "DRV-DE-04",
        Level::Must,
        "DeleteMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "DRV-DE-07",
        Level::Must,
        "DeleteMachine answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "DRV-DE-09",
        Level::Must,
        "DeleteMachine answers FAILED_PRECONDITION when the state of the VM forbids it",
    ),
    Rule::proven(
        "DRV-DE-10",
        Level::Must,
        "DeleteMachine answers ABORTED, if not OK, when an operation on the machine is pending",
    ),
    Rule::proven(
        "DRV-DE-12",
        Level::Must,
        "DeleteMachine answers UNIMPLEMENTED never: it is REQUIRED",
    ),
    Rule::proven(
        "DRV-DE-13",
        Level::Must,
        "DeleteMachine answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "DRV-DE-14",
        Level::Must,
        "DeleteMachine answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "DRV-DE-16",
        Level::Must,
        "DeleteMachine answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "DRV-GS-00",
        Level::Must,
        "GetMachineStatus answers OK when it is done",
    ),
    Rule::proven(
        "DRV-GS-01",
        Level::Must,
        "GetMachineStatus answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "DRV-GS-02",
        Level::Must,
        "GetMachineStatus answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "DRV-GS-03",
        Level::Must,
        "GetMachineStatus answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "DRV-GS-04",
        Level::Must,
        "GetMachineStatus answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "DRV-GS-05",
        Level::Must,
        "GetMachineStatus answers NOT_FOUND when there is no such VM",
    ),
    Rule::proven(
        "DRV-GS-07",
        Level::Must,
        "GetMachineStatus answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "DRV-GS-09",
        Level::Must,
        "GetMachineStatus answers FAILED_PRECONDITION when the state of the VM forbids it",
    ),
    Rule::proven(
        "DRV-GS-11",
        Level::Must,
        "GetMachineStatus answers OUT_OF_RANGE when several VMs match",
    ),
    Rule::proven(
        "DRV-GS-12",
        Level::Must,
        "GetMachineStatus answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "DRV-GS-13",
        Level::Must,
        "GetMachineStatus answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "DRV-GS-14",
        Level::Must,
        "GetMachineStatus answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "DRV-GS-16",
        Level::Must,
        "GetMachineStatus answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "DRV-LM-00",
        Level::Must,
        "ListMachines answers OK when it is done",
    ),
    Rule::proven(
        "DRV-LM-01",
        Level::Must,
        "ListMachines answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "DRV-LM-02",
        Level::Must,
        "ListMachines answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "DRV-LM-03",
        Level::Must,
        "ListMachines answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "DRV-LM-04",
        Level::Must,
        "ListMachines answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "DRV-LM-07",
        Level::Must,
        "ListMachines answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "DRV-LM-12",
        Level::Must,
        "ListMachines answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "DRV-LM-13",
        Level::Must,
        "ListMachines answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "DRV-LM-14",
        Level::Must,
        "ListMachines answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "DRV-LM-16",
        Level::Must,
        "ListMachines answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "DRV-GV-00",
        Level::Said,
        "GetVolumeIDs answers OK when it is done",
    ),
    Rule::proven(
        "DRV-GV-01",
        Level::Said,
        "GetVolumeIDs answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "DRV-GV-02",
        Level::Said,
        "GetVolumeIDs answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "DRV-GV-03",
        Level::Said,
        "GetVolumeIDs answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "DRV-GV-04",
        Level::Said,
        "GetVolumeIDs answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "DRV-GV-12",
        Level::Said,
        "GetVolumeIDs answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "DRV-GV-13",
        Level::Said,
        "GetVolumeIDs answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "DRV-GV-14",
        Level::Said,
        "GetVolumeIDs answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven("DRV-MG-00", Level::Said, "Migration answers OK when it is done"),
    Rule::proven(
        "DRV-MG-12",
        Level::Said,
        "Migration answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "DRV-MG-13",
        Level::Said,
        "Migration answers INTERNAL when the class can't be converted",
    ),
];
