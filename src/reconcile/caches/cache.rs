//! A cache of one kind. To keep it small, objects at rest are packed. The facts that scans read are kept
//! beside them and shared. A list does not copy the objects that the cache already has: it only marks them.

use std::collections::hash_map::Values;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
#[cfg(test)]
use kube::runtime::watcher::Event;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

use super::namespaced_name::NamespacedName;
use super::packed::{Dictionaries, Packed};
use crate::api::ObjectMetaExt as _;

/// How many of the most recently used objects of a kind stay unpacked. A reconcile reads its own object more
/// than once. Objects that can't be packed do not count.
const MAX_UNPACKED: usize = 512;
/// Unused facts are swept when there are more than twice as many facts as after the last sweep, plus this
/// many.
const FACTS: usize = 1024;

/// A kind that is cached.
pub trait Cached: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// The facts that scans of a whole fleet read without unpacking objects. Similar objects share them.
    type Facts: Eq + Hash + Debug + Send + Sync + 'static;

    /// Returns the facts for scans.
    fn facts(&self) -> Self::Facts;

    /// Returns an id that distinguishes this object from others with the same facts. Scans find the object by
    /// it.
    fn external_id(&self) -> Option<&str> {
        None
    }

    /// Returns the text of the object at rest. `None` keeps the object unpacked, for example where the text
    /// would not restore it exactly: a reader must see the object that the API server has.
    fn pack(&self) -> Option<Vec<u8>> {
        None
    }

    /// Returns the same number for objects with similar texts, which share a dictionary.
    fn dictionary_group(&self) -> u64 {
        0
    }

    /// Restores an object from its packed text.
    ///
    /// # Errors
    /// The text does not describe an object of this kind.
    fn unpack(_text: &[u8]) -> serde_json::Result<Self> {
        Err(serde::de::Error::custom("objects of this kind are not packed"))
    }
}

/// An object of a cache, as it was when it was taken out. Cloning an entry does not copy the object.
#[derive(Debug)]
pub struct Entry<K: Cached> {
    key: NamespacedName,
    uid: u64,
    version: u64,
    external_id: Option<u64>,
    facts: Arc<K::Facts>,
    form: Form<K>,
    /// The last list that contained the object.
    last_list: u32,
}

impl<K: Cached> Clone for Entry<K> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            facts: Arc::clone(&self.facts),
            form: self.form.clone(),
            ..*self
        }
    }
}

#[derive(Debug)]
enum Form<K> {
    Unpacked(Arc<K>),
    Packed(Packed),
    /// The object was packed, and has been read since.
    Both(Arc<K>, Packed),
}

impl<K> Clone for Form<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Unpacked(object) => Self::Unpacked(Arc::clone(object)),
            Self::Packed(packed) => Self::Packed(packed.clone()),
            Self::Both(object, packed) => Self::Both(Arc::clone(object), packed.clone()),
        }
    }
}

impl<K: Cached> Entry<K> {
    /// Namespace and name.
    pub fn key(&self) -> &NamespacedName {
        &self.key
    }

    /// The facts for scans.
    pub fn facts(&self) -> &K::Facts {
        &self.facts
    }

    /// A number that stands for the UID. Equal numbers mean equal UIDs while the process runs. With a hundred
    /// thousand UIDs, the chance of a collision is one in four thousand million.
    pub fn uid(&self) -> u64 {
        self.uid
    }

    /// A number that stands for the resource version, in the same way.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A number that stands for the external id, in the same way.
    pub fn external_id(&self) -> Option<u64> {
        self.external_id
    }

    /// Returns the object; a new copy where it is packed.
    pub fn object(&self) -> Option<Arc<K>> {
        match &self.form {
            Form::Unpacked(object) | Form::Both(object, _) => Some(Arc::clone(object)),
            Form::Packed(packed) => unpack(&self.key, packed),
        }
    }
}

