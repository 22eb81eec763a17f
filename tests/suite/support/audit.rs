//! What the provider asked the API server for, from the audit log.

use std::fmt;

use anyhow::{Context, Result};
use serde_json::Value;

use super::World;

/// The user that the provider is.
const PROVIDER: &str = "system:serviceaccount:capcmi-system:capcmi-manager";

/// A request that was answered.
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

/// The provider's requests that are about the namespace of the case, about none, or about the Lease in its own.
pub fn requests(world: &World) -> Result<Vec<Request>> {
    let path = world.management.audit_log();
    let log = std::fs::read_to_string(&path).context("reading the audit log")?;
    // The last line may be half written.
    let whole = &log[..log.rfind('\n').map_or(0, |end| end + 1)];
    let events = whole.lines().filter(|line| line.contains(PROVIDER));
    events
        .filter_map(|line| {
            let event: Value = match serde_json::from_str(line).context("reading an audit event") {
                Ok(event) => event,
                Err(error) => return Some(Err(error)),
            };
            request(world, &event).map(Ok)
        })
        .collect()
}

/// The provider's requests that change an object in the namespace of the case.
pub fn writes(world: &World) -> Result<Vec<Request>> {
    let mut requests = requests(world)?;
    requests.retain(|request| request.is_write() && !request.group.ends_with("ation.k8s.io"));
    Ok(requests)
}

fn request(world: &World, event: &Value) -> Option<Request> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    // A watch is answered when it starts, and ends much later.
    let answered = event["stage"] == "ResponseComplete" || event["verb"] == "watch";
    let namespace = object["namespace"].as_str();
    let is_elsewhere = |namespace: &str| {
        namespace != world.namespace && (namespace != testbed::NAMESPACE || object["resource"] != "leases")
    };
    if event["user"]["username"] != PROVIDER
        || !answered
        || namespace.is_some_and(is_elsewhere)
        || !object.is_object()
    {
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
