//! Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
//!
//! Arrows go one way; a test guards them:
//!
//! ```text
//! main → cli → manager → machine, template, cluster, inventory → reconciler, apiserver, caches, provider → driver, api
//!            → drivers → cmi → driver
//!            → conformance → cmi, driver
//! ```
// The lint takes the fields of two print columns for one attribute said twice.
#[allow(clippy::duplicated_attributes)]
pub mod api;
pub mod apiserver;
pub mod caches;
pub mod cli;
pub mod cluster;
pub mod cmi;
pub mod conformance;
pub mod controllers;
pub mod driver;
pub mod drivers;
pub mod inventory;
pub mod leadership;
pub mod machine;
pub mod manager;
pub mod manifests;
pub mod metrics;
pub mod provider;
pub mod reconciler;
pub mod telemetry;
pub mod template;
