//! Post-create initialization, and updates: calls that only the extension has.

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
};
