//! The writer of a store.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::RandomState;
use std::sync::Arc;

use kube::runtime::watcher::Event;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::entry::{Entry, Form};
use super::{Objects, Shared, Store};
use crate::{NamespacedName, Stored};

/// The only writer of a store.
pub struct Writer<K: Stored> {
    store: Store<K>,
    is_ready: watch::Sender<bool>,
    /// The objects of the running list that the store lacks or has in another version.
    listed: HashMap<NamespacedName, Entry<K>>,
    last_list: u32,
}

/// A difference that a list has shown for a name. Small, because filling a store yields one for each object.
#[derive(Debug)]
pub(crate) enum Difference<K: Stored> {
    /// The object was deleted; its last entry.
    Removed(Box<Entry<K>>),
    /// The object is new or changed. The store has it.
    Present {
        /// The previous entry, if there was one.
        before: Option<Box<Entry<K>>>,
        /// Its name.
        key: NamespacedName,
    },
}

/// Returns a store and its writer.
pub fn store<K: Stored>() -> (Store<K>, Writer<K>) {
    let writer = Writer::default();
    (writer.as_reader(), writer)
}

impl<K: Stored> Default for Writer<K> {
    fn default() -> Self {
        let (sender, is_ready) = watch::channel(false);
        let store = Store {
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
            is_ready,
        };
        Self {
            store,
            is_ready: sender,
            listed: HashMap::new(),
            last_list: 0,
        }
    }
}

impl<K: Stored> Writer<K> {
    /// A read handle to this store.
    pub fn as_reader(&self) -> Store<K> {
        self.store.clone()
    }

    /// Applies an event without reporting its changes. A complete list makes the store ready.
    pub fn apply_watcher_event(&mut self, event: &Event<K>) {
        match event {
            Event::Init => self.begin_list(),
            Event::InitApply(object) => self.listed(object.clone()),
            Event::InitDone => {
                drop(self.end_list());
                self.set_ready();
            }
            Event::Apply(object) => drop(self.apply(Arc::new(object.clone()))),
            Event::Delete(object) => drop(self.delete(object)),
        }
    }

    fn entry(&self, object: Arc<K>) -> Entry<K> {
        let number = |text: Option<&str>| self.store.number(text.unwrap_or_default());
        let meta = object.meta();
        let facts = object.facts();
        Entry {
            key: NamespacedName::of(meta),
            uid: number(meta.uid.as_deref()),
            version: number(meta.resource_version.as_deref()),
            external_id: object.external_id().map(|id| number(Some(id))),
            facts: self.store.write().shared_facts(facts),
            form: Form::Unpacked(object),
            last_list: self.last_list,
        }
    }

    /// Stores a new or changed object, and returns the previous version, if any.
    pub fn apply(&mut self, object: Arc<K>) -> Option<Arc<K>> {
        let entry = self.entry(object);
        let key = entry.key.clone();
        let mut objects = self.store.write();
        let before = objects.all.insert(key.clone(), entry);
        objects.unpacked.push_back(key);
        let evicted = objects.evict_least_recent();
        drop(objects);
        self.store.pack(evicted);
        before.as_ref().and_then(Entry::object)
    }

    /// Removes a deleted object, and returns the stored version, if any.
    pub fn delete(&mut self, object: &K) -> Option<Arc<K>> {
        let before = self.store.write().all.remove(&NamespacedName::of(object.meta()));
        before.as_ref().and_then(Entry::object)
    }

    /// Begins a list, and discards the objects of an interrupted list.
    pub(crate) fn begin_list(&mut self) {
        self.listed = HashMap::new();
        self.last_list = self.last_list.wrapping_add(1);
    }

    /// Adds an object of the list. The store keeps its previous content until the list is complete.
    pub(crate) fn listed(&mut self, object: K) {
        let mut entry = self.entry(Arc::new(object));
        if let Some(known) = self.store.write().all.get_mut(&entry.key)
            && known.is_version((entry.uid, entry.version))
        {
            known.last_list = self.last_list;
            return;
        }
        if let Form::Unpacked(object) = &entry.form
            && let Some(packed) = self.store.packed(&**object)
        {
            entry.form = Form::Packed(packed);
        }
        self.listed.insert(entry.key.clone(), entry);
    }

    /// Completes the list, which becomes the content of the store. Returns the differences from the previous
    /// content, deletions first.
    pub(crate) fn end_list(&mut self) -> Vec<Difference<K>> {
        let mut objects = self.store.write();
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

    /// Resumes the tasks that wait for the store. Called when all objects of the first list were reported.
    pub(crate) fn set_ready(&self) {
        self.is_ready.send_replace(true);
    }
}
