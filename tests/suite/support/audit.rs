//! The provider's requests to the API server, from the audit log.

use std::fmt;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Credential, World};

/// The provider's user.
const PROVIDER: &str = "system:serviceaccount:capcmi-system:capcmi-manager";

/// An answered request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub group: String,
    /// In plural, with the subresource.
    pub resource: String,
    pub verb: String,
    pub name: String,
    pub code: u64,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            resource,
            verb,
            name,
            code,
        } = self;
        write!(f, "{verb} {resource}.{group} {name}: {code}")
    }
}

impl Request {
    /// Whether it changes an object.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// The requests with this credential. Other cases run the provider as the same user, and some requests have
/// no namespace.
pub fn requests_with(world: &World, credential: &Credential) -> Result<Vec<Request>> {
    let events = events(world)?;
    let own = events.iter().filter(|event| {
        let ids = event["user"]["extra"]["authentication.kubernetes.io/credential-id"].as_array();
        ids.into_iter().flatten().any(|id| *id == credential.id.as_str())
    });
    Ok(own.filter_map(request).collect())
}

/// The provider's requests in the namespace of the case.
pub fn requests(world: &World) -> Result<Vec<Request>> {
    let events = events(world)?;
    let here = events
        .iter()
        .filter(|event| event["objectRef"]["namespace"] == world.namespace.as_str());
    Ok(here.filter_map(request).collect())
}

/// The requests in [`requests`] that change an object.
pub fn writes(world: &World) -> Result<Vec<Request>> {
    let mut requests = requests(world)?;
    requests.retain(Request::is_write);
    Ok(requests)
}

/// The URIs of the provider's lists and watches of a resource, in all namespaces.
pub fn reads(world: &World, resource: &str) -> Result<Vec<String>> {
    let mut events = events(world)?;
    events.retain(|event| {
        let is_read = event["verb"] == "list" || event["verb"] == "watch";
        is_read && event["objectRef"]["resource"] == resource
    });
    let uri = |event: &Value| event["requestURI"].as_str().map(str::to_owned);
    Ok(events.iter().filter_map(uri).collect())
}

/// The log's events about the provider, in all namespaces.
fn events(world: &World) -> Result<Vec<Value>> {
    let path = world.management.audit_log();
    let log = std::fs::read_to_string(&path).context("reading the audit log")?;
    // The last line may be incomplete.
    let whole = &log[..log.rfind('\n').map_or(0, |end| end + 1)];
    let events = whole.lines().filter(|line| line.contains(PROVIDER));
    events
        .map(|line| serde_json::from_str(line).context("reading an audit event"))
        .collect()
}

/// The request of an event, if the provider sent it and got an answer.
fn request(event: &Value) -> Option<Request> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    // A watch is answered when it starts, and ends much later.
    let answered = event["stage"] == "ResponseComplete" || event["verb"] == "watch";
    if event["user"]["username"] != PROVIDER || !answered || !object.is_object() {
        return None;
    }
    let resource = match object["subresource"].as_str() {
        Some(subresource) => format!("{}/{subresource}", text(&object["resource"])),
        None => text(&object["resource"]),
    };
    Some(Request {
        group: text(&object["apiGroup"]),
        resource,
        verb: text(&event["verb"]),
        name: text(&object["name"]),
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
    })
}
