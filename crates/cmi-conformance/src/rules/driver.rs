//! The driver contract, and its chapter on operation.

use super::{Level, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule::proven(
        "DRV-02",
        Level::Said,
        "Fields that are not mandatory may be left out",
    ),
    Rule::proven(
        "DRV-03",
        Level::Should,
        "The VMs of one cluster can be told from those of another",
    ),
    Rule::proven(
        "DRV-04",
        Level::Said,
        "Every call that takes a provider spec checks it first",
    ),
    Rule::proven(
        "DRV-05",
        Level::Said,
        "Credentials and bootstrap data reach the VM as they are",
    ),
    Rule::proven(
        "DRV-06",
        Level::Must,
        "Every failure has a machine code and a message",
    ),
    Rule::proven(
        "DRV-07",
        Level::Must,
        "A machine leads to one VM, so that deleting it deletes just that",
    ),
    Rule::proven("DRV-08", Level::Should, "A class leads to one cluster"),
    Rule::proven("DRV-09", Level::Must, "CreateMachine is implemented"),
    Rule::proven("DRV-10", Level::Must, "A VM that is there and fits is adopted"),
    Rule::proven("DRV-11", Level::Must, "Each machine has a VM of its own"),
    Rule::proven("DRV-12", Level::Should, "CreateMachine can be repeated"),
    Rule::proven("DRV-13", Level::Said, "The provider id is unique and stays"),
    Rule::proven(
        "DRV-14",
        Level::Said,
        "The node name is the name that the Node will have",
    ),
    Rule::proven(
        "DRV-15",
        Level::Must,
        "A create that is not complete does not answer OK",
    ),
    Rule::proven(
        "DRV-16",
        Level::Must,
        "CreateMachine answers the code of its table",
    ),
    Rule::proven(
        "DRV-17",
        Level::Must,
        "An error of CreateMachine says in words what is wrong",
    ),
    Rule::proven("DRV-18", Level::Must, "DeleteMachine is implemented"),
    Rule::proven("DRV-19", Level::Must, "To delete what is not there is OK"),
    Rule::proven(
        "DRV-20",
        Level::Must,
        "DeleteMachine touches no VM of another cluster",
    ),
    Rule::proven("DRV-21", Level::Should, "DeleteMachine can be repeated"),
    Rule::proven(
        "DRV-22",
        Level::Said,
        "A machine leads to the VM that is to be deleted",
    ),
    Rule::proven(
        "DRV-23",
        Level::Must,
        "A deletion that is not complete does not answer OK",
    ),
    Rule::proven(
        "DRV-24",
        Level::Must,
        "DeleteMachine answers the code of its table",
    ),
    Rule::proven(
        "DRV-25",
        Level::Must,
        "An error of DeleteMachine says in words what is wrong",
    ),
    Rule::proven(
        "DRV-26",
        Level::Should,
        "GetMachineStatus works, or is always UNIMPLEMENTED",
    ),
    Rule::proven(
        "DRV-27",
        Level::Said,
        "GetMachineStatus answers as CreateMachine does",
    ),
    Rule::proven(
        "DRV-28",
        Level::Must,
        "GetMachineStatus sees no VM of another cluster",
    ),
    Rule::proven(
        "DRV-29",
        Level::Must,
        "GetMachineStatus can be repeated and changes nothing",
    ),
    Rule::proven(
        "DRV-30",
        Level::Must,
        "A look-up that is not complete does not answer OK, or NOT_FOUND",
    ),
    Rule::proven(
        "DRV-31",
        Level::Must,
        "GetMachineStatus answers the code of its table",
    ),
    Rule::proven(
        "DRV-32",
        Level::Must,
        "An error of GetMachineStatus says in words what is wrong",
    ),
    Rule::proven(
        "DRV-33",
        Level::Should,
        "ListMachines works, or is always UNIMPLEMENTED",
    ),
    Rule::proven("DRV-34", Level::Must, "ListMachines names every VM of the class"),
    Rule::untested(
        "DRV-35",
        Level::Said,
        "ListMachines lets the back end do the filtering",
        "it takes the back end's own log of requests to see a filter",
    ),
    Rule::proven(
        "DRV-36",
        Level::Said,
        "The list leads from provider ids to machine names",
    ),
    Rule::proven(
        "DRV-37",
        Level::Must,
        "A list that is not complete does not answer OK",
    ),
    Rule::proven(
        "DRV-38",
        Level::Must,
        "ListMachines answers the code of its table",
    ),
    Rule::proven(
        "DRV-39",
        Level::Must,
        "An error of ListMachines says in words what is wrong",
    ),
    Rule::proven(
        "DRV-40",
        Level::Should,
        "GetVolumeIDs works, or is always UNIMPLEMENTED",
    ),
    Rule::untested(
        "DRV-41",
        Level::Should,
        "GetVolumeIDs is recommended",
        "a recommendation: the report shows whether the call is offered",
    ),
    Rule::proven("DRV-42", Level::Must, "GetVolumeIDs of own volumes is OK"),
    Rule::proven("DRV-43", Level::Said, "The ids of all own volumes come out"),
    Rule::proven(
        "DRV-44",
        Level::May,
        "Volumes of others may be left out, and never get an id that is made up",
    ),
    Rule::proven("DRV-45", Level::Must, "GetVolumeIDs can be repeated"),
    Rule::proven(
        "DRV-46",
        Level::Must,
        "An error of GetVolumeIDs says in words what is wrong",
    ),
    Rule::untested(
        "DRV-47",
        Level::Should,
        "GenerateMachineClassForMigration is recommended",
        "a recommendation: the report shows whether the call is offered",
    ),
    Rule::proven("DRV-48", Level::Must, "Who can't migrate answers UNIMPLEMENTED"),
    Rule::proven("DRV-49", Level::Must, "A class that can be migrated is OK"),
    Rule::proven(
        "DRV-50",
        Level::Said,
        "Migration fills the class that is given, and does no more",
    ),
    Rule::proven("DRV-51", Level::Must, "Migration can be repeated"),
    Rule::proven(
        "DRV-52",
        Level::Must,
        "An error of the migration says in words what is wrong",
    ),
    Rule::untested(
        "OPS-03",
        Level::Must,
        "Nothing is taken for granted about the image manifest",
        "about how the program is started and what it writes, which no call shows; `capcmi driver serve` has tests of its own for it",
    ),
    Rule::untested(
        "OPS-08",
        Level::Should,
        "Logs go to standard output and standard error alone",
        "about how the program is started and what it writes, which no call shows; `capcmi driver serve` has tests of its own for it",
    ),
    Rule::proven(
        "OPS-11",
        Level::Should,
        "No secret is written to logs, messages or answers",
    ),
    Rule::untested(
        "OPS-13",
        Level::Should,
        "What is configured wrongly fails at once, with an exit code",
        "about how the program is started and what it writes, which no call shows; `capcmi driver serve` has tests of its own for it",
    ),
];
