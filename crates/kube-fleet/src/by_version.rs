//! Values that are read from a store's objects, kept while the objects do not change.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use tokio::task::coop::consume_budget;

use crate::{Entry, Stored};

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
    pub async fn update<K: Stored, E: Borrow<Entry<K>>>(
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
        for entry in entries {
            consume_budget().await;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::fixtures::config_map;
    use crate::store;

    #[tokio::test]
    async fn only_changed_objects_are_read_again() {
        let (store, mut writer) = store();
        let mut apply = |name: &str, version| writer.apply(Arc::new(config_map(name, name, version)));
        let mut by_version = ByVersion::default();
        let mut versions = async |parameter: &str| {
            let (reads, mut found) = (Cell::new(0), Vec::new());
            let read = |entry: &Entry<_>| {
                reads.set(reads.get() + 1);
                (entry.key().name() != "none").then(|| *entry.facts())
            };
            let each = |_, version: &Arc<usize>| found.push(**version);
            let entries = store.select(|_| true);
            by_version
                .update(&parameter.to_owned(), entries, read, each)
                .await;
            found.sort_unstable();
            (reads.get(), found)
        };
        for name in ["a", "b", "none"] {
            apply(name, 1);
        }
        assert_eq!(versions("p").await, (3, vec![1, 1]));
        assert_eq!(versions("p").await, (0, vec![1, 1]));
        apply("b", 2);
        assert_eq!(versions("p").await, (1, vec![1, 2]));
        assert_eq!(versions("q").await, (3, vec![1, 2]), "another parameter");
    }
    /// With one thread, the renewal of a lease would wait for the whole fleet.
    #[tokio::test]
    async fn other_tasks_run_while_many_objects_are_read() {
        let (store, mut writer) = store();
        for number in 0..600 {
            writer.apply(Arc::new(config_map(
                &format!("o-{number}"),
                &number.to_string(),
                1,
            )));
        }
        let (mut by_version, found) = (ByVersion::default(), Cell::new(0));
        let read = |entry: &Entry<_>| Some(*entry.facts());
        let each = |_, _: &Arc<usize>| found.set(found.get() + 1);
        let update = by_version.update(&(), store.select(|_| true), read, each);
        let mut update = std::pin::pin!(update);
        assert!(futures::poll!(update.as_mut()).is_pending());
        update.await;
        assert_eq!(found.get(), 600);
    }
}
