//! This provider's own rules: post-create initialization and updates, the migration of machine classes, the
//! identity tag `capcmi.io/machine`, and the rest of the extension.
//!
//! A row is here if the published specification does not require it, or if it needs a call that only the
//! extension has. A plugin that keeps only the published rows is `cmi.v1: yes`.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Provider:
    "INI-01"     Said   "GetMachineStatus is read-only";
    "INI-11"     Said / Must "InitializeMachine works, or is UNIMPLEMENTED";
    "INI-12"     Said   "A failed initialization can be code 17";
    "INI-18"     Should / Must "GetMachineStatus of an uninitialized VM is code 17, and names the VM";
    "INI-21"     Said / Must "Each failed initialization step is code 17";
    "INI-22"     Said / Must "InitializeMachine is idempotent";
    "INI-23"     Said / Must "GetMachineStatus compares the VM with the result of initialization";
    "UPD-02"     Said / Must "UpdateMachine works, or is UNIMPLEMENTED";
    "UPD-03"     Said / Must "UpdateMachine brings the VM from any partial state to the requested spec";
    "DRV-47"     Should "GenerateMachineClassForMigration is recommended"
                        untested "a recommendation; the report shows if the call is offered";
    "DRV-48"     Must   "A driver without migration is UNIMPLEMENTED";
    "DRV-49"     Must   "Migrating a valid class is OK";
    "DRV-50"     Said   "Migration only fills the given class";
    "DRV-51"     Must   "Migration is idempotent";
    "DRV-52"     Must   "Migration reports errors with a readable message";
    "DRV-MG-00"  Said   "Migration answers OK on success";
    "DRV-MG-12"  Said   "Migration answers UNIMPLEMENTED if and only if not offered";
    "DRV-MG-13"  Said   "Migration answers INTERNAL if the class cannot be converted";
    "CAP-01"     Must   "CreateMachine is ALREADY_EXISTS if the VM of this name has another machine tag \
                        (`capcmi.io/machine`)";
    "CAP-02"     Must   "DeleteMachine ignores VMs with another machine tag";
    "CAP-03"     Must   "GetMachineStatus ignores VMs with another machine tag";
    "CAP-04"     Must   "A list with tags returns those that the VM was created with";
    "CAP-05"     Must   "Exactly the declared extension calls are served";
    "CAP-06"     Must   "ListMachinesPaged: no page exceeds the requested size, and together they contain \
                        each VM once";
    "CAP-07"     Must   "The published schema accepts the specs that CreateMachine accepts";
    "CAP-08"     Must   "ListZones returns unique names, and the answer is stable";
    "CAP-09"     Must   "A machine can request a failure domain of ListZones";
    "CAP-10"     Must   "DescribeClass returns quantities and values that Cluster API knows";
    "CAP-11"     Must   "Repeating a call after a lost response succeeds";
    "CAP-12"     Must   "A VM that vanished is NOT_FOUND, and deleting it is OK";
    "CAP-13"     Must   "GetMachineStatus changes nothing at the back end";
    "CAP-14"     Must   "RestartMachine restarts the VM, even a stopped one, and can be repeated";
    "CAP-15"     Must   "A restarted VM keeps its ID, node name and tags";
    "CAP-16"     Must   "RestartMachine of an unknown machine is NOT_FOUND and creates nothing";
    "CAP-17"     Must   "RestartMachine ignores VMs of other clusters and with another machine tag";
    "CAP-18"     Must   "UpdateMachine adds the machine tag to a VM without one, if `hot_updatable` names it";
    "CAP-19"     Must   "A call without the machine tag finds the VM by name, cluster and ID, even if the \
                        VM got the tag";
    "CAP-20"     Must   "UpdateMachine ignores VMs with another machine tag";
    "CAP-21"     Must   "GetMachine, InitializeMachine, UpdateMachine, RestartMachine and GetConsole \
                        validate all fields first";
    "CAP-22"     Must   "Extension answers can be parsed and name the right VM";
    "CAP-23"     Must   "UpdateMachine applies and reverts each change";
    "CAP-27"     Must   "CreateMachine adopts a VM that differs only in `hot_updatable` fields";
    "CAP-28"     Must   "ListZones and DescribeClass reject null and values of the wrong type, or treat \
                        them as unset";
    "CAP-29"     Must   "CreateMachine returns the existing VM even if its bootstrap data was renewed";
    "CAP-30"     Must   "DeleteMachine finds the VM by name, cluster and tag, regardless of the rest of \
                        the spec";
    "CAP-31"     Must   "DeleteMachine deletes all VMs of the machine";
    "CAP-32"     Must   "Machines of both roles are created, `node` and `control-plane`";
    "CAP-33"     Must   "UpdateMachine keeps settings that neither the new nor the last spec names";
    "CAP-34"     Must   "Probe answers while the maximum number of other calls is running";
    "CAP-35"     Must   "GetConsole changes nothing at the back end";
    "CAP-36"     Must   "GetConsole shows only the console of the machine's own VM";
    "CAP-37"     Must   "A list that declares `list_has_state` shows addresses and power states as \
                        GetMachineStatus does";
    "CAP-38"     Must   "The last segment of a provider ID, after the last `/`, identifies the VM: the \
                        cluster autoscaler knows a machine by it";
    "CAP-39"     Should "A VM is created in a failure domain with room, unless the machine names one; a \
                        named failure domain without room is RESOURCE_EXHAUSTED";
};
