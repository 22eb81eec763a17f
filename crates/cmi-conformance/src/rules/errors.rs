//! The error tables of the driver contract and of the Common Machine Interface: the codes of each call.

use super::Rule;

/// The error table of a specification, whose ids begin with the prefix. The two specifications differ in how
/// binding the rows of GetVolumeIDs are, and in whether there are rows of ShutDownMachine.
macro_rules! errors {
    ($prefix:literal, volumes: $level:ident, shut_down: { $($rows:tt)* }) => { rules! { Published $prefix:
        "CR-00" Must "CreateMachine answers OK when it is done";
        "CR-01" Must "CreateMachine answers CANCELLED, or nothing, when its caller gives it up, and can be \
            repeated";
        "CR-02" Must "CreateMachine answers UNKNOWN for an error that has no other code";
        "CR-03" Must "CreateMachine answers INVALID_ARGUMENT when the request can't be accepted, and says \
            what is wrong";
        "CR-04" Must "CreateMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
        "CR-06" Must "CreateMachine answers ALREADY_EXISTS when the VM of this name is another";
        "CR-07" Must "CreateMachine answers PERMISSION_DENIED when the credentials do not allow it";
        "CR-08" Must "CreateMachine answers RESOURCE_EXHAUSTED when quota or pool is used up";
        "CR-09" Must "CreateMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
        "CR-10" Must "CreateMachine answers ABORTED, if not OK, when an operation on the machine is pending";
        "CR-11" Must "CreateMachine answers OUT_OF_RANGE when there is no such size";
        "CR-12" Must "CreateMachine answers UNIMPLEMENTED never: it is REQUIRED";
        "CR-13" Must "CreateMachine answers INTERNAL when an invariant of the back end is broken";
        "CR-14" Must "CreateMachine answers UNAVAILABLE when the back end can't be reached";
        "CR-16" Must "CreateMachine answers UNAUTHENTICATED when credentials are missing or wrong";
        "DE-00" Must "DeleteMachine answers OK when it is done";
        "DE-01" Must "DeleteMachine answers CANCELLED, or nothing, when its caller gives it up, and can be \
            repeated";
        "DE-02" Must "DeleteMachine answers UNKNOWN for an error that has no other code";
        "DE-03" Must "DeleteMachine answers INVALID_ARGUMENT when the request can't be accepted, and says \
            what is wrong";
        "DE-04" Must "DeleteMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
        "DE-07" Must "DeleteMachine answers PERMISSION_DENIED when the credentials do not allow it";
        "DE-09" Must "DeleteMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
        "DE-10" Must "DeleteMachine answers ABORTED, if not OK, when an operation on the machine is pending";
        "DE-12" Must "DeleteMachine answers UNIMPLEMENTED never: it is REQUIRED";
        "DE-13" Must "DeleteMachine answers INTERNAL when an invariant of the back end is broken";
        "DE-14" Must "DeleteMachine answers UNAVAILABLE when the back end can't be reached";
        "DE-16" Must "DeleteMachine answers UNAUTHENTICATED when credentials are missing or wrong";
        "GS-00" Must "GetMachineStatus answers OK when it is done";
        "GS-01" Must "GetMachineStatus answers CANCELLED, or nothing, when its caller gives it up, and can \
            be repeated";
        "GS-02" Must "GetMachineStatus answers UNKNOWN for an error that has no other code";
        "GS-03" Must "GetMachineStatus answers INVALID_ARGUMENT when the request can't be accepted, and says \
            what is wrong";
        "GS-04" Must "GetMachineStatus answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
        "GS-05" Must "GetMachineStatus answers NOT_FOUND when there is no such VM";
        "GS-07" Must "GetMachineStatus answers PERMISSION_DENIED when the credentials do not allow it";
        "GS-09" Must "GetMachineStatus answers FAILED_PRECONDITION when the state of the VM forbids it";
        "GS-11" Must "GetMachineStatus answers OUT_OF_RANGE when several VMs match";
        "GS-12" Must "GetMachineStatus answers UNIMPLEMENTED when, and only when, it is not offered";
        "GS-13" Must "GetMachineStatus answers INTERNAL when an invariant of the back end is broken";
        "GS-14" Must "GetMachineStatus answers UNAVAILABLE when the back end can't be reached";
        "GS-16" Must "GetMachineStatus answers UNAUTHENTICATED when credentials are missing or wrong";
        $($rows)*
        "LM-00" Must "ListMachines answers OK when it is done";
        "LM-01" Must "ListMachines answers CANCELLED, or nothing, when its caller gives it up, and can be \
            repeated";
        "LM-02" Must "ListMachines answers UNKNOWN for an error that has no other code";
        "LM-03" Must "ListMachines answers INVALID_ARGUMENT when the request can't be accepted, and says \
            what is wrong";
        "LM-04" Must "ListMachines answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
        "LM-07" Must "ListMachines answers PERMISSION_DENIED when the credentials do not allow it";
        "LM-12" Must "ListMachines answers UNIMPLEMENTED when, and only when, it is not offered";
        "LM-13" Must "ListMachines answers INTERNAL when an invariant of the back end is broken";
        "LM-14" Must "ListMachines answers UNAVAILABLE when the back end can't be reached";
        "LM-16" Must "ListMachines answers UNAUTHENTICATED when credentials are missing or wrong";
        "GV-00" $level "GetVolumeIDs answers OK when it is done";
        "GV-01" $level "GetVolumeIDs answers CANCELLED, or nothing, when its caller gives it up, and can be \
            repeated";
        "GV-02" $level "GetVolumeIDs answers UNKNOWN for an error that has no other code";
        "GV-03" $level "GetVolumeIDs answers INVALID_ARGUMENT when the request can't be accepted, and says \
            what is wrong";
        "GV-04" $level "GetVolumeIDs answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
        "GV-12" $level "GetVolumeIDs answers UNIMPLEMENTED when, and only when, it is not offered";
        "GV-13" $level "GetVolumeIDs answers INTERNAL when an invariant of the back end is broken";
        "GV-14" $level "GetVolumeIDs answers UNAVAILABLE when the back end can't be reached";
    } };
}

