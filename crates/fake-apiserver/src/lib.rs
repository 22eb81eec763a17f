//! A Kubernetes API server in memory, for tests of controllers on tokio's paused clock.
//!
//! It keeps objects of any registered kind and serves them to [`kube::Client`]s of the same process, without
//! sockets. A test decides for each client which requests are refused, lost or never answered.
//!
//! # Fidelity
//! Resource versions, conflicts, generations, finalizers, deletion, preconditions and the status subresource
//! work as in kube-apiserver. So do merge, JSON and apply patches, dry runs, pages, label and field
//! selectors, watches with bookmarks, streamed lists, metadata-only answers and `410 Gone`. Evictions respect
//! PodDisruptionBudgets. Objects whose owners are deleted are garbage collected.
//!
//! It has no schemas, defaulting, admission, authentication, authorization, conversion between versions, or
//! managed fields. Tests of those need the real server.

mod eviction;
mod kind;
mod patch;
mod request;
mod selector;
mod server;
mod store;
#[cfg(test)]
mod tests;
mod watch;

pub use kind::Kind;
pub use request::Call;
pub use server::{FakeApiServer, Fate, Recorded};
