//! Events, published once and not kept.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::{Api, Client, Resource, api::PostParams};

/// The most bytes that an event's note may have.
const MAX_NOTE: usize = 1024;

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Normal or Warning.
    pub warning: bool,
    /// As the condition's.
    pub reason: String,
    /// The driver call, or what was done.
    pub action: &'static str,
    /// In words; cut after 1,024 bytes.
    pub text: String,
}

/// Publishes events without kube's recorder, which keeps every event in memory for its series: the controller says a thing
/// once, so there are no series.
#[derive(Clone)]
pub struct Events {
    client: Client,
    instance: String,
}

impl Events {
    /// Publishes in the name of this process.
    pub fn new(client: Client, instance: String) -> Self {
        Self { client, instance }
    }

    /// Publishes an event on an object. A failure is logged: an event is no reason to try again.
    pub async fn publish<K: Resource<DynamicType = ()>>(&self, object: &K, note: Note) {
        let reference = object.object_ref(&());
        if let Err(error) = self.create(reference, note).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "publishing an event failed"
            );
        }
    }

    async fn create(&self, regarding: ObjectReference, note: Note) -> Result<(), kube::Error> {
        let now = Timestamp::now();
        let namespace = regarding
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let name = format!(
            "{}.{:x}",
            regarding.name.as_deref().unwrap_or("capcmi"),
            now.as_nanosecond()
        );
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(note.reason),
            action: Some(note.action.to_owned()),
            note: Some(cut(note.text)),
            event_time: Some(MicroTime(now)),
            regarding: Some(regarding),
            reporting_controller: Some("infrastructure.capcmi.io/capcmi".to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        };
        Api::<Event>::namespaced(self.client.clone(), &namespace)
            .create(&PostParams::default(), &event)
            .await?;
        Ok(())
    }
}

fn cut(mut note: String) -> String {
    if note.len() > MAX_NOTE {
        let end = (0..=MAX_NOTE - 3)
            .rev()
            .find(|at| note.is_char_boundary(*at))
            .unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    note
}
