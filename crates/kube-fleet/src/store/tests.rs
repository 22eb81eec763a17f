use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::*;
use crate::fixtures::config_map;

static STORE: OnceLock<Store<Secret>> = OnceLock::new();
static PACKED: AtomicUsize = AtomicUsize::new(0);

impl Stored for Secret {
    type Facts = ();

    fn facts(&self) {}

    /// Counts the calls during which the store is not locked.
    fn pack(&self) -> Option<Vec<u8>> {
        let store = STORE.get().unwrap();
        if store.shared.objects.try_write().is_some() {
            PACKED.fetch_add(1, Ordering::Relaxed);
        }
        serde_json::to_vec(self).ok()
    }

    fn unpack(text: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(text)
    }
}

fn object(number: usize) -> Secret {
    let mut object = Secret::default();
    object.metadata.name = Some(format!("o-{number}"));
    object.metadata.namespace = Some("ns".to_owned());
    object
}

/// Packing takes long compared with the other operations. Reconciles would wait for it.
#[test]
fn a_store_can_be_used_while_objects_are_packed() {
    let (store, mut writer) = store();
    assert!(STORE.set(store.clone()).is_ok());
    writer.begin_list();
    (0..MAX_UNPACKED).for_each(|number| writer.listed(object(number)));
    assert_eq!(PACKED.load(Ordering::Relaxed), MAX_UNPACKED, "objects of a list");
    drop(writer.end_list());

    // The unchanged objects of the list are packed already.
    let changed = MAX_UNPACKED..2 * MAX_UNPACKED + 3;
    for number in changed.clone() {
        writer.apply(Arc::new(object(number)));
    }
    let packed = || PACKED.load(Ordering::Relaxed);
    assert_eq!(packed(), MAX_UNPACKED + 3, "objects of a watch");
    assert!(store.get(&ObjectRef::from_obj(&object(0))).is_some());
    assert_eq!(packed(), MAX_UNPACKED + 4, "objects that are read");
    for number in 0..changed.end {
        let read = store.get(&ObjectRef::from_obj(&object(number))).unwrap();
        assert_eq!(read.name_any(), format!("o-{number}"));
    }
}

/// Far more objects than the store keeps unpacked.
#[test]
fn objects_at_rest_are_packed_and_read_as_written() {
    let (store, mut writer) = store();
    let all = 2 * MAX_UNPACKED;
    for number in 0..all {
        writer.apply(Arc::new(config_map(&format!("o-{number}"), "u", number)));
    }
    let is_packed = |entry: &Entry<_>| matches!(entry.form, Form::Packed(_));
    assert_eq!(store.select(is_packed).len(), all - MAX_UNPACKED);
    for number in 0..all {
        let written = config_map(&format!("o-{number}"), "u", number);
        let read = store.get(&ObjectRef::from_obj(&written)).unwrap();
        assert_eq!(*read, written);
    }
    assert_eq!(
        store.select(is_packed).len(),
        all - MAX_UNPACKED,
        "after all were read"
    );
}

#[test]
fn similar_objects_share_their_facts() {
    let (store, mut writer) = store();
    for number in 0..10 {
        writer.apply(Arc::new(config_map(&format!("o-{number}"), "u", number % 2)));
    }
    let facts = store.scan(|all| all.map(|entry| Arc::as_ptr(&entry.facts)).collect::<HashSet<_>>());
    assert_eq!(facts.len(), 2);
    assert_eq!(store.select(|entry| *entry.facts() == 1).len(), 5);
}

/// Users may create and delete many objects, each with facts of its own.
#[test]
fn facts_of_deleted_objects_are_swept() {
    let (store, mut writer) = store();
    writer.apply(Arc::new(config_map("kept", "u", 0)));
    for version in 1..5 * FACTS {
        let object = config_map("replaced", "u", version);
        writer.apply(Arc::new(object));
        let facts = store.read().facts.len();
        // Two of the facts are in use.
        assert!(facts <= FACTS + 8, "{facts} after {version}");
    }
    assert!(store.read().facts.contains(&0));
}

#[tokio::test]
async fn a_store_is_ready_after_its_first_list() {
    let (store, mut writer) = store();
    let mut ready = std::pin::pin!(store.wait_until_ready());
    for event in [Event::Init, Event::InitApply(config_map("a", "u", 1))] {
        writer.apply_watcher_event(&event);
        assert!(futures::poll!(ready.as_mut()).is_pending());
    }
    writer.apply_watcher_event(&Event::InitDone);
    ready.await.unwrap();

    let (never, writer) = super::store::<ConfigMap>();
    drop(writer);
    assert!(never.wait_until_ready().await.is_err());
}
