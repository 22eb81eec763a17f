//! Events, recorded once and not kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::core::Request;
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::IgnoredAny;

use super::METADATA_ALONE;
use crate::api::conditions::reason;
use crate::api::wall_clock;
use crate::api::{ObjectMetaExt as _, fingerprint};

/// The most bytes that an event's note may have.
const MAX_NOTE: usize = 1024;

/// The most characters that the name of an object may have.
const MAX_NAME: usize = 253;

/// An event that is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Normal or Warning.
    pub warning: bool,
    /// The reason, as in the condition.
    pub reason: String,
    /// The driver call, or the action.
    pub action: &'static str,
    /// The text, cut after 1,024 bytes: the `note` of the API.
    pub note: String,
}

impl NewEvent {
    /// Returns the event for an object that can't be read. Its status can't be written, so only an event
    /// reaches the user.
    pub fn unreadable(error: &str) -> Self {
        let note = format!("cannot read the object, so no VM is created: {error}");
        Self::warning(reason::UNREADABLE, "Read", note)
    }

    /// Returns a Warning.
    pub fn warning(reason: impl Into<String>, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            warning: true,
            ..Self::normal(reason, action, note)
        }
    }

    /// Returns a Normal event.
    pub fn normal(reason: impl Into<String>, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            warning: false,
            reason: reason.into(),
            action,
            note: note.into(),
        }
    }
}

/// The number of objects that are remembered, a hundred bytes each.
const MAX_REPORTED: usize = 4096;

/// Records events without kube's recorder, which keeps every event in memory to build series. The controller
/// reports each fact once, so there are no series.
#[derive(Clone)]
pub struct Events {
    client: Client,
    instance: String,
    /// By UID, the hash of the last event of an object that can't be read. At most [`MAX_REPORTED`] objects
    /// are remembered.
    reported: Arc<Mutex<HashMap<String, u64>>>,
    /// The time in the name of the last event.
    last_named: Arc<Mutex<Timestamp>>,
}

impl Events {
    /// Records events in the name of this process.
    pub fn new(client: Client, instance: String) -> Self {
        Self {
            client,
            instance,
            reported: Arc::default(),
            last_named: Arc::default(),
        }
    }

    /// Records an event on an object. A failure is only logged: an event is no reason to retry.
    pub async fn record<K: Resource<DynamicType = ()>>(&self, object: &K, event: NewEvent) {
        let reference = object.object_ref(&());
        if let Err(error) = self.create(reference, event).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot record an event");
        }
    }

    /// Records a new failure of a machine, on the machine or a related object, and logs it. The log outlives
    /// events and covers all machines.
    pub async fn record_failure<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        driver: &str,
        next_try: Option<Timestamp>,
        event: NewEvent,
    ) {
        if event.warning {
            let meta = object.meta();
            tracing::warn!(
                kind = %K::kind(&()),
                machine = format!("{}/{}", meta.namespace(), meta.name()),
                driver,
                code = event.reason,
                action = event.action,
                why = event.note,
                next_try = next_try.map(|time| format!("{time:.0}")),
                "machine failed"
            );
        }
        self.record(object, event).await;
    }

    /// Records an event as [`Events::record`] does, unless it equals the last event that this method recorded
    /// for the same generation of the object. Returns whether the event is new.
    pub async fn record_once<K: Resource<DynamicType = ()>>(&self, object: &K, event: NewEvent) -> bool {
        let uid = object.meta().uid().to_owned();
        let reported = fingerprint((object.meta().generation, &event.reason, &event.note));
        let before = {
            let mut all = self.reported.lock();
            // Users create and delete objects freely. At worst, an event is recorded twice.
            if all.len() >= MAX_REPORTED && !all.contains_key(&uid) {
                all.clear();
            }
            all.insert(uid, reported)
        };
        let is_new = before != Some(reported);
        if is_new {
            self.record(object, event).await;
        }
        is_new
    }

    /// Returns a time for the name of an event, later than that of each earlier event even if the clock
    /// stands still.
    fn time_for_name(&self, now: Timestamp) -> Timestamp {
        let mut last = self.last_named.lock();
        let after_last = last.checked_add(Duration::from_nanos(1)).unwrap_or(now);
        *last = now.max(after_last);
        *last
    }

    async fn create(&self, regarding: ObjectReference, event: NewEvent) -> Result<(), kube::Error> {
        let now = wall_clock::now();
        let namespace = regarding
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let name = name_of(&regarding, self.time_for_name(now));
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(event.reason),
            action: Some(event.action.to_owned()),
            note: Some(cut(event.note)),
            event_time: Some(MicroTime(now)),
            regarding: Some(regarding),
            reporting_controller: Some("infrastructure.capcmi.io/capcmi".to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        };
        let body = serde_json::to_vec(&event).map_err(kube::Error::SerdeError)?;
        let mut request = Request::new(Event::url_path(&(), Some(&namespace)))
            .create(&PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(ACCEPT, METADATA_ALONE);
        let IgnoredAny = self.client.request(request).await?;
        Ok(())
    }
}

