//! The work queue of a controller: watches and wakers send it the keys of objects.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::scheduler::ScheduleRequest;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::reconcile::caches::NamespacedName;

/// The objects to reconcile. Keys that arrive before the controller starts are dropped: most controllers
/// start with a backlog of all objects. The controllers of taints and of volume drains have no backlog. Their
/// objects are enqueued when they start.
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
    #[allow(clippy::needless_pass_by_value)] // a reference is made to be sent
    pub(super) fn enqueue(&self, object: ObjectRef<K>) {
        self.enqueue_key(NamespacedName::from(&object));
    }

    pub(super) fn enqueue_key(&self, key: NamespacedName) {
        if let Some(sender) = self.sender.get() {
            let run_at = Instant::now();
            // A stopped controller needs no keys.
            let _ = sender.send(ScheduleRequest { message: key, run_at });
        }
    }

    /// Connects the queue to a controller, which receives all later keys.
    pub(super) fn connect(&self, sender: &UnboundedSender<ScheduleRequest<NamespacedName>>) {
        // Set once, because the controllers start once.
        let _ = self.sender.set(sender.clone());
    }

    /// Receives all later keys.
    #[cfg(test)]
    pub(super) fn receive(&self) -> tokio::sync::mpsc::UnboundedReceiver<ScheduleRequest<NamespacedName>> {
        let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
        self.connect(&sender);
        requests
    }
}
