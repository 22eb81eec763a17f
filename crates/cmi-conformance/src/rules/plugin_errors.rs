//! The error tables of the Common Machine Interface: what each call answers when.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Published:
    "PLG-CR-00"  Must   "CreateMachine answers OK when it is done";
    "PLG-CR-01"  Must   "CreateMachine answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "PLG-CR-02"  Must   "CreateMachine answers UNKNOWN for an error that has no other code";
    "PLG-CR-03"  Must   "CreateMachine answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "PLG-CR-04"  Must   "CreateMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "PLG-CR-06"  Must   "CreateMachine answers ALREADY_EXISTS when the VM of this name is another";
    "PLG-CR-07"  Must   "CreateMachine answers PERMISSION_DENIED when the credentials do not allow it";
    "PLG-CR-08"  Must   "CreateMachine answers RESOURCE_EXHAUSTED when quota or pool is used up";
    "PLG-CR-09"  Must   "CreateMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
    "PLG-CR-10"  Must   "CreateMachine answers ABORTED, if not OK, when an operation on the machine is \
                        pending";
    "PLG-CR-11"  Must   "CreateMachine answers OUT_OF_RANGE when there is no such size";
    "PLG-CR-12"  Must   "CreateMachine answers UNIMPLEMENTED never: it is REQUIRED";
    "PLG-CR-13"  Must   "CreateMachine answers INTERNAL when an invariant of the back end is broken";
    "PLG-CR-14"  Must   "CreateMachine answers UNAVAILABLE when the back end can't be reached";
    "PLG-CR-16"  Must   "CreateMachine answers UNAUTHENTICATED when credentials are missing or wrong";
    "PLG-DE-00"  Must   "DeleteMachine answers OK when it is done";
    "PLG-DE-01"  Must   "DeleteMachine answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "PLG-DE-02"  Must   "DeleteMachine answers UNKNOWN for an error that has no other code";
    "PLG-DE-03"  Must   "DeleteMachine answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "PLG-DE-04"  Must   "DeleteMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "PLG-DE-07"  Must   "DeleteMachine answers PERMISSION_DENIED when the credentials do not allow it";
    "PLG-DE-09"  Must   "DeleteMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
    "PLG-DE-10"  Must   "DeleteMachine answers ABORTED, if not OK, when an operation on the machine is \
                        pending";
    "PLG-DE-12"  Must   "DeleteMachine answers UNIMPLEMENTED never: it is REQUIRED";
    "PLG-DE-13"  Must   "DeleteMachine answers INTERNAL when an invariant of the back end is broken";
    "PLG-DE-14"  Must   "DeleteMachine answers UNAVAILABLE when the back end can't be reached";
    "PLG-DE-16"  Must   "DeleteMachine answers UNAUTHENTICATED when credentials are missing or wrong";
    "PLG-GS-00"  Must   "GetMachineStatus answers OK when it is done";
    "PLG-GS-01"  Must   "GetMachineStatus answers CANCELLED, or nothing, when its caller gives it up, and \
                        can be repeated";
    "PLG-GS-02"  Must   "GetMachineStatus answers UNKNOWN for an error that has no other code";
    "PLG-GS-03"  Must   "GetMachineStatus answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "PLG-GS-04"  Must   "GetMachineStatus answers DEADLINE_EXCEEDED when it takes too long, and can be \
                        repeated";
    "PLG-GS-05"  Must   "GetMachineStatus answers NOT_FOUND when there is no such VM";
    "PLG-GS-07"  Must   "GetMachineStatus answers PERMISSION_DENIED when the credentials do not allow it";
    "PLG-GS-09"  Must   "GetMachineStatus answers FAILED_PRECONDITION when the state of the VM forbids it";
    "PLG-GS-11"  Must   "GetMachineStatus answers OUT_OF_RANGE when several VMs match";
    "PLG-GS-12"  Must   "GetMachineStatus answers UNIMPLEMENTED when, and only when, it is not offered";
    "PLG-GS-13"  Must   "GetMachineStatus answers INTERNAL when an invariant of the back end is broken";
    "PLG-GS-14"  Must   "GetMachineStatus answers UNAVAILABLE when the back end can't be reached";
    "PLG-GS-16"  Must   "GetMachineStatus answers UNAUTHENTICATED when credentials are missing or wrong";
    "PLG-SD-00"  Must   "ShutDownMachine answers OK when the guest is stopped, or has accepted to stop";
    "PLG-SD-01"  Must   "ShutDownMachine answers CANCELLED, or nothing, when its caller gives it up, and \
                        can be repeated";
    "PLG-SD-02"  Must   "ShutDownMachine answers UNKNOWN for an error that has no other code";
    "PLG-SD-03"  Must   "ShutDownMachine answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "PLG-SD-04"  Must   "ShutDownMachine answers DEADLINE_EXCEEDED when it takes too long, and can be \
                        repeated";
    "PLG-SD-07"  Must   "ShutDownMachine answers PERMISSION_DENIED when the credentials do not allow it";
    "PLG-SD-09"  Must   "ShutDownMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
    "PLG-SD-10"  Must   "ShutDownMachine answers ABORTED, if not OK, when an operation on the machine is \
                        pending";
    "PLG-SD-12"  Must   "ShutDownMachine answers UNIMPLEMENTED when, and only when, it is not offered";
    "PLG-SD-13"  Must   "ShutDownMachine answers INTERNAL when an invariant of the back end is broken";
    "PLG-SD-14"  Must   "ShutDownMachine answers UNAVAILABLE when the back end can't be reached";
    "PLG-SD-16"  Must   "ShutDownMachine answers UNAUTHENTICATED when credentials are missing or wrong";
    "PLG-LM-00"  Must   "ListMachines answers OK when it is done";
    "PLG-LM-01"  Must   "ListMachines answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "PLG-LM-02"  Must   "ListMachines answers UNKNOWN for an error that has no other code";
    "PLG-LM-03"  Must   "ListMachines answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "PLG-LM-04"  Must   "ListMachines answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "PLG-LM-07"  Must   "ListMachines answers PERMISSION_DENIED when the credentials do not allow it";
    "PLG-LM-12"  Must   "ListMachines answers UNIMPLEMENTED when, and only when, it is not offered";
    "PLG-LM-13"  Must   "ListMachines answers INTERNAL when an invariant of the back end is broken";
    "PLG-LM-14"  Must   "ListMachines answers UNAVAILABLE when the back end can't be reached";
    "PLG-LM-16"  Must   "ListMachines answers UNAUTHENTICATED when credentials are missing or wrong";
    "PLG-GV-00"  Must   "GetVolumeIDs answers OK when it is done";
    "PLG-GV-01"  Must   "GetVolumeIDs answers CANCELLED, or nothing, when its caller gives it up, and can \
                        be repeated";
    "PLG-GV-02"  Must   "GetVolumeIDs answers UNKNOWN for an error that has no other code";
    "PLG-GV-03"  Must   "GetVolumeIDs answers INVALID_ARGUMENT when the request can't be accepted, and \
                        says what is wrong";
    "PLG-GV-04"  Must   "GetVolumeIDs answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "PLG-GV-12"  Must   "GetVolumeIDs answers UNIMPLEMENTED when, and only when, it is not offered";
    "PLG-GV-13"  Must   "GetVolumeIDs answers INTERNAL when an invariant of the back end is broken";
    "PLG-GV-14"  Must   "GetVolumeIDs answers UNAVAILABLE when the back end can't be reached";
};
