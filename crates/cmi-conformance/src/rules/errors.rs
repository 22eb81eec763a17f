//! The error tables of the driver contract and of the Common Machine Interface: the codes of each call.

use super::Rule;

/// The error table of a specification, whose ids begin with the prefix. The two specifications differ in the
/// level of the rows of GetVolumeIDs, and in whether they have rows of ShutDownMachine.
macro_rules! errors {
    ($prefix:literal, volumes: $level:ident, shut_down: { $($rows:tt)* }) => { rules! { Published $prefix:
        "CR-00" Must "CreateMachine answers OK on success";
        "CR-01" Must "CreateMachine answers CANCELLED or nothing after a cancellation, and can be repeated";
        "CR-02" Must "CreateMachine answers UNKNOWN for errors without another code";
        "CR-03" Must "CreateMachine answers INVALID_ARGUMENT with an explanation if a field is missing \
            or invalid";
        "CR-04" Must "CreateMachine answers DEADLINE_EXCEEDED after its deadline, and can be repeated";
        "CR-06" Must "CreateMachine answers ALREADY_EXISTS if the VM of this name does not match";
        "CR-07" Must "CreateMachine answers PERMISSION_DENIED if the credentials lack the permission";
        "CR-08" Must "CreateMachine answers RESOURCE_EXHAUSTED if a quota or pool is exhausted";
        "CR-09" Must "CreateMachine answers FAILED_PRECONDITION if the VM is in an invalid state";
        "CR-10" Must "CreateMachine answers ABORTED or OK while an operation is pending";
        "CR-11" Must "CreateMachine answers OUT_OF_RANGE for a size that does not exist";
        "CR-12" Must "CreateMachine answers UNIMPLEMENTED never: the call is REQUIRED";
        "CR-13" Must "CreateMachine answers INTERNAL if an invariant of the back end is broken";
        "CR-14" Must "CreateMachine answers UNAVAILABLE if the back end is unreachable";
        "CR-16" Must "CreateMachine answers UNAUTHENTICATED if credentials are missing or wrong";
        "DE-00" Must "DeleteMachine answers OK on success";
        "DE-01" Must "DeleteMachine answers CANCELLED or nothing after a cancellation, and can be repeated";
        "DE-02" Must "DeleteMachine answers UNKNOWN for errors without another code";
        "DE-03" Must "DeleteMachine answers INVALID_ARGUMENT with an explanation if a field is missing \
            or invalid";
        "DE-04" Must "DeleteMachine answers DEADLINE_EXCEEDED after its deadline, and can be repeated";
        "DE-07" Must "DeleteMachine answers PERMISSION_DENIED if the credentials lack the permission";
        "DE-09" Must "DeleteMachine answers FAILED_PRECONDITION if the VM is in an invalid state";
        "DE-10" Must "DeleteMachine answers ABORTED or OK while an operation is pending";
        "DE-12" Must "DeleteMachine answers UNIMPLEMENTED never: the call is REQUIRED";
        "DE-13" Must "DeleteMachine answers INTERNAL if an invariant of the back end is broken";
        "DE-14" Must "DeleteMachine answers UNAVAILABLE if the back end is unreachable";
        "DE-16" Must "DeleteMachine answers UNAUTHENTICATED if credentials are missing or wrong";
        "GS-00" Must "GetMachineStatus answers OK on success";
        "GS-01" Must "GetMachineStatus answers CANCELLED or nothing after a \
            cancellation, and can be repeated";
        "GS-02" Must "GetMachineStatus answers UNKNOWN for errors without another code";
        "GS-03" Must "GetMachineStatus answers INVALID_ARGUMENT with an explanation \
            if a field is missing or invalid";
        "GS-04" Must "GetMachineStatus answers DEADLINE_EXCEEDED after its deadline, and can be repeated";
        "GS-05" Must "GetMachineStatus answers NOT_FOUND if the VM does not exist";
        "GS-07" Must "GetMachineStatus answers PERMISSION_DENIED if the credentials lack the permission";
        "GS-09" Must "GetMachineStatus answers FAILED_PRECONDITION if the VM is in an invalid state";
        "GS-11" Must "GetMachineStatus answers OUT_OF_RANGE if several VMs match";
        "GS-12" Must "GetMachineStatus answers UNIMPLEMENTED if and only if not offered";
        "GS-13" Must "GetMachineStatus answers INTERNAL if an invariant of the back end is broken";
        "GS-14" Must "GetMachineStatus answers UNAVAILABLE if the back end is unreachable";
        "GS-16" Must "GetMachineStatus answers UNAUTHENTICATED if credentials are missing or wrong";
        $($rows)*
        "LM-00" Must "ListMachines answers OK on success";
        "LM-01" Must "ListMachines answers CANCELLED or nothing after a cancellation, and can be repeated";
        "LM-02" Must "ListMachines answers UNKNOWN for errors without another code";
        "LM-03" Must "ListMachines answers INVALID_ARGUMENT with an explanation if a field is missing \
            or invalid";
        "LM-04" Must "ListMachines answers DEADLINE_EXCEEDED after its deadline, and can be repeated";
        "LM-07" Must "ListMachines answers PERMISSION_DENIED if the credentials lack the permission";
        "LM-12" Must "ListMachines answers UNIMPLEMENTED if and only if not offered";
        "LM-13" Must "ListMachines answers INTERNAL if an invariant of the back end is broken";
        "LM-14" Must "ListMachines answers UNAVAILABLE if the back end is unreachable";
        "LM-16" Must "ListMachines answers UNAUTHENTICATED if credentials are missing or wrong";
        "GV-00" $level "GetVolumeIDs answers OK on success";
        "GV-01" $level "GetVolumeIDs answers CANCELLED or nothing after a cancellation, and can be repeated";
        "GV-02" $level "GetVolumeIDs answers UNKNOWN for errors without another code";
        "GV-03" $level "GetVolumeIDs answers INVALID_ARGUMENT with an explanation if a field is missing \
            or invalid";
        "GV-04" $level "GetVolumeIDs answers DEADLINE_EXCEEDED after its deadline, and can be repeated";
        "GV-12" $level "GetVolumeIDs answers UNIMPLEMENTED if and only if not offered";
        "GV-13" $level "GetVolumeIDs answers INTERNAL if an invariant of the back end is broken";
        "GV-14" $level "GetVolumeIDs answers UNAVAILABLE if the back end is unreachable";
    } };
}

