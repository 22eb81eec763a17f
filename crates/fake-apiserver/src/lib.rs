//! A Kubernetes API server in memory, for tests of controllers on tokio's paused clock.
//!
//! It keeps objects of any registered kind and serves them to [`kube::Client`]s of the same process, without
//! sockets. A test decides for each client which requests are refused, lost or never answered.
//!
//! # Fidelity
//! Kept as in kube-apiserver: resource versions and conflicts, generations, the status subresource,
//! finalizers and deletion, preconditions, merge, JSON and apply patches, dry runs, pages, label and field
//! selectors, watches with bookmarks and streamed lists, metadata-only answers, `410 Gone`, evictions within
//! PodDisruptionBudgets, and the garbage collector's part for owners that are gone.
//!
//! Left out: schemas, defaulting, admission, authentication and authorization, conversion between versions,
//! and managed fields. Tests of those need the real server.

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
