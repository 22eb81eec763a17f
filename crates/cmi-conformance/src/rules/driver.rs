//! The rules of the driver contract and of its chapter on operation.

use super::{Rule, STARTS};

pub(super) const RULES: &[Rule] = rules! { Published:
    "DRV-02"     Said   "Optional spec fields can be omitted";
    "DRV-03"     Should "VMs of different clusters can be distinguished";
    "DRV-04"     Said   "Calls validate the provider spec first";
    "DRV-05"     Said / Must "Credentials and bootstrap data of any bytes reach the VM unchanged";
    "DRV-06"     Must   "Errors have a machine code and a message";
    "DRV-07"     Must   "Each machine maps to its own VM, and deleting it deletes only that VM";
    "DRV-08"     Should "A provider spec maps to one cluster";
    "DRV-09"     Must   "CreateMachine is implemented";
    "DRV-10"     Must   "CreateMachine adopts a VM that matches the request";
    "DRV-11"     Must   "Each machine maps to its own VM, and deleting it deletes only that VM";
    "DRV-12"     Should "CreateMachine is idempotent";
    "DRV-13"     Said   "The provider ID is unique and stable, and the node name is the name of the Node";
    "DRV-14"     Said   "The provider ID is unique and stable, and the node name is the name of the Node";
    "DRV-15"     Must   "An incomplete CreateMachine is not OK";
    "DRV-16"     Must   "CreateMachine uses the codes of its table";
    "DRV-17"     Must   "CreateMachine reports errors with a readable message";
    "DRV-18"     Must   "DeleteMachine is implemented";
    "DRV-19"     Must   "Deleting a VM that does not exist is OK";
    "DRV-20"     Must   "DeleteMachine ignores VMs of other clusters";
    "DRV-21"     Should "DeleteMachine is idempotent";
    "DRV-22"     Said   "Each machine maps to its own VM, and deleting it deletes only that VM";
    "DRV-23"     Must   "An incomplete DeleteMachine is not OK";
    "DRV-24"     Must   "DeleteMachine uses the codes of its table";
    "DRV-25"     Must   "DeleteMachine reports errors with a readable message";
    "DRV-26"     Should "GetMachineStatus works, or is always UNIMPLEMENTED";
    "DRV-27"     Said   "GetMachineStatus answers match CreateMachine";
    "DRV-28"     Must   "GetMachineStatus ignores VMs of other clusters";
    "DRV-29"     Must   "GetMachineStatus is idempotent and read-only";
    "DRV-30"     Must   "An incomplete look-up is neither OK nor NOT_FOUND";
    "DRV-31"     Must   "GetMachineStatus uses the codes of its table";
    "DRV-32"     Must   "GetMachineStatus reports errors with a readable message";
    "DRV-33"     Should "ListMachines works, or is always UNIMPLEMENTED";
    "DRV-34"     Must   "ListMachines returns every VM of the provider spec";
    "DRV-35"     Said   "ListMachines filters at the back end"
                        untested "only the back end's request log shows a filter";
    "DRV-36"     Said   "The list maps provider IDs to machine names";
    "DRV-37"     Must   "An incomplete ListMachines is not OK";
    "DRV-38"     Must   "ListMachines uses the codes of its table";
    "DRV-39"     Must   "ListMachines reports errors with a readable message";
    "DRV-40"     Should "GetVolumeIDs works, or is always UNIMPLEMENTED";
    "DRV-41"     Should "GetVolumeIDs is recommended"
                        untested "a recommendation; the report shows if the call is offered";
    "DRV-42"     Must   "GetVolumeIDs returns the IDs of all own volumes";
    "DRV-43"     Said   "GetVolumeIDs returns the IDs of all own volumes";
    "DRV-44"     May    "Volumes of others can be skipped, and never get an invented ID";
    "DRV-45"     Must   "GetVolumeIDs is idempotent";
    "DRV-46"     Must   "GetVolumeIDs reports errors with a readable message";
    "OPS-03"     Must   "The program does not expect variables from its image manifest"
                        untested STARTS;
    "OPS-08"     Should "Logs are written only to standard output and standard error"
                        untested STARTS;
    "OPS-11"     Should / Must "Logs, messages and answers contain no secrets", by_every_case;
    "OPS-13"     Should "A wrong configuration fails immediately with an exit code"
                        untested STARTS;
};
