//! An API server that streams a fleet to its watches, and then nothing until the watches expire.

use std::convert::Infallible;
use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Part, objects};

/// The answer to a list without a watch. It is always empty.
const EMPTY_LIST: &str =
    r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"9000000"},"items":[]}"#;
/// The number of kinds with objects.
const KINDS: usize = 2;
/// The number of kinds that are watched.
const WATCHED: usize = 6;

/// An API server. Its clones share the state.
#[derive(Clone)]
pub struct ApiServer(Arc<State>);

struct State {
    part: Part,
    size: usize,
    expired: watch::Sender<bool>,
    /// The number of complete lists of Machines and InfraMachines.
    lists: watch::Sender<usize>,
    watches: AtomicUsize,
}

impl ApiServer {
    /// Returns a server with this number of machines.
    pub fn new(part: Part, size: usize) -> Self {
        Self(Arc::new(State {
            part,
            size,
            expired: watch::Sender::new(false),
            lists: watch::Sender::new(0),
            watches: AtomicUsize::new(0),
        }))
    }

    /// Returns a client of the server.
    pub fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let query = request.uri().query().unwrap_or_default();
                let body = if query.contains("watch=true") {
                    this.watched(request.uri().path(), query.contains("sendInitialEvents=true"))
                } else {
                    Full::from(EMPTY_LIST).boxed_unsync()
                };
                Ok::<_, Infallible>(Response::new(body))
            }
        });
        Client::new(service, "default")
    }

    /// Lets all watches expire, and waits until the client has relisted everything and watches again.
    pub async fn list_anew(&self) {
        // A watch can expire only after its start.
        self.watches(WATCHED).await;
        let before = *self.0.lists.borrow();
        let mut lists = self.0.lists.subscribe();
        self.0.expired.send_replace(true);
        // The sender lives as long as this server.
        let _ = lists.wait_for(|now| *now >= before + KINDS).await;
        self.watches(2 * WATCHED).await;
    }

    async fn watches(&self, so_many: usize) {
        while self.0.watches.load(Ordering::Relaxed) < so_many {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Streams a watch one object at a time: all objects together would need more memory than the measured
    /// part.
    fn watched(&self, path: &str, is_listed: bool) -> UnsyncBoxBody<Bytes, Infallible> {
        let this = self.clone();
        let expiry = stream::once(async move { this.expired().await });
        let objects = is_listed.then(|| self.objects(path)).into_iter().flatten();
        let events = stream::iter(objects).chain(expiry);
        // The type comes first, as in events of a real API server, since it tells the client how to parse the
        // object.
        let lines = events.map(|(type_, object)| {
            let line = format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n");
            Ok::<_, Infallible>(Frame::data(line.into()))
        });
        StreamBody::new(lines).boxed_unsync()
    }

    /// Returns the events of a streamed list.
    fn objects(&self, path: &str) -> impl Iterator<Item = (&'static str, Value)> + Send + use<> {
        let object: Option<fn(usize) -> Value> = match path.rsplit('/').next() {
            Some("inframachines") if self.0.part.has_infra_machines() => Some(objects::infra_machine),
            Some("machines") if self.0.part.has_machines() => Some(objects::machine),
            _ => None,
        };
        let this = self.clone();
        let size = self.0.size;
        let all = object
            .into_iter()
            .flat_map(move |object| (0..size).map(move |index| ("ADDED", object(index))));
        let end = move |()| {
            if object.is_some() {
                this.0.lists.send_modify(|lists| *lists += 1);
            }
            let end = json!({"kind": "X", "apiVersion": "v1", "metadata": {
                "resourceVersion": "9000000", "annotations": {"k8s.io/initial-events-end": "true"},
            }});
            ("BOOKMARK", end)
        };
        all.chain(once(()).map(end))
    }

    async fn expired(&self) -> (&'static str, Value) {
        self.0.watches.fetch_add(1, Ordering::Relaxed);
        let mut expired = self.0.expired.subscribe();
        if *expired.borrow() {
            return std::future::pending().await;
        }
        let _ = expired.wait_for(|expired| *expired).await;
        let failure = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired",
            "message": "too old resource version", "code": 410,
        });
        ("ERROR", failure)
    }
}
