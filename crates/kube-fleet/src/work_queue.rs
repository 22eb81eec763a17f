//! The work queue of a controller: watches and wakers send it the keys of objects.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::scheduler::ScheduleRequest;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::NamespacedName;

/// The longest delay of a requeue. The clock can't count a longer one on every platform.
const MAX_DELAY: Duration = Duration::from_hours(24 * 365);

/// The objects to reconcile. Clones share the queue.
///
/// Keys that arrive before the controller exists are dropped. A controller starts with a backlog of all
/// objects, or its objects are enqueued when it starts.
pub struct WorkQueue<K> {
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
    pub fn enqueue(&self, object: ObjectRef<K>) {
        self.enqueue_key(NamespacedName::from(&object));
    }

    /// Enqueues the object of this key.
    pub fn enqueue_key(&self, key: NamespacedName) {
        self.enqueue_after(key, Duration::ZERO);
    }

    /// Enqueues the object of this key after a delay, unless it is enqueued earlier.
    pub fn enqueue_after(&self, key: NamespacedName, delay: Duration) {
        if let Some(sender) = self.sender.get() {
            let run_at = Instant::now() + delay.min(MAX_DELAY);
            // A stopped controller needs no keys.
            let _ = sender.send(ScheduleRequest { message: key, run_at });
        }
    }

    /// Receives all later keys, each with its due time. Only the first receiver gets keys, because a queue
    /// has one controller.
    pub fn receive(&self) -> UnboundedReceiver<ScheduleRequest<NamespacedName>> {
        let (sender, requests) = unbounded_channel();
        let _ = self.sender.set(sender);
        requests
    }
}
