//! Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
#[allow(clippy::duplicated_attributes)]
// the lint takes the fields of two print columns for one attribute said twice
pub mod api;
pub mod cli;
pub mod driver;
pub mod leadership;
pub mod manager;
pub mod metrics;
pub mod provider;
pub mod telemetry;
