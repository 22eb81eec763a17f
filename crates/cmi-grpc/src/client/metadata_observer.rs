//! Observes the metadata of answers.

use std::fmt;
use std::sync::Arc;

use cmi_driver::Operation;
use http::HeaderMap;

/// Sees the unmodified headers and trailers of each answer to a call of a machine, including those that the
/// client ignores.
pub trait MetadataObserver: fmt::Debug + Send + Sync {
    /// The headers or the trailers of an answer to this call.
    fn observe(&self, operation: Operation, metadata: &HeaderMap);
}

/// The observer that a client has, if any.
pub(super) type Observing = Option<Arc<dyn MetadataObserver>>;
