//! Watches that update a cache, and then report the changes.

use std::borrow::Cow;
use std::sync::Arc;

use futures::StreamExt as _;
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use super::watch_list::watch_list;
use super::work_queue::WorkQueue;
use crate::api::cluster_api::Machine;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations, bounded, fingerprint, labels};
use crate::apiserver::{OutageLog, outage_log};
use crate::reconcile::caches::{Cache, Cached, Difference, Writer};

/// A change of an object.
#[derive(Clone, Debug)]
pub(super) enum Change<K> {
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
    pub(super) fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Deleted(object) | Self::Updated { now: object, .. } => object,
        }
    }

    /// The object, unless it was deleted.
    pub(super) fn current(&self) -> Option<&Arc<K>> {
        match self {
            Self::Added(object) | Self::Updated { now: object, .. } => Some(object),
            Self::Deleted(_) => None,
        }
    }

    /// Whether the change passes a predicate. As in kube, the predicate is a fingerprint of the relevant
    /// fields, and the change passes if it differs. Additions and deletions pass every predicate.
    pub(super) fn passes(&self, predicate: impl Fn(&K) -> u64) -> bool {
        match self {
            Self::Added(_) | Self::Deleted(_) => true,
            Self::Updated { before, now } => predicate(before) != predicate(now),
        }
    }
}

/// A batch of changes that the cache has applied.
#[derive(Debug)]
pub(super) struct CacheUpdate<K> {
    /// The changes, one for each object.
    pub changes: Vec<Change<K>>,
    /// Whether the changes come from a list, not from a watch. A broken watch starts again with a list.
    pub listed: bool,
    /// Whether this is the last update of that list: the cache holds the whole list, and all changes were
    /// reported.
    pub complete: bool,
}

/// The most changes of a list in one batch, because their objects are unpacked for it.
const BATCH: usize = 256;

/// Updates a cache.
///
/// # Guarantees
/// * The cache is updated before a change is reported, so an enqueued reconcile finds the object. For a list,
///   this happens when the list is complete: the cache keeps the earlier objects until then.
/// * A list is compared with the cache. Objects that changed or were deleted while no watch ran are reported
///   as if a watch had run, also after incomplete lists. An unchanged object is not reported.
pub(super) struct CacheWriter<K: Cached> {
    writer: Writer<K>,
}

impl<K: Cached> CacheWriter<K> {
    pub(super) fn new(writer: Writer<K>) -> Self {
        Self { writer }
    }

    /// Allows reconciles to begin. Must not be called before all changes of the first list were reported:
    /// reconciles rely on derived state, such as the index of providerIDs.
    fn set_synced(&self) {
        self.writer.set_synced();
    }

    /// Applies an event to the cache, and returns the resulting changes, if any.
    pub(super) fn take(&mut self, event: Event<K>) -> impl Iterator<Item = CacheUpdate<K>> + use<K> {
        let (changes, differences) = match event {
            Event::Init => {
                self.writer.begin_list();
                (None, None)
            }
            Event::InitApply(object) => {
                self.writer.listed(object);
                (None, None)
            }
            Event::InitDone => (None, Some(self.writer.end_list())),
            Event::Apply(object) => {
                let now = Arc::new(object);
                let before = self.writer.apply(Arc::clone(&now));
                (Some(changes(before, Some(now))), None)
            }
            Event::Delete(object) => (Some(changes(self.writer.delete(&object), None)), None),
        };
        let watched = changes.map(|changes| CacheUpdate {
            changes,
            listed: false,
            complete: false,
        });
        let cache = self.writer.as_reader();
        let listed = differences
            .into_iter()
            .flat_map(move |all| updates(cache.clone(), all));
        watched.into_iter().chain(listed)
    }
}

/// Returns the changes of a list, a batch at a time. The cache already has the list, and is not written in
/// the meantime.
fn updates<K: Cached>(
    cache: Cache<K>,
    differences: Vec<Difference<K>>,
) -> impl Iterator<Item = CacheUpdate<K>> {
    let mut left = differences.into_iter();
    let mut is_done = false;
    std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let found = left.by_ref().take(BATCH).flat_map(|difference| match difference {
            Difference::Removed(before) => changes(before.object(), None),
            Difference::Present { before, key } => {
                let now = cache.entry(&key);
                changes(
                    before.and_then(|before| before.object()),
                    now.and_then(|now| now.object()),
                )
            }
        });
        let changes = found.collect();
        is_done = left.len() == 0;
        Some(CacheUpdate {
            changes,
            listed: true,
            complete: is_done,
        })
    })
}

