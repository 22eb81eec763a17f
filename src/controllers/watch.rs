//! Watches: they keep a cache current and tell what changed of what is looked at.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use futures::StreamExt as _;
use kube::Resource;
use kube::api::Api;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_stream};
use serde::de::DeserializeOwned;

use super::trigger::Trigger;
use crate::api::cluster_api::Machine;
use crate::api::labels;

/// Triggers an object's own reconcile when anything but its status changed: the status is our own writing.
pub(super) fn on_own<K>(trigger: Trigger<K>) -> impl FnMut(&Event<K>) + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let mut changes = Changes::default();
    move |event| {
        let own = |object: &K| {
            let meta = object.meta();
            let owners: Vec<_> = meta
                .owner_references
                .iter()
                .flatten()
                .map(|o| (&o.uid, o.controller))
                .collect();
            let deleting = meta.deletion_timestamp.is_some();
            fingerprint((
                meta.generation,
                &meta.labels,
                &meta.annotations,
                &meta.finalizers,
                owners,
                deleting,
            ))
        };
        if let Some(object) = changes.changed(event, own) {
            trigger.send(ObjectRef::from_obj(object));
        }
    }
}

/// What was looked at of every object the last time.
#[derive(Default)]
pub(super) struct Changes(Noted<u64>);

impl Changes {
    /// The object of an event, if what is looked at changed.
    pub(super) fn changed<'a, K: Resource>(
        &mut self,
        event: &'a Event<K>,
        look: impl Fn(&K) -> u64,
    ) -> Option<&'a K> {
        let (object, now, before) = self.0.note(event, look)?;
        (before != Some(now)).then_some(object)
    }
}

/// A note on every object that exists, by UID.
///
/// # Guarantees
/// What went away is forgotten, also when nobody saw it go: a watch that broke off lists anew, and what such a list lacks is
/// gone.
pub(super) struct Noted<T> {
    notes: HashMap<String, (u64, T)>,
    lists: u64,
}

impl<T> Default for Noted<T> {
    fn default() -> Self {
        Self {
            notes: HashMap::new(),
            lists: 0,
        }
    }
}

impl<T: Copy> Noted<T> {
    /// The object of an event, the note on it, and the note before.
    pub(super) fn note<'a, K: Resource>(
        &mut self,
        event: &'a Event<K>,
        look: impl Fn(&K) -> T,
    ) -> Option<(&'a K, T, Option<T>)> {
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                let now = look(object);
                let uid = object.meta().uid.clone().unwrap_or_default();
                let before = self.notes.insert(uid, (self.lists, now));
                Some((object, now, before.map(|(_, note)| note)))
            }
            Event::Delete(object) => {
                self.notes
                    .remove(object.meta().uid.as_deref().unwrap_or_default());
                None
            }
            Event::Init => {
                self.lists += 1;
                None
            }
            Event::InitDone => {
                self.notes.retain(|_, (list, _)| *list == self.lists);
                None
            }
        }
    }
}

/// What is looked at, as a number.
pub(super) fn fingerprint(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Removes what nobody reads of an object before it is cached: managed fields are a third of it.
pub(super) fn without_managed_fields<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Removes what nobody reads of a Machine before it is cached. Of its labels, one says whether it is a control plane's;
/// a map of one label costs half a KiB.
pub(super) fn slim_machine(machine: &mut Machine) {
    let meta = machine.meta_mut();
    let labels = meta.labels.take();
    let control_plane = labels.and_then(|mut all| all.remove_entry(labels::CONTROL_PLANE));
    meta.labels = control_plane.map(|entry| [entry].into());
    meta.annotations = None;
    meta.finalizers = None;
    meta.owner_references = None;
    meta.managed_fields = None;
}

/// Keeps a cache current for ever, and tells of every event after the cache has it.
pub(super) async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    writer: reflector::store::Writer<K>,
    slim: fn(&mut K),
    mut tell: impl FnMut(&Event<K>) + Send,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let kind = K::kind(&());
    let stream = watch_stream(api, config)
        .modify(slim)
        .default_backoff()
        .reflect(writer);
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => tell(&event),
            Err(error) => {
                tracing::warn!(%kind, error = &error as &dyn std::error::Error, "watching failed; trying again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster_api::{Machine, MachineSpec};

    fn machine(uid: &str) -> Machine {
        let mut machine = Machine::new(uid, MachineSpec::default());
        machine.metadata.uid = Some(uid.to_owned());
        machine
    }

    #[test]
    fn an_object_that_went_away_while_nobody_watched_is_forgotten() {
        let mut changes = Changes::default();
        let mut tell = |event: &Event<Machine>| changes.changed(event, |_| 1).is_some();
        assert!(tell(&Event::Apply(machine("gone"))));
        assert!(tell(&Event::Apply(machine("stays"))));
        tell(&Event::Init);
        assert!(!tell(&Event::InitApply(machine("stays"))));
        tell(&Event::InitDone);
        assert_eq!(changes.0.notes.keys().collect::<Vec<_>>(), ["stays"]);
    }
}
