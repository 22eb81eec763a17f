use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Config;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{config_map, reference};
use crate::{store, watcher};

/// The changes as text: `+` new, `~` newer, `-` gone, then name and version.
fn shown(update: &Update<ConfigMap>) -> Vec<String> {
    let mut all: Vec<_> = update.changes.iter().map(sign).collect();
    all.sort();
    all
}

fn sign(change: &Change<ConfigMap>) -> String {
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
}

/// A reflector, and where its events come from.
struct Reflected {
    events: UnboundedSender<Event<ConfigMap>>,
    updates: BoxStream<'static, Result<Update<ConfigMap>, Error>>,
    store: Store<ConfigMap>,
}

impl Reflected {
    fn new() -> Self {
        let (store, writer) = store();
        let (sender, events) = unbounded();
        Self {
            events: sender,
            updates: reflector(writer, events.map(Ok)).boxed(),
            store,
        }
    }

    fn send(&self, events: impl IntoIterator<Item = Event<ConfigMap>>) {
        for event in events {
            self.events.unbounded_send(event).unwrap();
        }
    }

    async fn next(&mut self) -> Update<ConfigMap> {
        self.updates.next().await.unwrap().unwrap()
    }

    /// Sends the events, and returns the changes of each update that results.
    async fn updates(&mut self, events: impl IntoIterator<Item = Event<ConfigMap>>) -> Vec<Vec<String>> {
        self.send(events);
        let mut all = Vec::new();
        while let Poll::Ready(Some(update)) = futures::poll!(self.updates.next()) {
            all.push(shown(&update.unwrap()));
        }
        all
    }
}

fn applied(name: &str, uid: &str, version: usize) -> Event<ConfigMap> {
    Event::Apply(config_map(name, uid, version))
}

fn listed(name: &str, uid: &str, version: usize) -> Event<ConfigMap> {
    Event::InitApply(config_map(name, uid, version))
}

/// An object that is enqueued too early would be reconciled in its old version, and never again.
#[tokio::test]
async fn a_list_is_reported_once_the_store_has_it() {
    let mut reflected = Reflected::new();
    let store = reflected.store.clone();
    let version = || {
        store
            .get(&reference("a"))
            .and_then(|object| object.resource_version())
    };
    let first = reflected.updates([applied("a", "u-a", 1)]).await;
    assert_eq!(first, [["+a@1"]]);
    let begun = [Event::Init, listed("a", "u-a", 2), listed("b", "u-b", 3)];
    assert!(reflected.updates(begun).await.is_empty());
    assert_eq!(version().as_deref(), Some("1"), "the list is not complete");
    reflected.send([Event::InitDone]);
    let update = reflected.next().await;
    assert_eq!(
        (shown(&update), update.complete),
        (vec!["+b@3".to_owned(), "~a@2".to_owned()], true)
    );
    assert_eq!(version().as_deref(), Some("2"));
}

#[tokio::test]
async fn changes_of_an_interrupted_list_come_with_the_next_list() {
    let mut reflected = Reflected::new();
    let events = [
        applied("a", "u-a", 1),
        Event::Init,
        listed("a", "u-a", 2),
        Event::Init,
        listed("a", "u-a", 2),
        Event::InitDone,
    ];
    assert_eq!(reflected.updates(events).await, [["+a@1"], ["~a@2"]]);
}

#[tokio::test]
async fn a_list_reports_deleted_and_replaced_objects() {
    let mut reflected = Reflected::new();
    let known = ["gone", "replaced", "stays"].map(|name| applied(name, &format!("u-{name}"), 1));
    reflected.updates(known).await;
    let list = [
        Event::Init,
        listed("replaced", "u-4", 5),
        listed("stays", "u-stays", 1),
        Event::InitDone,
    ];
    reflected.send(list);
    let update = reflected.next().await;
    let deletions = &update.changes[..2];
    assert!(
        deletions.iter().all(|change| change.current().is_none()),
        "deletions come first"
    );
    assert_eq!(shown(&update), ["+replaced@5", "-gone@1", "-replaced@1"]);
}

