//! What the client sees and makes nothing of: headers and trailers that no call knows.

use std::sync::{Mutex, PoisonError};

use cmi_driver::Operation;
use cmi_grpc::client::MetadataObserver;
use http::HeaderMap;

/// The headers and trailers of answers, until they are checked.
#[derive(Debug, Default)]
pub struct AnswerMetadata(Mutex<Vec<(Operation, String)>>);

impl AnswerMetadata {
    /// The values since they were last read, each with the call that it answered.
    pub(crate) fn take(&self) -> Vec<(Operation, String)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl MetadataObserver for AnswerMetadata {
    fn observe(&self, operation: Operation, metadata: &HeaderMap) {
        let values = metadata.values();
        let texts = values.map(|value| (operation, String::from_utf8_lossy(value.as_bytes()).into_owned()));
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(texts);
    }
}
