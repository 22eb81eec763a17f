//! The permit for a call that makes no VM, and the waker of its object.

use std::sync::Arc;

use kube::api::ObjectMeta;
use kube_fleet::NamespacedName;

use crate::api::ObjectMetaExt as _;
use crate::driver::{ConfiguredDriver, Permit, Priority, Waker};

/// Enqueues the object of this name.
pub type Enqueue = Arc<dyn Fn(NamespacedName) + Send + Sync>;

/// Returns a waker that enqueues the object with this metadata. Small, because a fleet that waits for its
/// driver has one for each machine.
pub fn waker(enqueue: &Enqueue, object: &ObjectMeta) -> Waker {
    let (enqueue, name) = (Arc::clone(enqueue), NamespacedName::of(object));
    Waker::new(move || enqueue(name))
}

/// Acquires a permit for a call that makes no VM. Without a free permit, the object is enqueued again when
/// one is free.
pub fn upkeep_permit<'a>(
    driver: &'a ConfiguredDriver,
    enqueue: &Enqueue,
    object: &ObjectMeta,
) -> Option<Permit<'a>> {
    driver.try_acquire(
        Priority::Upkeep,
        object.uid(),
        object.namespace(),
        waker(enqueue, object),
    )
}
