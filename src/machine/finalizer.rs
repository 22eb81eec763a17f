//! The finalizer, which keeps an object for as long as this provider may have a VM for it. Pure.

use crate::api::MACHINE_FINALIZER;
use crate::api::identity::VmRecord;
use crate::api::v1alpha1::InfraMachine;

/// Whether a machine that may have a VM has lost its finalizer: after a restore from a backup, or when the
/// object was replaced. If it were deleted like this, the object would go and the VM stay.
pub fn has_lost_finalizer(machine: &InfraMachine, record: &VmRecord) -> bool {
    record.state.may_exist() && !has_finalizer(machine)
}

/// Whether the finalizer of this provider holds the object when it is deleted.
pub fn has_finalizer(machine: &InfraMachine) -> bool {
    let all = machine.metadata.finalizers.as_deref().unwrap_or_default();
    all.iter().any(|name| name == MACHINE_FINALIZER)
}
