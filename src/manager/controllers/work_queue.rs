//! The work queue of a controller: watches and wakers send it the keys of objects.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::scheduler::ScheduleRequest;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::reconcile::caches::NamespacedName;

/// The objects that have to be reconciled. Keys that are sent before there is a controller are dropped: most
/// controllers start with a backlog of all objects. For the controllers of taints and of volume drains, which
/// have no backlog, the objects that need them are enqueued when they start.
pub(super) struct WorkQueue<K> {
    sender: Arc<OnceLock<UnboundedSender<ScheduleRequest<NamespacedName>>>>,
    of: PhantomData<fn(K)>,
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        Self {
            sender: Arc::default(),
            of: PhantomData,
        }
    }
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self {
            sender: Arc::clone(&self.sender),
            of: PhantomData,
        }
    }
}

impl<K: Resource<DynamicType = ()>> WorkQueue<K> {
    /// Enqueues an object.
    #[allow(clippy::needless_pass_by_value)] // a reference is made to be sent
    pub(super) fn enqueue(&self, object: ObjectRef<K>) {
        self.enqueue_key(NamespacedName::from(&object));
    }

    /// Enqueues the object of a key.
    pub(super) fn enqueue_key(&self, key: NamespacedName) {
        if let Some(sender) = self.sender.get() {
            let run_at = Instant::now();
            // A controller that has stopped needs nothing.
            let _ = sender.send(ScheduleRequest { message: key, run_at });
        }
    }

    /// Connects the queue to a controller, which gets the keys that are sent from now on.
    pub(super) fn connect(&self, sender: &UnboundedSender<ScheduleRequest<NamespacedName>>) {
        // Set once: the controllers are started once.
        let _ = self.sender.set(sender.clone());
    }

    /// What is sent from now on.
    #[cfg(test)]
    pub(super) fn receive(&self) -> tokio::sync::mpsc::UnboundedReceiver<ScheduleRequest<NamespacedName>> {
        let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
        self.connect(&sender);
        requests
    }
}
