//! This provider's own rules: post-create initialization and updates, the migration of machine classes, the
//! identity tag `capcmi.io/machine`, and the rest of the extension.
//!
//! A row is here if the published specification does not ask for it, or if it needs a call that only the
//! extension has. A plugin that keeps every published row and knows nothing of these is `cmi.v1: yes`.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Provider:
    "INI-01"     Said   "GetMachineStatus only reads";
    "INI-11"     Said / Must "InitializeMachine works, or is UNIMPLEMENTED";
    "INI-12"     Said   "An initialization that fails may answer code 17";
    "INI-18"     Should / Must "GetMachineStatus answers code 17, with the VM, while it is not initialized";
    "INI-21"     Said / Must "Every step of the initialization that fails answers code 17";
    "INI-22"     Said / Must "InitializeMachine can be repeated";
    "INI-23"     Said / Must "GetMachineStatus compares the VM with what initialization should have \
                        made of it";
    "UPD-02"     Said / Must "UpdateMachine works, or is UNIMPLEMENTED";
    "UPD-03"     Said / Must "UpdateMachine brings the VM from any half-done state to the spec that is given";
    "DRV-47"     Should "GenerateMachineClassForMigration is recommended"
                        untested "a recommendation: the report shows whether the call is offered";
    "DRV-48"     Must   "A driver without migration answers UNIMPLEMENTED";
    "DRV-49"     Must   "A class that can be migrated is OK";
    "DRV-50"     Said   "Migration fills the class that is given, and does no more";
    "DRV-51"     Must   "Migration can be repeated";
    "DRV-52"     Must   "An error of the migration says in words what is wrong";
    "DRV-MG-00"  Said   "Migration answers OK when it is done";
    "DRV-MG-12"  Said   "Migration answers UNIMPLEMENTED when, and only when, it is not offered";
    "DRV-MG-13"  Said   "Migration answers INTERNAL when the class can't be converted";
    "CAP-01"     Must   "CreateMachine answers ALREADY_EXISTS when the VM of this name has another tag \
                        `capcmi.io/machine`";
    "CAP-02"     Must   "DeleteMachine touches no VM with another tag `capcmi.io/machine`";
    "CAP-03"     Must   "GetMachineStatus sees no VM with another tag `capcmi.io/machine`";
    "CAP-04"     Must   "A list that tells whose a VM is tells the tags that the VM was made with";
    "CAP-05"     Must   "Every call of the extension that is declared is served, and no other";
    "CAP-06"     Must   "ListMachinesPaged: no page is longer than asked for, and all pages together hold \
                        every VM once";
    "CAP-07"     Must   "The published schema takes the specs that CreateMachine takes";
    "CAP-08"     Must   "ListZones names each failure domain once, and the same each time";
    "CAP-09"     Must   "A failure domain of ListZones can be asked for";
    "CAP-10"     Must   "DescribeClass answers quantities, and what Cluster API knows";
    "CAP-11"     Must   "A call whose answer was lost is found done when it is repeated";
    "CAP-12"     Must   "A VM that is gone without the driver is NOT_FOUND, and its deletion is OK";
    "CAP-13"     Must   "GetMachineStatus changes nothing at the back end";
    "CAP-14"     Must   "RestartMachine restarts the VM, one that is off too, and may be repeated";
    "CAP-15"     Must   "A VM that was restarted is the same: its id, its Node's name, its tags";
    "CAP-16"     Must   "RestartMachine of what is not there is NOT_FOUND, and makes nothing";
    "CAP-17"     Must   "RestartMachine touches no VM of another cluster or with another tag \
                        `capcmi.io/machine`";
    "CAP-18"     Must   "UpdateMachine gives a VM without the tag `capcmi.io/machine` the one that is asked \
                        for, where `hot_updatable` names it";
    "CAP-19"     Must   "A call without the tag means the VM of the name, cluster and id that it gives, also \
                        when that has got the tag";
    "CAP-20"     Must   "UpdateMachine touches no VM with another tag `capcmi.io/machine`";
    "CAP-21"     Must   "GetMachine, InitializeMachine, UpdateMachine and RestartMachine check every field \
                        of their requests first";
    "CAP-22"     Must   "What calls of the extension answer can be read, and names the VM that is meant";
    "CAP-23"     Must   "UpdateMachine writes what is asked for, and takes it back";
    "CAP-24"     Must   "An id that is named before there is a VM is the one that CreateMachine gives it, \
                        where `names_provider_ids` is declared";
    "CAP-25"     Must   "The id that is named for a machine is the same as long as the configuration stays, \
                        over restarts as well";
    "CAP-26"     Must   "No two machines are named the same id: not those of another name, another cluster \
                        or another tag `capcmi.io/machine`";
    "CAP-27"     Must   "CreateMachine adopts a VM that differs from the request in what `hot_updatable` \
                        names alone";
    "CAP-28"     Must   "ListZones and DescribeClass refuse a null or a value of another type, or take it \
                        for no value";
    "CAP-29"     Must   "CreateMachine gives the VM that is there also when its bootstrap data was renewed";
    "CAP-30"     Must   "DeleteMachine finds the VM by name, cluster and tag, whatever else the spec says";
    "CAP-31"     Must   "DeleteMachine deletes every VM of the machine";
    "CAP-32"     Must   "Machines of both roles are made, `node` and `control-plane`";
    "CAP-33"     Must   "UpdateMachine leaves alone what neither the new spec nor the last one names";
    "CAP-34"     Must   "Probe answers while the driver runs as many other calls as this provider makes at a \
                        time";
};
