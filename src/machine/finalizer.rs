//! The finalizer, which keeps an object while this provider may have a VM for it. Pure.

use crate::api::MACHINE_FINALIZER;
use crate::api::v1alpha1::InfraMachine;

/// Returns whether the object has this provider's finalizer.
pub fn has_finalizer(machine: &InfraMachine) -> bool {
    let all = machine.metadata.finalizers.as_deref().unwrap_or_default();
    all.iter().any(|name| name == MACHINE_FINALIZER)
}