pub(super) const DRIVER: &[Rule] = errors!("DRV-", volumes: Said, shut_down: {});

pub(super) const PLUGIN: &[Rule] = errors!("PLG-", volumes: Must, shut_down: {
    "SD-00" Must "ShutDownMachine answers OK on success";
    "SD-01" Must "ShutDownMachine answers CANCELLED or nothing after a cancellation, and can be repeated";
    "SD-02" Must "ShutDownMachine answers UNKNOWN for errors without another code";
    "SD-03" Must "ShutDownMachine answers INVALID_ARGUMENT with an explanation if a field is missing \
            or invalid";
    "SD-04" Must "ShutDownMachine answers DEADLINE_EXCEEDED after its deadline, and can be repeated";
    "SD-07" Must "ShutDownMachine answers PERMISSION_DENIED if the credentials lack the permission";
    "SD-09" Must "ShutDownMachine answers FAILED_PRECONDITION if the VM is in an invalid state";
    "SD-10" Must "ShutDownMachine answers ABORTED or OK while an operation is pending";
    "SD-12" Must "ShutDownMachine answers UNIMPLEMENTED if and only if not offered";
    "SD-13" Must "ShutDownMachine answers INTERNAL if an invariant of the back end is broken";
    "SD-14" Must "ShutDownMachine answers UNAVAILABLE if the back end is unreachable";
    "SD-16" Must "ShutDownMachine answers UNAUTHENTICATED if credentials are missing or wrong";
});
