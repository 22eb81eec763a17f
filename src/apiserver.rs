//! Reads and writes at the API server: errors by their consequence, merge patches, statuses, events,
//! secrets and claims.

pub mod claims;
mod dynamic;
mod error;
mod events;
pub mod leadership;
mod merge_patch;
pub mod outage_log;
pub mod secrets;
mod status;

use http::header::HeaderValue;

pub use dynamic::dynamic;
pub use error::{Error, error_message};
#[cfg(test)]
pub(crate) use events::tests::recorded;
pub use events::{Events, NewEvent};
pub use merge_patch::{
    FIELD_MANAGER, finalizers, merge_difference, patch_metadata, patch_params, record_progress,
};
pub use outage_log::OutageLog;
pub use secrets::InvalidSecret;
pub use status::publish_status;

/// Requests only the metadata in the answer to a write: the writer has the rest of the object.
const METADATA_ALONE: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
