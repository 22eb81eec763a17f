//! Reading and writing at the API server: errors by what they lead to, merge patches, statuses, events,
//! secrets, lists read page by page.

mod error;
mod events;
mod merge_patch;
pub mod outage_log;
pub mod pages;
pub mod secrets;
mod status;

pub use error::{Error, in_words};
#[cfg(test)]
pub(crate) use events::tests::recorded;
pub use events::{Events, NewEvent};
pub use merge_patch::{FIELD_MANAGER, merge_difference, patch_metadata, patch_params};
pub use outage_log::OutageLog;
pub use secrets::InvalidSecret;
pub use status::publish_status;
