//! This provider's own rules: post-create initialization and updates, the migration of machine classes, the
//! identity tag `capcmi.io/machine`, and the rest of the extension.
//!
//! A row is here if the published specification does not require it, or if it needs a call that only the
//! extension has. A plugin that keeps only the published rows is `cmi.v1: yes`.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Provider:
    "INI-01"     Said   "GetMachineStatus changes nothing at the back end";
    "INI-11"     Said / Must "InitializeMachine works, or is UNIMPLEMENTED";
    "INI-12"     Said   "A failed initialization is code 17";
    "INI-18"     Should / Must "An uninitialized VM is code 17 for GetMachineStatus, which checks the VM \
                        and names it";
    "INI-21"     Said / Must "A failed initialization is code 17";
    "INI-22"     Said / Must "InitializeMachine is idempotent";
    "INI-23"     Said / Must "An uninitialized VM is code 17 for GetMachineStatus, which checks the VM \
                        and names it";
    "UPD-02"     Said / Must "UpdateMachine works, or is UNIMPLEMENTED";
    "UPD-03"     Said / Must "UpdateMachine brings the VM from any partial state to the requested spec";
    "DRV-47"     Should "GenerateMachineClassForMigration is recommended"
                        untested "a recommendation; the report shows if the call is offered";
    "DRV-48"     Must   "Migration answers UNIMPLEMENTED if and only if not offered";
    "DRV-49"     Must   "Migrating a valid class is OK, and only fills that class";
    "DRV-50"     Said   "Migrating a valid class is OK, and only fills that class";
    "DRV-51"     Must   "Migration is idempotent";
    "DRV-52"     Must   "Migration of a class that cannot be converted is INTERNAL, with a readable \
                        message";
    "DRV-MG-00"  Said   "Migrating a valid class is OK, and only fills that class";
    "DRV-MG-12"  Said   "Migration answers UNIMPLEMENTED if and only if not offered";
    "DRV-MG-13"  Said   "Migration of a class that cannot be converted is INTERNAL, with a readable \
                        message";
    "CAP-01"     Must   "CreateMachine is ALREADY_EXISTS if the VM of this name has another tag \
                        `capcmi.io/machine`";
    "CAP-02"     Must   "DeleteMachine ignores VMs with another machine tag";
    "CAP-03"     Must   "GetMachineStatus ignores VMs with another machine tag";
    "CAP-04"     Must   "A list with tags returns those that the VM was created with";
    "CAP-05"     Must   "Exactly the declared extension calls are served";
    "CAP-06"     Must   "ListMachinesPaged: pages keep the requested size, and together have each VM once";
    "CAP-07"     Must   "The published schema accepts the specs that CreateMachine accepts";
    "CAP-08"     Must   "ListZones returns unique, stable names, and a machine can request one";
    "CAP-09"     Must   "ListZones returns unique, stable names, and a machine can request one";
    "CAP-10"     Must   "DescribeClass returns quantities and values that Cluster API knows";
    "CAP-11"     Must   "Repeating a call after a lost response succeeds";
    "CAP-12"     Must   "A VM that vanished is NOT_FOUND, and deleting it is OK";
    "CAP-13"     Must   "GetMachineStatus changes nothing at the back end";
    "CAP-14"     Must   "RestartMachine restarts the VM, even a stopped one, and can be repeated; the VM \
                        keeps ID, node name and tags";
    "CAP-15"     Must   "RestartMachine restarts the VM, even a stopped one, and can be repeated; the VM \
                        keeps ID, node name and tags";
    "CAP-16"     Must   "RestartMachine of an unknown machine is NOT_FOUND and creates nothing; VMs of \
                        other clusters or machine tags are ignored";
    "CAP-17"     Must   "RestartMachine of an unknown machine is NOT_FOUND and creates nothing; VMs of \
                        other clusters or machine tags are ignored";
    "CAP-18"     Must   "UpdateMachine adds the machine tag to a VM without one, if `hot_updatable` \
                        names it";
    "CAP-19"     Must   "A call without the machine tag finds the VM by name, cluster and ID, tagged or \
                        not";
    "CAP-20"     Must   "UpdateMachine ignores VMs with another machine tag";
    "CAP-21"     Must   "GetMachine, InitializeMachine, UpdateMachine, RestartMachine and GetConsole \
                        validate all fields first";
    "CAP-22"     Must   "Extension answers can be parsed and name the right VM";
    "CAP-23"     Must   "UpdateMachine applies and reverts each change, and keeps settings that neither \
                        spec names";
    "CAP-27"     Must   "CreateMachine adopts a VM that differs only in `hot_updatable` fields or \
                        bootstrap data";
    "CAP-28"     Must   "ListZones and DescribeClass reject null and wrong types, or treat them as unset";
    "CAP-29"     Must   "CreateMachine adopts a VM that differs only in `hot_updatable` fields or \
                        bootstrap data";
    "CAP-30"     Must   "DeleteMachine deletes all VMs with the machine's name, cluster and tag, \
                        whatever the rest of the spec";
    "CAP-31"     Must   "DeleteMachine deletes all VMs with the machine's name, cluster and tag, \
                        whatever the rest of the spec";
    "CAP-32"     Must   "Machines of both roles are created, `node` and `control-plane`";
    "CAP-33"     Must   "UpdateMachine applies and reverts each change, and keeps settings that neither \
                        spec names";
    "CAP-34"     Must   "Probe answers while the maximum number of other calls is running";
    "CAP-35"     Must   "GetConsole changes nothing at the back end";
    "CAP-36"     Must   "GetConsole shows only the console of the machine's own VM";
    "CAP-37"     Must   "A list that declares `list_has_state` has the addresses and power states of \
                        GetMachineStatus";
    "CAP-38"     Must   "The last segment of a provider ID, after the last `/`, identifies the VM";
    "CAP-39"     Should "A VM gets a failure domain with room; a requested domain without room is \
                        RESOURCE_EXHAUSTED";
    "CAP-40"     Must   "A VM has and shows its static addresses";
    "CAP-41"     Must   "A static address is free once its VM is deleted";
};
