//! An API server that lists a fleet, page by page, and on whose watches nothing happens until they expire.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Part, objects};

/// The kinds that there are objects of.
const KINDS: usize = 2;
/// The kinds that are watched.
const WATCHED: usize = 6;

/// Cloning it gives another handle of the same one.
#[derive(Clone)]
pub struct ApiServer(Arc<State>);

struct State {
    part: Part,
    size: usize,
    expired: watch::Sender<bool>,
    /// Lists of Machines and InfraMachines that were answered in full.
    lists: watch::Sender<usize>,
    watches: AtomicUsize,
}

impl ApiServer {
    /// One with so many machines.
    pub fn new(part: Part, size: usize) -> Self {
        Self(Arc::new(State {
            part,
            size,
            expired: watch::Sender::new(false),
            lists: watch::Sender::new(0),
            watches: AtomicUsize::new(0),
        }))
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
                let answer = if query.contains("watch=true") {
                    this.watched().await.to_string()
                } else {
                    this.page(path, query)
                };
                Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    /// Has all watches expire, and waits until everything was listed again, and is watched.
    pub async fn list_anew(&self) {
        // A watch that has not begun yet would not expire.
        self.watches(WATCHED).await;
        let before = *self.0.lists.borrow();
        let mut lists = self.0.lists.subscribe();
        self.0.expired.send_replace(true);
        // The sender lives as long as this.
        let _ = lists.wait_for(|now| *now >= before + KINDS).await;
        self.watches(2 * WATCHED).await;
    }

    async fn watches(&self, so_many: usize) {
        while self.0.watches.load(Ordering::Relaxed) < so_many {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn watched(&self) -> Value {
        self.0.watches.fetch_add(1, Ordering::Relaxed);
        let mut expired = self.0.expired.subscribe();
        if *expired.borrow() {
            return std::future::pending().await;
        }
        let _ = expired.wait_for(|expired| *expired).await;
        json!({"type": "ERROR", "object": {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired",
            "message": "too old resource version", "code": 410,
        }})
    }

    /// As text, object by object: a page of trees would take more than what is measured.
    fn page(&self, path: &str, query: &str) -> String {
        let parameter = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs
                .filter(|(key, _)| *key == name)
                .find_map(|(_, value)| value.parse().ok())
        };
        let object: fn(usize) -> Value = match path.rsplit('/').next() {
            Some("inframachines") if self.0.part.has_infra_machines() => objects::infra_machine,
            Some("machines") if self.0.part.has_machines() => objects::machine,
            _ => {
                return json!({"kind": "List", "metadata": {"resourceVersion": "9000000"}, "items": []})
                    .to_string();
            }
        };
        let from: usize = parameter("continue").unwrap_or(0);
        let limit: usize = parameter("limit").unwrap_or(self.0.size);
        let to = (from + limit).min(self.0.size);
        let mut metadata = json!({"resourceVersion": "9000000"});
        if to < self.0.size {
            metadata["continue"] = json!(to.to_string());
        } else {
            self.0.lists.send_modify(|lists| *lists += 1);
        }
        let mut page = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{metadata},"items":["#);
        for index in from..to {
            if index > from {
                page.push(',');
            }
            page.push_str(&object(index).to_string());
        }
        page.push_str("]}");
        page
    }
}