fn unpack<K: Cached>(key: &NamespacedName, packed: &Packed) -> Option<Arc<K>> {
    let text = packed.text().map_err(|error| error.to_string());
    match text.and_then(|text| K::unpack(&text).map_err(|error| error.to_string())) {
        Ok(object) => Some(Arc::new(object)),
        Err(error) => {
            // The text was readable when it was packed, so this is a defect. The object counts as not seen.
            tracing::error!(kind = %K::kind(&()), object = ?key, error, "cannot unpack a cached object");
            None
        }
    }
}

/// A read handle to the cache of one kind. Clones share the cache.
pub struct Cache<K: Cached> {
    shared: Arc<Shared<K>>,
    filled: watch::Receiver<bool>,
}

struct Shared<K: Cached> {
    hashes: RandomState,
    objects: RwLock<Objects<K>>,
    /// Never locked together with the objects: many readers need those while an object is packed.
    dictionaries: Mutex<Dictionaries>,
}

struct Objects<K: Cached> {
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

/// The cache's writer has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the watch ended before the cache was filled")]
pub struct WriterDropped;

impl<K: Cached> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            filled: self.filled.clone(),
        }
    }
}

impl<K: Cached> Cache<K> {
    /// Waits until the cache is filled for the first time.
    ///
    /// # Errors
    /// Its writer has ended.
    pub async fn wait_until_synced(&self) -> Result<(), WriterDropped> {
        let mut filled = self.filled.clone();
        filled
            .wait_for(|filled| *filled)
            .await
            .map(drop)
            .map_err(|_| WriterDropped)
    }

    /// Returns the object of this name, if it exists.
    pub fn get(&self, reference: &ObjectRef<K>) -> Option<Arc<K>> {
        self.of_key(&reference.into())
    }

    /// Returns the current version of the same object, if it exists. An object with the same name but another
    /// UID does not count.
    pub fn current(&self, meta: &ObjectMeta) -> Option<Arc<K>> {
        let reference = ObjectRef::new(meta.name()).within(meta.namespace());
        self.get(&reference).filter(|found| found.meta().uid == meta.uid)
    }

