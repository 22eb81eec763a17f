//! Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
//!
//! The crates below this one know no Kubernetes: `cmi-driver` is the contract with a back end, `cmi-grpc` its
//! wire, `cmi-simulated` a driver. `capcmi-cli` above it is the command for operators. Arrows between the
//! modules go one way: `tests/architecture.rs` lists and guards them.

// The lint takes the fields of two print columns for one attribute that is given twice.
#[allow(clippy::duplicated_attributes)]
pub mod api; // the objects, the identity of a machine, the meaning of a driver's codes
pub mod telemetry; // metrics and logs

pub mod admission; // the policies that guard identities
pub mod apiserver; // reads and writes at the API server, leadership
pub mod driver; // a configured driver, and the rules for its calls
pub mod in_place; // updates of VMs that exist
pub mod reconcile; // the frame of every reconcile, and the caches

// No reconciler knows another one.
pub mod cluster; // InfraClusters and templates
pub mod fleet; // lists of VMs: inventory and orphans
pub mod machine; // InfraMachines
pub mod nodes; // taints, drains and remediation

pub mod manager; // the process, its command line, and the controllers: which change wakes which object
