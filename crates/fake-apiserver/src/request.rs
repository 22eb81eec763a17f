//! Requests as the server reads them.

use std::collections::BTreeMap;

use http::Method;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use serde_json::Value;

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Call {
    /// The HTTP method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The parameters of the query, decoded.
    pub query: BTreeMap<String, String>,
    /// The body; null for a request without a body.
    pub body: Value,
    pub(crate) content_type: String,
    /// Whether the client asks for metadata only.
    pub(crate) metadata_only: bool,
}

impl Call {
    pub(crate) fn new(head: &Parts, body: &[u8]) -> Result<Self, serde_json::Error> {
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let decoded = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let query = head.uri.query().unwrap_or_default();
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key), decoded(value))
        });
        Ok(Self {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: query.collect(),
            body: if body.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(body)?
            },
            content_type: header("content-type").unwrap_or_default().to_owned(),
            metadata_only: header("accept").is_some_and(|accept| accept.contains("as=PartialObjectMetadata")),
        })
    }

    /// Whether the request may change an object.
    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether the request begins a watch.
    pub fn is_watch(&self) -> bool {
        self.flag("watch")
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.parameter(name), Some("true" | "1"))
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.parameter("dryRun") == Some("All")
    }
}
