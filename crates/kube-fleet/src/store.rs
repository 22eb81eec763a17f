//! The store of one kind. To keep it small, objects at rest are packed. The facts that scans read are kept
//! beside them and shared. A list does not copy the objects that the store already has: it only marks them.

mod entry;
mod packed;
mod writer;

use std::collections::hash_map::Values;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use kube::core::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

use self::entry::{Form, unpack};
use self::packed::{Dictionaries, Packed};
use crate::{NamespacedName, Stored};

pub use self::entry::Entry;
pub(crate) use self::writer::Difference;
pub use self::writer::{Writer, store};

/// How many of the most recently used objects of a kind stay unpacked. A reconcile reads its own object more
/// than once. Objects that can't be packed do not count.
const MAX_UNPACKED: usize = 512;
/// Unused facts are swept when there are more than twice as many facts as after the last sweep, plus this
/// many.
const FACTS: usize = 1024;

/// A read handle to the objects of one kind. Clones share them.
pub struct Store<K: Stored> {
    shared: Arc<Shared<K>>,
    is_ready: watch::Receiver<bool>,
}

struct Shared<K: Stored> {
    hashes: RandomState,
    objects: RwLock<Objects<K>>,
    /// Never locked together with the objects: many readers need those while an object is packed.
    dictionaries: Mutex<Dictionaries>,
}

struct Objects<K: Stored> {
    all: HashMap<NamespacedName, Entry<K>>,
    /// The keys of the unpacked objects, the least recently used first.
    unpacked: VecDeque<NamespacedName>,
    facts: HashSet<Arc<K::Facts>>,
    facts_after_sweep: usize,
}

struct Evicted<K> {
    key: NamespacedName,
    version: (u64, u64),
    object: Arc<K>,
}

/// The store's writer has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the watch ended before the store was filled")]
pub struct WriterDropped;

impl<K: Stored> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            is_ready: self.is_ready.clone(),
        }
    }
}

impl<K: Stored> Store<K> {
    /// Waits until the store is filled for the first time, and the changes of that list were handled.
    ///
    /// # Errors
    /// Its writer has ended.
    pub async fn wait_until_ready(&self) -> Result<(), WriterDropped> {
        let mut is_ready = self.is_ready.clone();
        is_ready
            .wait_for(|is_ready| *is_ready)
            .await
            .map(drop)
            .map_err(|_| WriterDropped)
    }

    /// Returns the object of this name, if it exists.
    pub fn get(&self, reference: &ObjectRef<K>) -> Option<Arc<K>> {
        self.get_key(&reference.into())
    }

    /// Returns the current version of the same object, if it exists. An object with the same name but another
    /// UID does not count.
    pub fn current(&self, meta: &ObjectMeta) -> Option<Arc<K>> {
        self.get_key(&NamespacedName::of(meta))
            .filter(|found| found.meta().uid == meta.uid)
    }

    /// Returns the object of this key, if it exists.
    pub fn get_key(&self, key: &NamespacedName) -> Option<Arc<K>> {
        let (version, packed) = {
            let objects = self.read();
            let entry = objects.all.get(key)?;
            match &entry.form {
                Form::Unpacked(object) | Form::Both(object, _) => return Some(Arc::clone(object)),
                Form::Packed(packed) => ((entry.uid, entry.version), packed.clone()),
            }
        };
        let object = unpack::<K>(key, &packed)?;
        let mut evicted = Vec::new();
        let mut objects = self.write();
        if let Some(entry) = objects.all.get_mut(key)
            && entry.is_version(version)
            && let Form::Packed(packed) = &entry.form
        {
            entry.form = Form::Both(Arc::clone(&object), packed.clone());
            let key = entry.key.clone();
            objects.unpacked.push_back(key);
            evicted = objects.evict_least_recent();
        }
        drop(objects);
        self.pack(evicted);
        Some(object)
    }