    /// Returns the object of this key, if it exists.
    pub fn of_key(&self, key: &NamespacedName) -> Option<Arc<K>> {
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
            && (entry.uid, entry.version) == version
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

    /// Packs evicted objects without locking the cache, and stores those without a newer version.
    fn pack(&self, evicted: Vec<Evicted<K>>) {
        for Evicted { key, version, object } in evicted {
            let Some(packed) = self.packed(&*object) else {
                continue;
            };
            if let Some(entry) = self.write().all.get_mut(&key)
                && (entry.uid, entry.version) == version
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
    /// `is_wanted` must not read this cache: the writer may be waiting for the lock.
    pub fn select(&self, is_wanted: impl Fn(&Entry<K>) -> bool) -> Vec<Entry<K>> {
        let objects = self.read();
        objects
            .all
            .values()
            .filter(|entry| is_wanted(entry))
            .cloned()
            .collect()
    }

    /// Passes all entries to `look`, without cloning them. `look` must not read this cache, as in
    /// [`Self::select`].
    pub fn scan<T>(&self, look: impl FnOnce(Values<'_, NamespacedName, Entry<K>>) -> T) -> T {
        look(self.read().all.values())
    }

    /// Passes one entry to `look` without cloning it, if it exists. `look` must not read this cache either.
    pub fn look_at<T>(&self, reference: &ObjectRef<K>, look: impl FnOnce(&Entry<K>) -> T) -> Option<T> {
        self.read().all.get(&NamespacedName::from(reference)).map(look)
    }

    /// Returns the entry of this key, if it exists. This does not count as a read of the object.
    pub fn entry(&self, key: &NamespacedName) -> Option<Entry<K>> {
        self.read().all.get(key).cloned()
    }

    /// Whether the cache still has the object in the version of this entry.
    pub fn is_current(&self, entry: &Entry<K>) -> bool {
        let objects = self.read();
        let now = objects.all.get(&entry.key);
        now.is_some_and(|now| (now.uid, now.version) == (entry.uid, entry.version))
    }

    /// Returns the number that stands for a text in this cache's entries.
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

impl<K: Cached> Objects<K> {
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

/// The only writer of a cache.
pub struct Writer<K: Cached> {
    cache: Cache<K>,
    filled: watch::Sender<bool>,
    /// The objects of the running list that the cache lacks or has in another version.
    listed: HashMap<NamespacedName, Entry<K>>,
    last_list: u32,
}

/// A difference that a list has shown for a name. Small, because filling a cache yields one for each object.
#[derive(Debug)]
pub enum Difference<K: Cached> {
    /// The object was deleted; its last entry.
    Removed(Box<Entry<K>>),
    /// The object is new or changed. The cache has it.
    Present {
        /// The previous entry, if there was one.
        before: Option<Box<Entry<K>>>,
        /// Its name.
        key: NamespacedName,
    },
}

impl<K: Cached> Default for Writer<K> {
    fn default() -> Self {
        let (filled, is_filled) = watch::channel(false);
        let cache = Cache {
            shared: Arc::new(Shared {
                hashes: RandomState::new(),
                objects: RwLock::new(Objects {
                    all: HashMap::new(),
                    unpacked: VecDeque::new(),
                    facts: HashSet::new(),
                    facts_after_sweep: 0,
                }),
                dictionaries: Mutex::default(),
            }),
            filled: is_filled,
        };
        Self {
            cache,
            filled,
            listed: HashMap::new(),
            last_list: 0,
        }
    }
}

impl<K: Cached> Writer<K> {
    /// A read handle to this cache.
    pub fn as_reader(&self) -> Cache<K> {
        self.cache.clone()
    }

    fn entry(&self, object: Arc<K>) -> Entry<K> {
        let meta = object.meta();
        let facts = object.facts();
        Entry {
            key: NamespacedName::of(object.meta()),
            uid: self.cache.number(meta.uid()),
            version: self
                .cache
                .number(meta.resource_version.as_deref().unwrap_or_default()),
            external_id: object.external_id().map(|id| self.cache.number(id)),
            facts: self.cache.write().shared_facts(facts),
            form: Form::Unpacked(object),
            last_list: self.last_list,
        }
    }

    /// Stores a new or changed object, and returns the previous version, if any.
    pub fn apply(&mut self, object: Arc<K>) -> Option<Arc<K>> {
        let entry = self.entry(object);
        let key = entry.key.clone();
        let mut objects = self.cache.write();
        let before = objects.all.insert(key.clone(), entry);
        objects.unpacked.push_back(key);
        let evicted = objects.evict_least_recent();
        drop(objects);
        self.cache.pack(evicted);
        before.as_ref().and_then(Entry::object)
    }

    /// Removes a deleted object, and returns the cached version, if any.
    pub fn delete(&mut self, object: &K) -> Option<Arc<K>> {
        let before = self.cache.write().all.remove(&NamespacedName::of(object.meta()));
        before.as_ref().and_then(Entry::object)
    }

    /// Begins a list, and discards the objects of an interrupted list.
    pub fn begin_list(&mut self) {
        self.listed = HashMap::new();
        self.last_list = self.last_list.wrapping_add(1);
    }

    /// Adds an object of the list. The cache keeps its previous content until the list is complete.
    pub fn listed(&mut self, object: K) {
        let mut entry = self.entry(Arc::new(object));
        if let Some(known) = self.cache.write().all.get_mut(&entry.key)
            && (known.uid, known.version) == (entry.uid, entry.version)
        {
            known.last_list = self.last_list;
            return;
        }
        if let Form::Unpacked(object) = &entry.form
            && let Some(packed) = self.cache.packed(&**object)
        {
            entry.form = Form::Packed(packed);
        }
        self.listed.insert(entry.key.clone(), entry);
    }

    /// Completes the list, which becomes the content of the cache. Returns the differences from the previous
    /// content, deletions first.
    pub fn end_list(&mut self) -> Vec<Difference<K>> {
        let mut objects = self.cache.write();
        let round = self.last_list;
        let listed = std::mem::take(&mut self.listed);
        let is_gone =
            |key: &NamespacedName, entry: &Entry<K>| entry.last_list != round && !listed.contains_key(key);
        let gone = objects.all.extract_if(|key, entry| is_gone(key, entry));
        let mut differences: Vec<_> = gone
            .map(|(_, entry)| Difference::Removed(Box::new(entry)))
            .collect();
        let mut found = Vec::with_capacity(listed.len());
        if objects.all.is_empty() {
            let there = |key: &NamespacedName| Difference::Present {
                before: None,
                key: key.clone(),
            };
            found.extend(listed.keys().map(there));
            objects.all = listed;
        } else {
            for (key, entry) in listed {
                let uid = entry.uid;
                let before = objects.all.insert(key.clone(), entry);
                // An object with the same name but another UID is a different object.
                let (other, before) = match before {
                    Some(before) if before.uid != uid => (Some(before), None),
                    before => (None, before.map(Box::new)),
                };
                differences.extend(other.map(|entry| Difference::Removed(Box::new(entry))));
                found.push(Difference::Present { before, key });
            }
        }
        drop(objects);
        differences.append(&mut found);
        differences
    }

    /// Marks the cache as synced, which resumes the tasks that wait for that. Call it when all objects of the
    /// first list were delivered to all followers of the cache.
    pub fn set_synced(&self) {
        self.filled.send_replace(true);
    }

    /// Applies an event of a watch.
    #[cfg(test)]
    pub fn apply_watcher_event(&mut self, event: &Event<K>) {
        match event {
            Event::Init => self.begin_list(),
            Event::InitApply(object) => self.listed(object.clone()),
            Event::InitDone => {
                drop(self.end_list());
                self.set_synced();
            }
            Event::Apply(object) => drop(self.apply(Arc::new(object.clone()))),
            Event::Delete(object) => drop(self.delete(object)),
        }
    }
}

/// Returns a cache and its writer.
pub fn cache<K: Cached>() -> (Cache<K>, Writer<K>) {
    let writer = Writer::default();
    (writer.as_reader(), writer)
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt as _;

    use super::*;

    static CACHE: OnceLock<Cache<ConfigMap>> = OnceLock::new();
    static PACKED: AtomicUsize = AtomicUsize::new(0);

    impl Cached for ConfigMap {
        type Facts = ();

        fn facts(&self) {}

        /// Counts the calls during which the cache is not locked.
        fn pack(&self) -> Option<Vec<u8>> {
            let cache = CACHE.get().unwrap();
            if cache.shared.objects.try_write().is_some() {
                PACKED.fetch_add(1, Ordering::Relaxed);
            }
            serde_json::to_vec(self).ok()
        }

        fn unpack(text: &[u8]) -> serde_json::Result<Self> {
            serde_json::from_slice(text)
        }
    }

    fn object(number: usize) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(format!("o-{number}"));
        object.metadata.namespace = Some("ns".to_owned());
        object
    }

    /// Packing takes long compared with the other operations. Reconciles would wait for it.
    #[test]
    fn a_cache_can_be_read_and_written_while_objects_are_packed() {
        let (cache, mut writer) = cache();
        assert!(CACHE.set(cache.clone()).is_ok());
        writer.begin_list();
        (0..MAX_UNPACKED).for_each(|number| writer.listed(object(number)));
        assert_eq!(PACKED.load(Ordering::Relaxed), MAX_UNPACKED, "what a list shows");
        drop(writer.end_list());

        // The unchanged objects of the list are packed already.
        let changed = MAX_UNPACKED..2 * MAX_UNPACKED + 3;
        for number in changed.clone() {
            writer.apply(Arc::new(object(number)));
        }
        assert_eq!(
            PACKED.load(Ordering::Relaxed),
            MAX_UNPACKED + 3,
            "what a watch shows"
        );
        assert!(cache.get(&ObjectRef::from_obj(&object(0))).is_some());
        assert_eq!(PACKED.load(Ordering::Relaxed), MAX_UNPACKED + 4, "what is read");
        for number in 0..changed.end {
            let read = cache.get(&ObjectRef::from_obj(&object(number))).unwrap();
            assert_eq!(read.name_any(), format!("o-{number}"));
        }
    }
}
