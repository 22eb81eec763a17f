//! The finalizer, which keeps an object while this provider may have a VM for it. Pure.

use crate::api::MACHINE_FINALIZER;
use crate::api::identity::VmRecord;
use crate::api::v1alpha1::InfraMachine;

/// Returns whether a machine that may have a VM has lost its finalizer. This happens after a restore from a
/// backup, or when the object was replaced. Deleting such an object would leave the VM behind.
pub fn has_lost_finalizer(machine: &InfraMachine, record: &VmRecord) -> bool {
    record.state.may_exist() && !has_finalizer(machine)
}

/// Returns whether the object has this provider's finalizer.
pub fn has_finalizer(machine: &InfraMachine) -> bool {
    let all = machine.metadata.finalizers.as_deref().unwrap_or_default();
    all.iter().any(|name| name == MACHINE_FINALIZER)
}
