//! What is read of the objects of a cache, kept for as long as they are as they were.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::cache::{Cached, Entry};
use super::yield_periodically;

/// What was read of each object: of a fleet at rest no object is unpacked again.
#[derive(Debug)]
pub struct ByVersion<T> {
    /// By UID, with the version that it was read of; none where there was nothing to read.
    known: HashMap<u64, (u64, Option<Arc<T>>)>,
}

impl<T> Default for ByVersion<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
        }
    }
}

impl<T: Eq + Hash> ByVersion<T> {
    /// Hands each of these objects to `each`, with what `read` finds in it. Only those are read that have
    /// changed since the last time, or were not there; the others that were there are forgotten. Objects that
    /// are alike share what was read.
    pub async fn update<K: Cached, E: Borrow<Entry<K>>>(
        &mut self,
        entries: impl IntoIterator<Item = E>,
        read: impl Fn(&Entry<K>) -> Option<T>,
        mut each: impl FnMut(E, &Arc<T>),
    ) {
        let mut shared: HashSet<Arc<T>> = HashSet::new();
        let mut known = HashMap::with_capacity(self.known.len());
        for (index, entry) in entries.into_iter().enumerate() {
            yield_periodically(index).await;
            let (uid, version) = (entry.borrow().uid(), entry.borrow().version());
            let found = match self.known.remove(&uid) {
                Some((read_version, found)) if read_version == version => found,
                _ => read(entry.borrow()).map(Arc::new),
            };
            let found = found.map(|found| {
                if let Some(alike) = shared.get(&found) {
                    return Arc::clone(alike);
                }
                shared.insert(Arc::clone(&found));
                found
            });
            if let Some(found) = &found {
                each(entry, found);
            }
            known.insert(uid, (version, found));
        }
        self.known = known;
    }
}
