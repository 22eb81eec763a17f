//! The changes of an object.

use std::sync::Arc;

use kube::Resource;

/// A change of an object.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// The object is new.
    Added(Arc<K>),
    /// The object has a new version.
    Updated {
        /// The previous object.
        before: Arc<K>,
        /// The current object.
        now: Arc<K>,
    },
    /// The object was deleted. This is its last known state.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The current object, or the last known state of a deleted object.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Deleted(object) | Self::Updated { now: object, .. } => object,
        }
    }

    /// The object, unless it was deleted.
    pub fn current(&self) -> Option<&Arc<K>> {
        match self {
            Self::Added(object) | Self::Updated { now: object, .. } => Some(object),
            Self::Deleted(_) => None,
        }
    }

    /// Whether the change passes a predicate. As in kube, the predicate is a fingerprint of the relevant
    /// fields, and the change passes if it differs. Additions and deletions pass every predicate.
    pub fn passes(&self, predicate: impl Fn(&K) -> u64) -> bool {
        match self {
            Self::Added(_) | Self::Deleted(_) => true,
            Self::Updated { before, now } => predicate(before) != predicate(now),
        }
    }
}

/// Returns the changes of the object with one name. An object with the same name but another UID is a new
/// object.
pub(super) fn changes<K: Resource>(before: Option<Arc<K>>, now: Option<Arc<K>>) -> Vec<Change<K>> {
    match (before, now) {
        (Some(before), Some(now)) if before.meta().uid == now.meta().uid => {
            vec![Change::Updated { before, now }]
        }
        (before, now) => before
            .map(Change::Deleted)
            .into_iter()
            .chain(now.map(Change::Added))
            .collect(),
    }
}
