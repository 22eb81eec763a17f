//! Values that are read from a cache's objects, kept while the objects do not change.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::cache::{Cached, Entry};
use super::yield_periodically;

/// The value that was read from each object. In a fleet at rest, no object is unpacked again.
#[derive(Debug)]
pub struct ByVersion<P, T> {
    /// The parameter of the reads. When it changes, all values are read again.
    parameter: Option<P>,
    /// By UID, the version of the object and its value; `None` where it had no value.
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
    /// Passes each of these objects to `each`, with the value that `read` finds in it for this parameter.
    /// Only new and changed objects are read, and deleted objects are forgotten. Similar objects share the
    /// value.
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
