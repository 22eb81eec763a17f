//! The error tables of the Common Machine Interface: what each call answers when.

use super::{Level, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule::proven(
        "PLG-CR-00",
        Level::Must,
        "CreateMachine answers OK when it is done",
    ),
    Rule::proven(
        "PLG-CR-01",
        Level::Must,
        "CreateMachine answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "PLG-CR-02",
        Level::Must,
        "CreateMachine answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "PLG-CR-03",
        Level::Must,
        "CreateMachine answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "PLG-CR-04",
        Level::Must,
        "CreateMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "PLG-CR-06",
        Level::Must,
        "CreateMachine answers ALREADY_EXISTS when the VM of this name is another",
    ),
    Rule::proven(
        "PLG-CR-07",
        Level::Must,
        "CreateMachine answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "PLG-CR-08",
        Level::Must,
        "CreateMachine answers RESOURCE_EXHAUSTED when quota or pool is used up",
    ),
    Rule::proven(
        "PLG-CR-09",
        Level::Must,
        "CreateMachine answers FAILED_PRECONDITION when the state of the VM forbids it",
    ),
    Rule::proven(
        "PLG-CR-10",
        Level::Must,
        "CreateMachine answers ABORTED, if not OK, when an operation on the machine is pending",
    ),
    Rule::proven(
        "PLG-CR-11",
        Level::Must,
        "CreateMachine answers OUT_OF_RANGE when there is no such size",
    ),
    Rule::proven(
        "PLG-CR-12",
        Level::Must,
        "CreateMachine answers UNIMPLEMENTED never: it is REQUIRED",
    ),
    Rule::proven(
        "PLG-CR-13",
        Level::Must,
        "CreateMachine answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "PLG-CR-14",
        Level::Must,
        "CreateMachine answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "PLG-CR-16",
        Level::Must,
        "CreateMachine answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "PLG-DE-00",
        Level::Must,
        "DeleteMachine answers OK when it is done",
    ),
    Rule::proven(
        "PLG-DE-01",
        Level::Must,
        "DeleteMachine answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "PLG-DE-02",
        Level::Must,
        "DeleteMachine answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "PLG-DE-03",
        Level::Must,
        "DeleteMachine answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "PLG-DE-04",
        Level::Must,
        "DeleteMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "PLG-DE-07",
        Level::Must,
        "DeleteMachine answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "PLG-DE-09",
        Level::Must,
        "DeleteMachine answers FAILED_PRECONDITION when the state of the VM forbids it",
    ),
    Rule::proven(
        "PLG-DE-10",
        Level::Must,
        "DeleteMachine answers ABORTED, if not OK, when an operation on the machine is pending",
    ),
    Rule::proven(
        "PLG-DE-12",
        Level::Must,
        "DeleteMachine answers UNIMPLEMENTED never: it is REQUIRED",
    ),
    Rule::proven(
        "PLG-DE-13",
        Level::Must,
        "DeleteMachine answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "PLG-DE-14",
        Level::Must,
        "DeleteMachine answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "PLG-DE-16",
        Level::Must,
        "DeleteMachine answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "PLG-GS-00",
        Level::Must,
        "GetMachineStatus answers OK when it is done",
    ),
    Rule::proven(
        "PLG-GS-01",
        Level::Must,
        "GetMachineStatus answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "PLG-GS-02",
        Level::Must,
        "GetMachineStatus answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "PLG-GS-03",
        Level::Must,
        "GetMachineStatus answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "PLG-GS-04",
        Level::Must,
        "GetMachineStatus answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "PLG-GS-05",
        Level::Must,
        "GetMachineStatus answers NOT_FOUND when there is no such VM",
    ),
    Rule::proven(
        "PLG-GS-07",
        Level::Must,
        "GetMachineStatus answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "PLG-GS-09",
        Level::Must,
        "GetMachineStatus answers FAILED_PRECONDITION when the state of the VM forbids it",
    ),
    Rule::proven(
        "PLG-GS-11",
        Level::Must,
        "GetMachineStatus answers OUT_OF_RANGE when several VMs match",
    ),
    Rule::proven(
        "PLG-GS-12",
        Level::Must,
        "GetMachineStatus answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "PLG-GS-13",
        Level::Must,
        "GetMachineStatus answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "PLG-GS-14",
        Level::Must,
        "GetMachineStatus answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "PLG-GS-16",
        Level::Must,
        "GetMachineStatus answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "PLG-SD-00",
        Level::Must,
        "ShutDownMachine answers OK when the guest is stopped, or has accepted to stop",
    ),
    Rule::proven(
        "PLG-SD-01",
        Level::Must,
        "ShutDownMachine answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "PLG-SD-02",
        Level::Must,
        "ShutDownMachine answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "PLG-SD-03",
        Level::Must,
        "ShutDownMachine answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "PLG-SD-04",
        Level::Must,
        "ShutDownMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "PLG-SD-07",
        Level::Must,
        "ShutDownMachine answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "PLG-SD-09",
        Level::Must,
        "ShutDownMachine answers FAILED_PRECONDITION when the state of the VM forbids it",
    ),
    Rule::proven(
        "PLG-SD-10",
        Level::Must,
        "ShutDownMachine answers ABORTED, if not OK, when an operation on the machine is pending",
    ),
    Rule::proven(
        "PLG-SD-12",
        Level::Must,
        "ShutDownMachine answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "PLG-SD-13",
        Level::Must,
        "ShutDownMachine answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "PLG-SD-14",
        Level::Must,
        "ShutDownMachine answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "PLG-SD-16",
        Level::Must,
        "ShutDownMachine answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "PLG-LM-00",
        Level::Must,
        "ListMachines answers OK when it is done",
    ),
    Rule::proven(
        "PLG-LM-01",
        Level::Must,
        "ListMachines answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "PLG-LM-02",
        Level::Must,
        "ListMachines answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "PLG-LM-03",
        Level::Must,
        "ListMachines answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "PLG-LM-04",
        Level::Must,
        "ListMachines answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "PLG-LM-07",
        Level::Must,
        "ListMachines answers PERMISSION_DENIED when the credentials do not allow it",
    ),
    Rule::proven(
        "PLG-LM-12",
        Level::Must,
        "ListMachines answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "PLG-LM-13",
        Level::Must,
        "ListMachines answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "PLG-LM-14",
        Level::Must,
        "ListMachines answers UNAVAILABLE when the back end can't be reached",
    ),
    Rule::proven(
        "PLG-LM-16",
        Level::Must,
        "ListMachines answers UNAUTHENTICATED when credentials are missing or wrong",
    ),
    Rule::proven(
        "PLG-GV-00",
        Level::Must,
        "GetVolumeIDs answers OK when it is done",
    ),
    Rule::proven(
        "PLG-GV-01",
        Level::Must,
        "GetVolumeIDs answers CANCELLED, or nothing, when its caller gives it up, and can be repeated",
    ),
    Rule::proven(
        "PLG-GV-02",
        Level::Must,
        "GetVolumeIDs answers UNKNOWN when nobody foresaw what went wrong",
    ),
    Rule::proven(
        "PLG-GV-03",
        Level::Must,
        "GetVolumeIDs answers INVALID_ARGUMENT when the request can't be accepted, and says what is wrong",
    ),
    Rule::proven(
        "PLG-GV-04",
        Level::Must,
        "GetVolumeIDs answers DEADLINE_EXCEEDED when it takes too long, and can be repeated",
    ),
    Rule::proven(
        "PLG-GV-12",
        Level::Must,
        "GetVolumeIDs answers UNIMPLEMENTED when, and only when, it is not offered",
    ),
    Rule::proven(
        "PLG-GV-13",
        Level::Must,
        "GetVolumeIDs answers INTERNAL when an invariant of the back end is broken",
    ),
    Rule::proven(
        "PLG-GV-14",
        Level::Must,
        "GetVolumeIDs answers UNAVAILABLE when the back end can't be reached",
    ),
];
