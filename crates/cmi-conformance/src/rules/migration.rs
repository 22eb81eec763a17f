//! Migration of machine classes, of the driver contract: a call that only the extension has.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Provider:
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
};
