//! The target of the tests.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;

use super::wire::Wire;
use cmi_driver::{Driver, Operation};
use cmi_grpc::client::MetadataObserver;

/// The driver under test.
#[derive(Clone)]
pub struct Target {
    /// The name of the target in the report: an endpoint, or `simulated`.
    pub name: String,
    /// The driver; behind an endpoint, the client.
    pub driver: Arc<dyn Driver>,
    wire: Option<Arc<dyn Wire>>,
    metadata: Arc<AnswerMetadata>,
}

impl Target {
    /// Returns the target of a driver in this process.
    pub fn in_process(name: impl Into<String>, driver: Arc<dyn Driver>) -> Self {
        Self {
            name: name.into(),
            driver,
            wire: None,
            metadata: Arc::default(),
        }
    }

    /// Returns the target of a plugin: the client of its endpoint, a bare connection that shows more than the
    /// client, and the client's observations of the answers.
    pub fn plugin(
        name: impl Into<String>,
        driver: Arc<dyn Driver>,
        wire: Arc<dyn Wire>,
        metadata: Arc<AnswerMetadata>,
    ) -> Self {
        Self {
            name: name.into(),
            driver,
            wire: Some(wire),
            metadata,
        }
    }

    /// Takes the headers and trailers of the answers since the last call.
    pub(crate) fn take_metadata(&self) -> Vec<(Operation, String)> {
        self.metadata.take()
    }

    /// Returns the bare connection to the plugin; `None` for a driver in this process.
    pub fn wire(&self) -> Option<&dyn Wire> {
        self.wire.as_deref()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The headers and trailers of answers, which the client ignores, until they are checked.
#[derive(Debug, Default)]
pub struct AnswerMetadata(Mutex<Vec<(Operation, String)>>);

impl AnswerMetadata {
    /// Takes the values since the last call, each with the driver call that it answered.
    pub(crate) fn take(&self) -> Vec<(Operation, String)> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl MetadataObserver for AnswerMetadata {
    fn observe(&self, operation: Operation, metadata: &HeaderMap) {
        let values = metadata.values();
        let texts = values.map(|value| (operation, String::from_utf8_lossy(value.as_bytes()).into_owned()));
        self.0.lock().extend(texts);
    }
}
