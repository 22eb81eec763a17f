//! The error tables of the driver contract: what each call answers when.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Published:
    "DRV-CR-00"  Must   "CreateMachine answers OK when it is done";
    "DRV-CR-01"  Must   "CreateMachine answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "DRV-CR-02"  Must   "CreateMachine answers UNKNOWN for an error that has no other code";
    "DRV-CR-03"  Must   "CreateMachine answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "DRV-CR-04"  Must   "CreateMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "DRV-CR-06"  Must   "CreateMachine answers ALREADY_EXISTS when the VM of this name is another";
    "DRV-CR-07"  Must   "CreateMachine answers PERMISSION_DENIED when the credentials do not allow it";
    "DRV-CR-08"  Must   "CreateMachine answers RESOURCE_EXHAUSTED when quota or pool is used up";
    "DRV-CR-09"  Must   "CreateMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
    "DRV-CR-10"  Must   "CreateMachine answers ABORTED, if not OK, when an operation on the machine is \
                        pending";
    "DRV-CR-11"  Must   "CreateMachine answers OUT_OF_RANGE when there is no such size";
    "DRV-CR-12"  Must   "CreateMachine answers UNIMPLEMENTED never: it is REQUIRED";
    "DRV-CR-13"  Must   "CreateMachine answers INTERNAL when an invariant of the back end is broken";
    "DRV-CR-14"  Must   "CreateMachine answers UNAVAILABLE when the back end can't be reached";
    "DRV-CR-16"  Must   "CreateMachine answers UNAUTHENTICATED when credentials are missing or wrong";
    "DRV-DE-00"  Must   "DeleteMachine answers OK when it is done";
    "DRV-DE-01"  Must   "DeleteMachine answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "DRV-DE-02"  Must   "DeleteMachine answers UNKNOWN for an error that has no other code";
    "DRV-DE-03"  Must   "DeleteMachine answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "DRV-DE-04"  Must   "DeleteMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "DRV-DE-07"  Must   "DeleteMachine answers PERMISSION_DENIED when the credentials do not allow it";
    "DRV-DE-09"  Must   "DeleteMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
    "DRV-DE-10"  Must   "DeleteMachine answers ABORTED, if not OK, when an operation on the machine is \
                        pending";
    "DRV-DE-12"  Must   "DeleteMachine answers UNIMPLEMENTED never: it is REQUIRED";
    "DRV-DE-13"  Must   "DeleteMachine answers INTERNAL when an invariant of the back end is broken";
    "DRV-DE-14"  Must   "DeleteMachine answers UNAVAILABLE when the back end can't be reached";
    "DRV-DE-16"  Must   "DeleteMachine answers UNAUTHENTICATED when credentials are missing or wrong";
    "DRV-GS-00"  Must   "GetMachineStatus answers OK when it is done";
    "DRV-GS-01"  Must   "GetMachineStatus answers CANCELLED, or nothing, when its caller gives it up, and \
                        can be repeated";
    "DRV-GS-02"  Must   "GetMachineStatus answers UNKNOWN for an error that has no other code";
    "DRV-GS-03"  Must   "GetMachineStatus answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "DRV-GS-04"  Must   "GetMachineStatus answers DEADLINE_EXCEEDED when it takes too long, and can be \
                        repeated";
    "DRV-GS-05"  Must   "GetMachineStatus answers NOT_FOUND when there is no such VM";
    "DRV-GS-07"  Must   "GetMachineStatus answers PERMISSION_DENIED when the credentials do not allow it";
    "DRV-GS-09"  Must   "GetMachineStatus answers FAILED_PRECONDITION when the state of the VM forbids it";
    "DRV-GS-11"  Must   "GetMachineStatus answers OUT_OF_RANGE when several VMs match";
    "DRV-GS-12"  Must   "GetMachineStatus answers UNIMPLEMENTED when, and only when, it is not offered";
    "DRV-GS-13"  Must   "GetMachineStatus answers INTERNAL when an invariant of the back end is broken";
    "DRV-GS-14"  Must   "GetMachineStatus answers UNAVAILABLE when the back end can't be reached";
    "DRV-GS-16"  Must   "GetMachineStatus answers UNAUTHENTICATED when credentials are missing or wrong";
    "DRV-LM-00"  Must   "ListMachines answers OK when it is done";
    "DRV-LM-01"  Must   "ListMachines answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "DRV-LM-02"  Must   "ListMachines answers UNKNOWN for an error that has no other code";
    "DRV-LM-03"  Must   "ListMachines answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "DRV-LM-04"  Must   "ListMachines answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "DRV-LM-07"  Must   "ListMachines answers PERMISSION_DENIED when the credentials do not allow it";
    "DRV-LM-12"  Must   "ListMachines answers UNIMPLEMENTED when, and only when, it is not offered";
    "DRV-LM-13"  Must   "ListMachines answers INTERNAL when an invariant of the back end is broken";
    "DRV-LM-14"  Must   "ListMachines answers UNAVAILABLE when the back end can't be reached";
    "DRV-LM-16"  Must   "ListMachines answers UNAUTHENTICATED when credentials are missing or wrong";
    "DRV-GV-00"  Said   "GetVolumeIDs answers OK when it is done";
    "DRV-GV-01"  Said   "GetVolumeIDs answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "DRV-GV-02"  Said   "GetVolumeIDs answers UNKNOWN for an error that has no other code";
    "DRV-GV-03"  Said   "GetVolumeIDs answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "DRV-GV-04"  Said   "GetVolumeIDs answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "DRV-GV-12"  Said   "GetVolumeIDs answers UNIMPLEMENTED when, and only when, it is not offered";
    "DRV-GV-13"  Said   "GetVolumeIDs answers INTERNAL when an invariant of the back end is broken";
    "DRV-GV-14"  Said   "GetVolumeIDs answers UNAVAILABLE when the back end can't be reached";
};
