//! Controllers for kinds with a hundred thousand objects.
//!
//! The parts have the names and the signatures of kube-runtime, and take its events and references. They
//! differ where a large fleet needs it:
//!
//! | Part | Difference from kube-runtime |
//! | --- | --- |
//! | [`Store`] | Keeps objects at rest compressed, and small facts for scans beside them. |
//! | [`watcher`] | Streams each list where the API server can. Lists in pages if the stream stalls. |
//! | [`reflector`] | Compares each list with the store. Reports each [`Change`], also a missed deletion. |
//! | [`Controller`] | Takes keys from a [`WorkQueue`]. Does not queue the objects of a start. |
//! | [`ListLayer`] | Bounds the answers to lists in pages, also those of kube's own requests. |
//!
//! An object at rest takes about a tenth of its JSON. Scans unpack no object.
//!
//! # Guarantees
//!
//! * The store has an object before its change is reported. It keeps its content until a list is complete.
//! * A list after an outage reports the same changes as a watch, deletions first.
//! * An object has one reconcile at a time. A request during a reconcile leads to one more.
//! * After a shutdown, no reconcile begins. Running reconciles finish.
//!
//! # Example
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use futures::StreamExt as _;
//! use kube::client::ClientBuilder;
//! use kube::runtime::reflector::ObjectRef;
//! use kube::runtime::watcher::Config;
//! use kube::{Api, CustomResource};
//! use kube_fleet::{Action, Controller, ListLayer, Stored, WorkQueue, reflector, store, watcher};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
//! #[kube(group = "example.com", version = "v1", kind = "Robot", namespaced, schema = "disabled")]
//! struct RobotSpec {
//!     model: String,
//! }
//!
//! impl Stored for Robot {
//!     type Facts = String;
//!
//!     fn facts(&self) -> String {
//!         self.spec.model.clone()
//!     }
//!
//!     fn pack(&self) -> Option<Vec<u8>> {
//!         serde_json::to_vec(self).ok()
//!     }
//!
//!     fn unpack(text: &[u8]) -> serde_json::Result<Self> {
//!         serde_json::from_slice(text)
//!     }
//! }
//!
//! async fn reconcile(robot: Arc<Robot>, _context: Arc<()>) -> Result<Action, kube::Error> {
//!     println!("{:?} is a {}", robot.metadata.name, robot.spec.model);
//!     Ok(Action::await_change())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config = kube::Config::infer().await?;
//!     let client = ClientBuilder::try_from(config)?.with_layer(&ListLayer::default()).build();
//!     let (robots, writer) = store::<Robot>();
//!     let queue = WorkQueue::default();
//!     let to_reconcile = queue.clone();
//!     tokio::spawn(async move {
//!         let events = watcher(Api::all(client), Config::default());
//!         let mut updates = std::pin::pin!(reflector(writer, events));
//!         while let Some(update) = updates.next().await {
//!             for change in update.iter().flat_map(|update| &update.changes) {
//!                 to_reconcile.enqueue(ObjectRef::from_obj(&**change.object()));
//!             }
//!         }
//!     });
//!     robots.wait_until_ready().await?;
//!     Controller::new(&robots, &queue, 32)
//!         .with_backlog(|_model| true)
//!         .run(reconcile, |_robot, _error, _context| Action::requeue(Duration::from_secs(5)), Arc::new(()))
//!         .await;
//!     Ok(())
//! }
//! ```

mod action;
mod by_version;
mod controller;
mod namespaced_name;
pub mod pages;
mod reflector;
mod store;
mod stored;
mod watcher;
mod work_queue;

pub use action::Action;
pub use by_version::ByVersion;
pub use controller::Controller;
pub use namespaced_name::NamespacedName;
pub use pages::ListLayer;
pub use reflector::{Change, Update, reflector};
pub use store::{Entry, Store, Writer, WriterDropped, store};
pub use stored::Stored;
pub use watcher::watcher;
pub use work_queue::WorkQueue;

#[cfg(test)]
mod fixtures;
