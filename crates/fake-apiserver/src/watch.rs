//! Watches: the events for one client, from a given version.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::selector::Selector;
use crate::server::Inner;
use crate::store::{Change, Refusal};

/// A watch of one kind.
pub(crate) struct Watch {
    pub server: Arc<Inner>,
    pub kind: usize,
    pub namespace: String,
    pub selector: Selector,
    pub metadata_only: bool,
    /// Lines to send before anything else.
    pub pending: Vec<Bytes>,
    /// The version of the last processed change.
    pub seen: u64,
    /// When the server ends the watch.
    pub ends_at: Instant,
    /// The number of cuts when the watch began: the next one ends it.
    pub cuts: u64,
    pub changed: Receiver<()>,
}

/// The next step of a watch.
enum Next {
    Line(Bytes),
    Wait,
    End,
}

impl Watch {
    /// The next line of the stream; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.pending.is_empty() {
                return Some(self.pending.remove(0));
            }
            self.changed.borrow_and_update();
            match self.look() {
                Next::Line(line) => return Some(line),
                Next::End => return None,
                Next::Wait => {}
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = sleep_until(self.ends_at) => return None,
            }
        }
    }

    fn look(&mut self) -> Next {
        let state = self.server.state.lock();
        if state.cuts != self.cuts {
            return Next::End;
        }
        if state.held.contains(&self.kind) {
            return Next::Wait;
        }
        if self.seen < state.store.oldest {
            self.seen = u64::MAX;
            let refusal = Refusal::gone().status();
            return Next::Line(line("ERROR", &refusal));
        }
        let changes = &state.store.changes;
        let begin = changes.partition_point(|change| change.version <= self.seen);
        for change in &changes[begin..] {
            self.seen = change.version;
            if let Some((event, object)) = self.event(change) {
                return Next::Line(line(event, &self.shown(object)));
            }
        }
        Next::Wait
    }

    /// The event of a change for this watch. An object that is no longer selected counts as deleted.
    fn event<'a>(&self, change: &'a Change) -> Option<(&'static str, &'a Value)> {
        let key = &change.key;
        if key.kind != self.kind || !(self.namespace.is_empty() || key.namespace == self.namespace) {
            return None;
        }
        let selected =
            |object: &Option<Arc<Value>>| object.as_ref().is_some_and(|o| self.selector.matches(o));
        match (selected(&change.old), selected(&change.new)) {
            (false, true) => Some(("ADDED", &change.last)),
            (true, true) => Some(("MODIFIED", &change.last)),
            (true, false) => Some(("DELETED", &change.last)),
            (false, false) => None,
        }
    }

    fn shown(&self, object: &Value) -> Value {
        if self.metadata_only {
            metadata_of(object)
        } else {
            object.clone()
        }
    }
}

/// A line of a watch. The type comes first, as kube-apiserver writes it: a client can then read the object
/// without a copy.
pub(crate) fn line(event: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n").into()
}

/// The bookmark that ends a streamed list.
pub(crate) fn end_of_list(api_version: &str, kind: &str, version: u64) -> Bytes {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    line(
        "BOOKMARK",
        &json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}),
    )
}

/// The metadata-only form of an object.
pub(crate) fn metadata_of(object: &Value) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"],
    })
}
