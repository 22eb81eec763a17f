//! The newest events of an object.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, ListParams};

/// The most events that a page shows.
const MAX_EVENTS: usize = 8;

/// An event, as a page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSummary {
    /// When the event came, or came last.
    pub at: Option<Timestamp>,
    /// `Warning` or `Normal`.
    pub type_: String,
    /// The object that the event is about: `Machine/m`.
    pub about: String,
    /// Its reason.
    pub reason: String,
    /// Its text.
    pub text: String,
}

/// The newest events of the objects with these UIDs, the newest first.
pub(super) async fn of(
    client: &Client,
    namespace: &str,
    uids: &[String],
) -> Result<Vec<EventSummary>, kube::Error> {
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let mut all = Vec::new();
    for uid in uids {
        let of_it = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        all.extend(events.list(&of_it).await?.items.into_iter().map(seen));
    }
    Ok(newest(all))
}

/// The newest events of a reason, in a namespace or in all.
pub(super) async fn of_reason(
    client: &Client,
    namespace: Option<&str>,
    reason: &str,
) -> Result<Vec<EventSummary>, kube::Error> {
    let events = match namespace {
        Some(namespace) => Api::<Event>::namespaced(client.clone(), namespace),
        None => Api::<Event>::all(client.clone()),
    };
    let of_it = ListParams::default().fields(&format!("reason={reason}"));
    let listed = events.list(&of_it).await?;
    Ok(listed.items.into_iter().map(seen).collect())
}

/// The newest of these, the newest first.
pub(super) fn newest(mut events: Vec<EventSummary>) -> Vec<EventSummary> {
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    events.truncate(MAX_EVENTS);
    events
}

fn seen(event: Event) -> EventSummary {
    let about = event.involved_object;
    let last = event.last_timestamp.map(|time| time.0);
    let at = last
        .or(event.event_time.map(|time| time.0))
        .or(event.metadata.creation_timestamp.map(|time| time.0));
    EventSummary {
        at,
        type_: event.type_.unwrap_or_default(),
        about: format!(
            "{}/{}",
            about.kind.unwrap_or_default(),
            about.name.unwrap_or_default()
        ),
        reason: event.reason.unwrap_or_default(),
        text: event.message.unwrap_or_default(),
    }
}
