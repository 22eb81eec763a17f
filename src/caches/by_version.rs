//! What is read of the objects of a cache, kept for as long as they are as they were.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::cache::{Cached, Entry};
use super::yield_periodically;

/// What was read of each object: of a fleet at rest no object is unpacked again.
#[derive(Debug)]
pub struct ByVersion<P, T> {
    /// What it was read with: with anything else, all is read anew.
    parameter: Option<P>,
    /// By UID, with the version that it was read of; none where there was nothing to read.
    known: HashMap<u64, (u64, Option<Arc<T>>)>,
}

impl<P, T> Default for ByVersion<P, T> {
    fn default() -> Self {
        Self {
            parameter: None,
            known: HashMap::new(),
        }
    }
}

impl<P: Clone + PartialEq, T: Eq + Hash> ByVersion<P, T> {
    /// Hands each of these objects to `each`, with what `read` finds in it by this parameter. Only those are
    /// read that have changed since the last time, or were not there; the others that were there are
    /// forgotten. Objects that are alike share what was read.
    pub async fn update<K: Cached, E: Borrow<Entry<K>>>(
        &mut self,
        parameter: &P,
        entries: impl IntoIterator<Item = E>,
        read: impl Fn(&Entry<K>) -> Option<T>,
        mut each: impl FnMut(E, &Arc<T>),
    ) {
        if self.parameter.as_ref() != Some(parameter) {
            self.parameter = Some(parameter.clone());
            self.known.clear();
        }
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