    /// Packs evicted objects without locking the store, and keeps those without a newer version.
    fn pack(&self, evicted: Vec<Evicted<K>>) {
        for Evicted { key, version, object } in evicted {
            let Some(packed) = self.packed(&*object) else {
                continue;
            };
            if let Some(entry) = self.write().all.get_mut(&key)
                && entry.is_version(version)
                && matches!(entry.form, Form::Unpacked(_))
            {
                entry.form = Form::Packed(packed);
            }
        }
    }

    fn packed(&self, object: &K) -> Option<Packed> {
        let (group, text) = (object.dictionary_group(), object.pack()?);
        Some(self.shared.dictionaries.lock().pack(group, &text))
    }

    /// Returns all objects, unpacked. Not for kinds with many objects.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.select(|_| true).iter().filter_map(Entry::object).collect()
    }

    /// Returns the entries that `is_wanted` accepts, without unpacking their objects.
    ///
    /// `is_wanted` must not read this store: the writer may be waiting for the lock.
    pub fn select(&self, is_wanted: impl Fn(&Entry<K>) -> bool) -> Vec<Entry<K>> {
        self.scan(|all| all.filter(|entry| is_wanted(entry)).cloned().collect())
    }

    /// Passes all entries to `look`, without cloning them. `look` must not read this store, as in
    /// [`Self::select`].
    pub fn scan<T>(&self, look: impl FnOnce(Values<'_, NamespacedName, Entry<K>>) -> T) -> T {
        look(self.read().all.values())
    }

    /// Passes one entry to `look` without cloning it, if it exists. `look` must not read this store either.
    pub fn look_at<T>(&self, reference: &ObjectRef<K>, look: impl FnOnce(&Entry<K>) -> T) -> Option<T> {
        self.read().all.get(&NamespacedName::from(reference)).map(look)
    }

    /// Returns the entry of this key, if it exists. This does not count as a read of the object.
    pub fn entry(&self, key: &NamespacedName) -> Option<Entry<K>> {
        self.read().all.get(key).cloned()
    }

    /// Whether the store still has the object in the version of this entry.
    pub fn is_current(&self, entry: &Entry<K>) -> bool {
        let objects = self.read();
        let now = objects.all.get(&entry.key);
        now.is_some_and(|now| now.is_version((entry.uid, entry.version)))
    }

    /// Returns the number that stands for a text in this store's entries.
    pub fn number(&self, text: &str) -> u64 {
        self.shared.hashes.hash_one(text)
    }

    fn read(&self) -> RwLockReadGuard<'_, Objects<K>> {
        self.shared.objects.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects<K>> {
        self.shared.objects.write()
    }
}

impl<K: Stored> Objects<K> {
    /// Evicts the least recently used objects until at most [`MAX_UNPACKED`] are unpacked. Returns the
    /// objects that have to be packed.
    #[must_use]
    fn evict_least_recent(&mut self) -> Vec<Evicted<K>> {
        let mut evicted = Vec::new();
        while self.unpacked.len() > MAX_UNPACKED {
            let Some(key) = self.unpacked.pop_front() else {
                break;
            };
            let Some(entry) = self.all.get_mut(&key) else {
                continue;
            };
            match &entry.form {
                Form::Packed(_) => {}
                Form::Both(_, packed) => entry.form = Form::Packed(packed.clone()),
                Form::Unpacked(object) => evicted.push(Evicted {
                    version: (entry.uid, entry.version),
                    object: Arc::clone(object),
                    key,
                }),
            }
        }
        evicted
    }

    fn shared_facts(&mut self, facts: K::Facts) -> Arc<K::Facts> {
        if let Some(known) = self.facts.get(&facts) {
            return Arc::clone(known);
        }
        if self.facts.len() > self.facts_after_sweep.saturating_mul(2) + FACTS {
            self.facts.retain(|facts| Arc::strong_count(facts) > 1);
            self.facts_after_sweep = self.facts.len();
        }
        let facts = Arc::new(facts);
        self.facts.insert(Arc::clone(&facts));
        facts
    }
}

#[cfg(test)]
mod tests;