/// Returns the changes of the object with one name. An object with the same name but another UID is a new
/// object.
fn changes<K: Resource>(before: Option<Arc<K>>, now: Option<Arc<K>>) -> Vec<Change<K>> {
    match (before, now) {
        (Some(before), Some(now)) if before.meta().uid() == now.meta().uid() => {
            vec![Change::Updated { before, now }]
        }
        (before, now) => before
            .map(Change::Deleted)
            .into_iter()
            .chain(now.map(Change::Added))
            .collect(),
    }
}

/// Enqueues an object when anything but its status changed. Only the provider writes the status.
pub(super) fn enqueue_object<K>(queue: WorkQueue<K>) -> impl Fn(&CacheUpdate<K>) + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    enqueue_object_unless(queue, |_, value| Some(Cow::Borrowed(value)))
}

/// Returns the part of the value of an annotation, by its key, whose change enqueues the object.
type Relevant = for<'a> fn(&str, &'a str) -> Option<Cow<'a, str>>;

/// Enqueues as [`enqueue_object`] does, if the provider also writes some annotations.
pub(super) fn enqueue_object_unless<K>(
    queue: WorkQueue<K>,
    relevant: Relevant,
) -> impl Fn(&CacheUpdate<K>) + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let wanted = move |object: &K| {
        let annotations = object.meta().annotations.iter().flatten();
        let of_others: Vec<_> = annotations
            .filter_map(|(key, value)| Some((key, relevant(key, value)?)))
            .collect();
        fingerprint((without_annotations(object), of_others))
    };
    move |update| {
        for change in &update.changes {
            if let Some(object) = change.current()
                && change.passes(wanted)
            {
                queue.enqueue(ObjectRef::from_obj(&**object));
            }
        }
    }
}

/// A fingerprint of all but the status and the annotations.
fn without_annotations<K: Resource>(object: &K) -> u64 {
    let meta = object.meta();
    let owners: Vec<_> = meta
        .owner_references
        .iter()
        .flatten()
        .map(|o| (&o.uid, o.controller))
        .collect();
    let deleting = meta.deletion_timestamp.is_some();
    fingerprint((meta.generation, &meta.labels, &meta.finalizers, owners, deleting))
}

/// Removes unused fields of an object before it is cached, managed fields first, and bounds the rest.
pub(super) fn slim<K: Resource>(object: &mut K) {
    bounded::bound(object.meta_mut());
}

/// Shrinks an InfraMachine before it is cached. The JSON parser leaves spare capacity in every list: a fifth
/// of the object.
pub(super) fn slim_infra_machine(object: &mut DeserializeGuard<InfraMachine>) {
    slim(object);
    let Ok(machine) = &mut object.0 else { return };
    if let Some(status) = &mut machine.status {
        status.conditions.shrink_to_fit();
        status.addresses.shrink_to_fit();
    }
}

/// Removes unused fields of a Machine before it is cached. Of its labels only the control-plane label stays;
/// a map of one label costs half a KiB. Of its annotations only the provider's hook stays.
pub(super) fn slim_machine(machine: &mut Machine) {
    let meta = machine.meta_mut();
    let labels = meta.labels.take();
    let control_plane = labels.and_then(|mut all| all.remove_entry(labels::CONTROL_PLANE));
    meta.labels = control_plane.map(|entry| [entry].into());
    let annotations = meta.annotations.take();
    let hook = annotations.and_then(|mut all| all.remove_entry(annotations::VOLUME_DRAIN_HOOK));
    // Only the presence of the hook counts.
    meta.annotations = hook.map(|(key, _)| [(key, String::new())].into());
    meta.finalizers = None;
    meta.owner_references = None;
    meta.managed_fields = None;
}

