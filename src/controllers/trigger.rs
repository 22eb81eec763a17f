//! Notifies the controller of a kind which objects have to be reconciled.

use std::sync::{Arc, OnceLock};

use futures::Stream;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

/// Objects that have to be reconciled. What is sent before there is a controller is dropped:
/// it starts with everything.
#[derive(Clone)]
pub(super) struct Trigger<K: Resource + 'static>(Arc<OnceLock<mpsc::UnboundedSender<ObjectRef<K>>>>);

impl<K: Resource + 'static> Default for Trigger<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Trigger<K> {
    /// Has an object reconciled.
    pub(super) fn send(&self, object: ObjectRef<K>) {
        if let Some(sender) = self.0.get() {
            // A controller that has stopped needs nothing.
            let _ = sender.send(object);
        }
    }

    /// What is sent from now on.
    pub(super) fn receive(&self) -> impl Stream<Item = ObjectRef<K>> + use<K> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        // Set once: the controllers are started once.
        let _ = self.0.set(sender);
        futures::stream::poll_fn(move |context| receiver.poll_recv(context))
    }
}