#[tokio::test]
async fn a_deleted_object_is_gone_and_its_successor_is_new() {
    let mut reflected = Reflected::new();
    let deleted = Event::Delete(config_map("a", "u-1", 2));
    let events = [applied("a", "u-1", 1), deleted];
    assert_eq!(reflected.updates(events).await, [["+a@1"], ["-a@1"]]);
    assert!(reflected.store.get(&reference("a")).is_none());
    let replaced = [applied("a", "u-1", 1), applied("a", "u-2", 3)];
    assert_eq!(
        reflected.updates(replaced).await,
        [vec!["+a@1"], vec!["+a@3", "-a@1"]]
    );
}

/// Reconciles rely on state that is derived from the changes.
#[tokio::test]
async fn a_store_is_ready_when_its_first_list_was_handled() {
    let mut reflected = Reflected::new();
    let many = (0..=BATCH).map(|number| listed(&format!("o-{number}"), "u", number));
    reflected.send(std::iter::once(Event::Init).chain(many).chain([Event::InitDone]));
    let store = reflected.store.clone();
    let mut ready = std::pin::pin!(store.wait_until_ready());
    for (changes, is_last) in [(BATCH, false), (1, true)] {
        let update = reflected.next().await;
        assert_eq!((update.changes.len(), update.complete), (changes, is_last));
        assert!(
            futures::poll!(ready.as_mut()).is_pending(),
            "{changes} are being handled"
        );
    }
    assert!(futures::poll!(reflected.updates.next()).is_pending());
    ready.await.unwrap();
}

/// With one thread, the renewal of a lease would wait for the whole list.
#[tokio::test]
async fn other_tasks_run_while_a_long_list_is_stored_and_reported() {
    const FLEET: usize = 1000;
    let list = (0..FLEET).map(|number| listed(&format!("o-{number}"), "u", number));
    let events = std::iter::once(Event::Init).chain(list).chain([Event::InitDone]);
    let (_, writer) = store::<ConfigMap>();
    let turns = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        loop {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let updates = reflector(writer, stream::iter(events).map(Ok)).count().await;
    other.abort();
    assert_eq!(updates, FLEET.div_ceil(BATCH));
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns > FLEET / 100, "{turns}");
}

/// An API server that streams no lists. Its answers: two objects; a watch that has expired; a list that
/// breaks off after its first page; the complete list, with one object changed, one deleted and one new;
/// a watch without events.
#[derive(Default)]
struct ApiServer {
    watches: u32,
    second_pages: u32,
}

impl ApiServer {
    fn answer(&mut self, query: &str) -> Option<(u16, Value)> {
        let page = |version: &str, next: Option<&str>, items: &[ConfigMap]| {
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
            (false, true, ..) => page("20", None, &[config_map("new", "u-3", 12)]),
            (false, false, 0, _) => page(
                "10",
                None,
                &[config_map("a", "u-1", 1), config_map("gone", "u-2", 2)],
            ),
            (false, false, ..) => page("20", Some("next"), &[config_map("a", "u-1", 11)]),
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
async fn a_watch_that_expires_reports_the_next_complete_list() {
    let (store, writer) = store::<ConfigMap>();
    let api = Api::all(ApiServer::default().client());
    let mut updates = std::pin::pin!(reflector(writer, watcher(api, Config::default())));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let Ok(update) = updates.next().await.unwrap() else {
            continue;
        };
        for change in &update.changes {
            let held = store.get(&ObjectRef::from_obj(&**change.object()));
            let is_held = held.is_some_and(|held| held.metadata == change.object().metadata);
            assert_eq!(
                is_held,
                change.current().is_some(),
                "the store is behind {change:?}"
            );
        }
        seen.push(shown(&update));
    }
    assert_eq!(
        seen,
        [vec!["+a@1", "+gone@2"], vec!["+new@12", "-gone@2", "~a@11"]]
    );
}