/// Updates a cache for ever, and reports the changes.
pub(super) async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    writer: Writer<K>,
    slim: fn(&mut K),
    notify: impl Fn(&CacheUpdate<K>) + Send,
) where
    K: Cached + DeserializeOwned,
{
    let kind = K::kind(&());
    let mut cache_writer = CacheWriter::new(writer);
    let mut stream = std::pin::pin!(watch_list(api, config).modify(slim));
    let own = OutageLog::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                if is_answer(&event) {
                    if own.answered() {
                        tracing::info!(%kind, "watch restored");
                    }
                    outage_log::log_answered();
                }
                for update in cache_writer.take(event) {
                    notify(&update);
                    if update.complete {
                        cache_writer.set_synced();
                    }
                    if update.listed {
                        // The list of a whole fleet must not block other tasks.
                        tokio::task::yield_now().await;
                    }
                }
            }
            Err(error) if is_not_served(&error) => {
                let group = K::group(&());
                if let Some(unreported) = own.failed() {
                    tracing::error!(
                        %kind,
                        %group,
                        "the API server does not serve a kind: install its CRD, see docs/how-to/install.md; \
                            retrying{unreported}"
                    );
                }
            }
            Err(error) => {
                let is_unanswered = source(&error).is_some_and(outage_log::is_unanswered);
                let error = &error as &dyn std::error::Error;
                tracing::debug!(%kind, error, "watch failed; retrying");
                if is_unanswered {
                    outage_log::log_unanswered(error);
                } else if let Some(unreported) = own.failed() {
                    tracing::warn!(%kind, error, "watch failed; retrying{unreported}");
                }
            }
        }
    }
}

/// Whether the API server has answered. `Init` comes before the list is requested.
fn is_answer<K>(event: &watcher::Event<K>) -> bool {
    !matches!(event, watcher::Event::Init)
}

/// Whether the kind has no definition: the list of a served kind never answers 404.
fn is_not_served(error: &watcher::Error) -> bool {
    matches!(source(error), Some(kube::Error::Api(status)) if status.code == 404)
}