pub(super) const DRIVER: &[Rule] = errors!("DRV-", volumes: Said, shut_down: {});

pub(super) const PLUGIN: &[Rule] = errors!("PLG-", volumes: Must, shut_down: {
    "SD-00" Must "ShutDownMachine answers OK when the guest is stopped, or has accepted to stop";
    "SD-01" Must "ShutDownMachine answers CANCELLED, or nothing, when its caller gives it up, and can be \
        repeated";
    "SD-02" Must "ShutDownMachine answers UNKNOWN for an error that has no other code";
    "SD-03" Must "ShutDownMachine answers INVALID_ARGUMENT when the request can't be accepted, and says what \
        is wrong";
    "SD-04" Must "ShutDownMachine answers DEADLINE_EXCEEDED when it takes too long, and can be repeated";
    "SD-07" Must "ShutDownMachine answers PERMISSION_DENIED when the credentials do not allow it";
    "SD-09" Must "ShutDownMachine answers FAILED_PRECONDITION when the state of the VM forbids it";
    "SD-10" Must "ShutDownMachine answers ABORTED, if not OK, when an operation on the machine is pending";
    "SD-12" Must "ShutDownMachine answers UNIMPLEMENTED when, and only when, it is not offered";
    "SD-13" Must "ShutDownMachine answers INTERNAL when an invariant of the back end is broken";
    "SD-14" Must "ShutDownMachine answers UNAVAILABLE when the back end can't be reached";
    "SD-16" Must "ShutDownMachine answers UNAUTHENTICATED when credentials are missing or wrong";
});