/// Returns the name of an event: its object's name and the time, as in other controllers. If the name is too
/// long, a hash replaces the end of the object's name: objects whose names begin alike must not share an
/// event's name.
fn name_of(regarding: &ObjectReference, now: Timestamp) -> String {
    let object = regarding.name.as_deref().unwrap_or("capcmi");
    let time = format!("{:x}", now.as_nanosecond());
    let name = format!("{object}.{time}");
    if name.len() <= MAX_NAME {
        return name;
    }
    let rest = format!(".{:016x}.{time}", fingerprint((object, &regarding.uid)));
    let room = MAX_NAME.saturating_sub(rest.len());
    // Names in the API server are ASCII. No part of a name may end with a dot or dash.
    let start: String = object.chars().take(room).collect();
    format!("{}{rest}", start.trim_end_matches(['.', '-']))
}

fn cut(mut note: String) -> String {
    if note.len() > MAX_NOTE {
        note.truncate(note.floor_char_boundary(MAX_NOTE - '…'.len_utf8()));
        note.push('…');
    }
    note
}

#[cfg(test)]
pub(crate) mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::api::DeserializeGuard;
    use crate::api::v1alpha1::InfraCluster;

    /// Events that are recorded in a list.
    pub(crate) fn recorded() -> (Events, Arc<Mutex<Vec<Event>>>) {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&recorded);
        let service = tower::service_fn(move |request: Request<Body>| {
            let list = Arc::clone(&list);
            async move {
                let bytes = request.into_body().collect_bytes().await.unwrap();
                list.lock().push(serde_json::from_slice(&bytes).unwrap());
                Ok::<_, Infallible>(Response::new(Body::from(bytes)))
            }
        });
        (
            Events::new(Client::new(service, "default"), "test".to_owned()),
            recorded,
        )
    }

    #[tokio::test]
    async fn an_unreadable_object_gets_one_event_per_error_and_generation() {
        let (events, recorded) = recorded();
        for (generation, error) in [(1, "a"), (1, "a"), (2, "a"), (2, "b"), (2, "b")] {
            let text = format!(
                r#"{{"metadata": {{"name": "c", "namespace": "ns", "uid": "u", "generation": {generation}}},
                "spec": 7}}"#
            );
            let object: DeserializeGuard<InfraCluster> = serde_json::from_str(&text).unwrap();
            events.record_once(&object, NewEvent::unreadable(error)).await;
        }
        assert_eq!(recorded.lock().len(), 3);
    }

    #[tokio::test]
    async fn events_of_the_same_instant_have_different_names() {
        let (events, _) = recorded();
        let now = Timestamp::now();
        let first = events.time_for_name(now);
        assert_eq!(first, now);
        assert!(events.clone().time_for_name(now) > first);
    }

    #[test]
    fn events_on_objects_with_long_names_have_valid_unique_names() {
        let of = |name: &str, uid: &str| {
            let regarding = ObjectReference {
                name: Some(name.to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            };
            name_of(&regarding, Timestamp::from_second(1_800_000_000).unwrap())
        };
        assert!(of("m1", "u-1").starts_with("m1.18"), "{}", of("m1", "u-1"));
        let mut names = Vec::new();
        for long in ["a".repeat(253), "a.-".repeat(84), format!("{}b", "a".repeat(252))] {
            for uid in ["u-1", "u-2"] {
                let name = of(&long, uid);
                assert!((200..=MAX_NAME).contains(&name.len()), "{name}");
                let fits = |part: &str| {
                    part.starts_with(char::is_alphanumeric) && part.ends_with(char::is_alphanumeric)
                };
                let last = name.rsplitn(3, '.').nth(2).unwrap_or_default();
                assert!(last.ends_with(char::is_alphanumeric), "{name}");
                assert!(name.rsplit('.').take(2).all(fits), "{name}");
                names.push(name);
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6, "none twice: {names:?}");
    }
}
