//! The rules of the driver contract and of its chapter on operation.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Published:
    "DRV-02"     Said   "Fields that are not mandatory may be left out";
    "DRV-03"     Should "The VMs of one cluster can be told from those of another";
    "DRV-04"     Said   "Every call that takes a provider spec checks it first";
    "DRV-05"     Said / Must "Credentials and bootstrap data reach the VM as they are";
    "DRV-06"     Must   "Every failure has a machine code and a message";
    "DRV-07"     Must   "A machine leads to one VM, so that deleting it deletes just that";
    "DRV-08"     Should "A class leads to one cluster";
    "DRV-09"     Must   "CreateMachine is implemented";
    "DRV-10"     Must   "A VM that is there and fits is adopted";
    "DRV-11"     Must   "Each machine has a VM of its own";
    "DRV-12"     Should "CreateMachine can be repeated";
    "DRV-13"     Said   "The provider id is unique and stays";
    "DRV-14"     Said   "The node name is the name that the Node will have";
    "DRV-15"     Must   "A create that is not complete does not answer OK";
    "DRV-16"     Must   "CreateMachine answers the code of its table";
    "DRV-17"     Must   "An error of CreateMachine says in words what is wrong";
    "DRV-18"     Must   "DeleteMachine is implemented";
    "DRV-19"     Must   "To delete what is not there is OK";
    "DRV-20"     Must   "DeleteMachine touches no VM of another cluster";
    "DRV-21"     Should "DeleteMachine can be repeated";
    "DRV-22"     Said   "A machine leads to the VM that is to be deleted";
    "DRV-23"     Must   "A deletion that is not complete does not answer OK";
    "DRV-24"     Must   "DeleteMachine answers the code of its table";
    "DRV-25"     Must   "An error of DeleteMachine says in words what is wrong";
    "DRV-26"     Should "GetMachineStatus works, or is always UNIMPLEMENTED";
    "DRV-27"     Said   "GetMachineStatus answers as CreateMachine does";
    "DRV-28"     Must   "GetMachineStatus sees no VM of another cluster";
    "DRV-29"     Must   "GetMachineStatus can be repeated and changes nothing";
    "DRV-30"     Must   "A look-up that is not complete does not answer OK, or NOT_FOUND";
    "DRV-31"     Must   "GetMachineStatus answers the code of its table";
    "DRV-32"     Must   "An error of GetMachineStatus says in words what is wrong";
    "DRV-33"     Should "ListMachines works, or is always UNIMPLEMENTED";
    "DRV-34"     Must   "ListMachines names every VM of the class";
    "DRV-35"     Said   "ListMachines lets the back end do the filtering"
                        untested "it takes the back end's own log of requests to see a filter";
    "DRV-36"     Said   "The list leads from provider ids to machine names";
    "DRV-37"     Must   "A list that is not complete does not answer OK";
    "DRV-38"     Must   "ListMachines answers the code of its table";
    "DRV-39"     Must   "An error of ListMachines says in words what is wrong";
    "DRV-40"     Should "GetVolumeIDs works, or is always UNIMPLEMENTED";
    "DRV-41"     Should "GetVolumeIDs is recommended"
                        untested "a recommendation: the report shows whether the call is offered";
    "DRV-42"     Must   "GetVolumeIDs of own volumes is OK";
    "DRV-43"     Said   "The ids of all own volumes come out";
    "DRV-44"     May    "Volumes of others may be left out, and never get an id that is made up";
    "DRV-45"     Must   "GetVolumeIDs can be repeated";
    "DRV-46"     Must   "An error of GetVolumeIDs says in words what is wrong";
    "OPS-03"     Must   "Nothing is taken for granted about the image manifest"
                        untested "about how the program is started and what it writes, which no call \
                            shows; `capcmi driver serve` has tests of its own for it";
    "OPS-08"     Should "Logs go to standard output and standard error alone"
                        untested "about how the program is started and what it writes, which no call \
                            shows; `capcmi driver serve` has tests of its own for it";
    "OPS-11"     Should / Must "No secret is written to logs, messages or answers", by_every_case;
    "OPS-13"     Should "What is configured wrongly fails at once, with an exit code"
                        untested "about how the program is started and what it writes, which no call \
                            shows; `capcmi driver serve` has tests of its own for it";
};
