//! Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
//!
//! Layer 0 is what is talked about: types that know no other module of this crate. Layer 1 is the drivers and their wire, which
//! know no Kubernetes. Layer 2 is Kubernetes on one side and the driver's trait on the other: it knows no concrete driver. Arrows
//! go one way; a test guards them:
//!
//! ```text
//! main → cli → manager → controllers → machine, template, cluster, inventory, orphans
//!                                        → listing → credentials → provider, apiserver
//!                                        → admission → manifests, metrics, leadership, apiserver
//!                                        → reconciler, provider, caches, identity, apiserver → driver, api
//!            → drivers → cmi → driver
//!            → conformance → cmi, driver
//! ```
// Layer 0: what is talked about, and what servers share.
// The lint takes the fields of two print columns for one attribute said twice.
#[allow(clippy::duplicated_attributes)]
pub mod api; // the objects that are served, and what is read of those of Cluster API
pub mod connections; // how many a server has, and which one makes room
pub mod driver; // the contract with a back end

// Layer 1: drivers and their wire.
pub mod cmi; // the Common Machine Interface over gRPC
pub mod conformance; // the suite that tests drivers and plugins
pub mod drivers; // the drivers that are part of this program

// Layer 2: what reconcilers work with.
pub mod admission; // whether identities are guarded
pub mod apiserver; // writes, events, secrets and errors of the API server
pub mod caches; // what is watched, and what is derived from it
pub mod credentials; // of a driver call: of a Secret, or from the provider's side
pub mod identity; // who a machine is to a driver
pub mod leadership; // whether this replica may act
pub mod listing; // lists of VMs
pub mod manifests; // what is installed beside the provider
pub mod metrics; // what is counted and timed
pub mod provider; // a configured driver, and the rules for calling it
pub mod reconciler; // what is around every reconcile of an object that has no VM
pub mod telemetry; // logs

// Layer 2: reconcilers. None knows another.
pub mod cluster; // InfraClusters
pub mod inventory; // VMs that vanished, found by lists
pub mod machine; // InfraMachines
pub mod orphans; // VMs that no InfraMachine has
pub mod template; // InfraMachineTemplates

// What puts them together, and runs them.
pub mod cli; // the commands, and the one place that names concrete drivers
pub mod controllers; // what is watched, and whom it wakes
pub mod manager; // the process: election, health, metrics, an orderly end