/// The error of the request; `None` if the API server reported the error within a watch.
fn source(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => Some(source),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use kube::ResourceExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::cluster_api::MachineSpec;
    use crate::reconcile::caches::cache;

    #[test]
    fn a_list_that_begins_ends_no_outage() {
        assert!(!is_answer::<Machine>(&watcher::Event::Init));
        assert!(is_answer::<Machine>(&watcher::Event::InitDone));
    }

    #[test]
    fn a_list_that_is_not_found_is_of_a_kind_without_a_definition() {
        let of = |code| {
            let status = kube::core::Status::failure("the server could not find it", "X").with_code(code);
            is_not_served(&watcher::Error::InitialListFailed(kube::Error::Api(
                status.boxed(),
            )))
        };
        assert!(of(404) && !of(403) && !of(500));
    }

    fn machine(name: &str, uid: &str, version: u32) -> Machine {
        let mut machine = Machine::new(name, MachineSpec::default());
        machine.metadata.namespace = Some("ns".to_owned());
        machine.metadata.uid = Some(uid.to_owned());
        machine.metadata.resource_version = Some(version.to_string());
        machine
    }

    fn cache_writer() -> (CacheWriter<Machine>, Cache<Machine>) {
        let (cache, writer) = cache();
        (CacheWriter::new(writer), cache)
    }

    /// The changes as text: `+` new, `~` newer, `-` gone, then name and version.
    fn shown(update: Option<CacheUpdate<Machine>>) -> Option<Vec<String>> {
        let mut all: Vec<_> = update?
            .changes
            .iter()
            .map(|change| {
                let sign = match change {
                    Change::Added(_) => '+',
                    Change::Updated { .. } => '~',
                    Change::Deleted(_) => '-',
                };
                let object = change.object();
                format!(
                    "{sign}{}@{}",
                    object.name_any(),
                    object.resource_version().unwrap()
                )
            })
            .collect();
        all.sort();
        Some(all)
    }

    fn notified(cache_writer: &mut CacheWriter<Machine>, event: &Event<Machine>) -> Option<Vec<String>> {
        let mut updates = cache_writer.take(event.clone());
        let update = updates.next();
        assert!(updates.next().is_none(), "a short list is one update");
        shown(update)
    }

    /// An object that is enqueued too early would be reconciled in its old version, and never again.
    #[test]
    fn a_list_is_reported_when_the_cache_has_it_and_not_before() {
        let (mut cache_writer, cache) = cache_writer();
        assert_eq!(
            notified(&mut cache_writer, &Event::Apply(machine("a", "u-a", 1))),
            Some(vec!["+a@1".to_owned()])
        );
        assert_eq!(notified(&mut cache_writer, &Event::Init), None);
        for listed in [machine("a", "u-a", 2), machine("b", "u-b", 3)] {
            assert_eq!(notified(&mut cache_writer, &Event::InitApply(listed)), None);
        }
        let held = cache.get(&ObjectRef::new("a").within("ns")).unwrap();
        assert_eq!(
            held.resource_version().as_deref(),
            Some("1"),
            "the cache is behind"
        );
        assert_eq!(
            notified(&mut cache_writer, &Event::InitDone),
            Some(vec!["+b@3".to_owned(), "~a@2".to_owned()])
        );
    }

    #[test]
    fn a_cached_infra_machine_has_no_room_for_what_does_not_come() {
        let mut object: DeserializeGuard<InfraMachine> = serde_json::from_value(json!({
            "metadata": {"name": "a", "finalizers": ["f"], "managedFields": [{"manager": "m"}],
            "ownerReferences": [
                {"apiVersion": "v", "kind": "k", "name": "n", "uid": "u"},
            ]},
            "spec": {"providerSpec": {}},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{
                    "type": "t", "status": "True", "reason": "r", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        }))
        .unwrap();
        slim_infra_machine(&mut object);
        let machine = object.0.unwrap();
        let status = machine.status.unwrap();
        let capacities = [
            machine.metadata.finalizers.unwrap().capacity(),
            machine.metadata.owner_references.unwrap().capacity(),
            status.addresses.capacity(),
            status.conditions.capacity(),
        ];
        assert_eq!(capacities, [1; 4]);
        assert!(machine.metadata.managed_fields.is_none());
    }

    #[test]
    fn changes_in_a_broken_list_are_reported_with_the_next_complete_one() {
        let (mut cache_writer, _cache) = cache_writer();
        notified(&mut cache_writer, &Event::Apply(machine("a", "u-a", 1)));
        notified(&mut cache_writer, &Event::Init);
        notified(&mut cache_writer, &Event::InitApply(machine("a", "u-a", 2)));
        notified(&mut cache_writer, &Event::Init);
        notified(&mut cache_writer, &Event::InitApply(machine("a", "u-a", 2)));
        assert_eq!(
            notified(&mut cache_writer, &Event::InitDone),
            Some(vec!["~a@2".to_owned()])
        );
    }

    #[test]
    fn what_went_away_or_was_replaced_while_no_watch_ran_is_reported_as_gone() {
        let (mut cache_writer, _cache) = cache_writer();
        for known in [
            machine("gone", "u-1", 1),
            machine("replaced", "u-2", 1),
            machine("stays", "u-3", 1),
        ] {
            notified(&mut cache_writer, &Event::Apply(known));
        }
        notified(&mut cache_writer, &Event::Init);
        notified(
            &mut cache_writer,
            &Event::InitApply(machine("replaced", "u-4", 5)),
        );
        notified(&mut cache_writer, &Event::InitApply(machine("stays", "u-3", 1)));
        let update = cache_writer.take(Event::InitDone).next().unwrap();
        assert!(update.listed && update.complete);
        assert!(
            update.changes[..2]
                .iter()
                .all(|change| change.current().is_none()),
            "what is gone is notified first"
        );
        let all = shown(Some(update)).unwrap();
        assert_eq!(all, ["+replaced@5", "-gone@1", "-replaced@1"]);
    }

    #[test]
    fn an_object_that_is_deleted_is_gone_and_one_that_comes_after_it_is_new() {
        let (mut cache_writer, _cache) = cache_writer();
        notified(&mut cache_writer, &Event::Apply(machine("a", "u-1", 1)));
        let gone = notified(&mut cache_writer, &Event::Delete(machine("a", "u-1", 2)));
        assert_eq!(gone, Some(vec!["-a@1".to_owned()]));
        notified(&mut cache_writer, &Event::Apply(machine("a", "u-1", 1)));
        let other = notified(&mut cache_writer, &Event::Apply(machine("a", "u-2", 3)));
        assert_eq!(other, Some(vec!["+a@3".to_owned(), "-a@1".to_owned()]));
    }

    #[tokio::test]
    async fn an_object_is_reconciled_for_all_that_changed_but_its_status() {
        let queue = WorkQueue::default();
        let mut sent = queue.receive();
        let notify = enqueue_object(queue);
        let before = Arc::new(machine("a", "u-a", 1));
        let mut newer = |change: &dyn Fn(&mut Machine)| {
            let mut now = machine("a", "u-a", 2);
            change(&mut now);
            let change = Change::Updated {
                before: Arc::clone(&before),
                now: Arc::new(now),
            };
            notify(&CacheUpdate {
                changes: vec![change],
                listed: false,
                complete: false,
            });
            sent.try_recv().is_ok()
        };
        assert!(!newer(&|_| {}));
        assert!(!newer(
            &|now| now.status = Some(crate::api::cluster_api::MachineStatus::default())
        ));
        assert!(newer(&|now| now.metadata.generation = Some(2)));
        assert!(newer(
            &|now| now.metadata.finalizers = Some(vec!["slow".to_owned()])
        ));
    }

    /// An API server that streams no lists. Its answers: two machines; a watch that has expired; a list that
    /// breaks off after its first page; the complete list, with one machine changed, one deleted and one new;
    /// a watch without events.
    #[derive(Default)]
    struct ApiServer {
        watches: u32,
        second_pages: u32,
    }

    impl ApiServer {
        fn answer(&mut self, query: &str) -> Option<(u16, Value)> {
            let page = |version: &str, next: Option<&str>, items: &[Machine]| {
                let metadata = json!({"resourceVersion": version, "continue": next});
                let items: Vec<_> = items
                    .iter()
                    .map(|item| serde_json::to_value(item).unwrap())
                    .collect();
                Some((200, json!({"kind": "List", "metadata": metadata, "items": items})))
            };
            let failure = |code: u16| {
                json!({
                    "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "no",
                    "metadata": {}, "details": null,
                })
            };
            if query.contains("sendInitialEvents=true") {
                return Some((422, failure(422)));
            }
            let is_watch = query.contains("watch=true");
            let is_second_page = query.contains("continue=next");
            self.watches += u32::from(is_watch);
            self.second_pages += u32::from(is_second_page);
            match (is_watch, is_second_page, self.watches, self.second_pages) {
                (true, _, 1, _) => Some((200, json!({"type": "ERROR", "object": failure(410)}))),
                (true, ..) => None,
                (false, true, _, 1) => Some((500, failure(500))),
                (false, true, ..) => page("20", None, &[machine("new", "u-3", 12)]),
                (false, false, 0, _) => {
                    page("10", None, &[machine("a", "u-1", 1), machine("gone", "u-2", 2)])
                }
                (false, false, ..) => page("20", Some("next"), &[machine("a", "u-1", 11)]),
            }
        }

        fn client(self) -> kube::Client {
            let this = Arc::new(Mutex::new(self));
            let service = tower::service_fn(move |request: http::Request<Body>| {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let answer = this.lock().unwrap().answer(&query);
                async move {
                    let Some((status, body)) = answer else {
                        return std::future::pending().await;
                    };
                    let body = Body::from(serde_json::to_vec(&body).unwrap());
                    Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap())
                }
            });
            kube::Client::new(service, "default")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_watch_reports_the_changes_of_the_next_complete_list() {
        let (cache, writer) = cache();
        let (send, mut notified) = tokio::sync::mpsc::unbounded_channel();
        let seen = cache.clone();
        let notify = move |update: &CacheUpdate<Machine>| {
            let is_there = |change: &Change<Machine>| {
                let held = seen.get(&ObjectRef::from_obj(&**change.object()));
                let version = |machine: &Machine| (machine.uid(), machine.resource_version());
                held.is_some_and(|held| version(&held) == version(change.object()))
                    == change.current().is_some()
            };
            assert!(
                update.changes.iter().all(is_there),
                "the cache is behind {update:?}"
            );
            send.send(shown(Some(CacheUpdate {
                changes: update.changes.clone(),
                listed: update.listed,
                complete: update.complete,
            })))
            .unwrap();
        };
        let api = Api::all(ApiServer::default().client());
        let watched = watch(api, watcher::Config::default(), writer, slim_machine, notify);
        let all = async {
            let first = notified.recv().await.unwrap().unwrap();
            assert_eq!(first, ["+a@1", "+gone@2"]);
            notified.recv().await.unwrap().unwrap()
        };
        tokio::select! {
            () = watched => panic!("a watch never ends"),
            later = all => assert_eq!(later, ["+new@12", "-gone@2", "~a@11"]),
        }
    }
}
