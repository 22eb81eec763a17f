//! Post-create initialization, and updates.

use super::{Level, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule::proven("INI-01", Level::Said, "GetMachineStatus only reads"),
    Rule::proven(
        "INI-11",
        Level::Said,
        "InitializeMachine works, or is UNIMPLEMENTED",
    ),
    Rule::proven(
        "INI-12",
        Level::Said,
        "An initialization that fails may answer code 17",
    ),
    Rule::proven(
        "INI-18",
        Level::Should,
        "GetMachineStatus answers code 17, with the VM, while it is not initialized",
    ),
    Rule::proven(
        "INI-21",
        Level::Said,
        "Every step of the initialization that fails answers code 17",
    ),
    Rule::proven("INI-22", Level::Said, "InitializeMachine can be repeated"),
    Rule::proven(
        "INI-23",
        Level::Said,
        "GetMachineStatus compares the VM with what initialization should have made of it",
    ),
    Rule::proven("UPD-02", Level::Said, "UpdateMachine works, or is UNIMPLEMENTED"),
    Rule::proven(
        "UPD-03",
        Level::Said,
        "UpdateMachine brings the VM from any half-done state to the spec that is given",
    ),
];
