//! Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
//!
//! The crates below this one know no Kubernetes: `cmi-driver` is the contract with a back end, `cmi-grpc` its
//! wire, `cmi-simulated` a driver. `capcmi-cli` above it is the command for operators. Of this crate, layer 0
//! is types that know no other module. Layer 1 is Kubernetes on one side and the driver's trait on the other;
//! layer 2 is the reconcilers, layer 3 runs them. Only `cli` knows a concrete driver. Arrows go one way:
//! `docs/internals/architecture.md` draws them, and `tests/architecture.rs` guards them.
// Layer 0: API types.
// The lint takes the fields of two print columns for one attribute said twice.
#[allow(clippy::duplicated_attributes)]
pub mod api; // the objects that are served, and what is read of those of Cluster API
pub mod retry; // what happens after a code of a driver
pub mod wall_clock; // times between timestamps

// Layer 1: what reconcilers work with.
pub mod admission; // whether identities are guarded
pub mod apiserver; // writes, events, secrets and errors of the API server
pub mod caches; // what is watched, and what is derived from it
pub mod configured_driver; // a configured driver, and the rules for calling it
pub mod credentials; // of a driver call: of a Secret, or from the provider's side
pub mod driver_query; // what a driver is asked about a class before there is a machine
pub mod driver_resolution; // which driver a machine gets
pub mod hot_update; // what of a changed spec a living VM can take
pub mod identity; // the identity of a machine at a driver
pub mod leadership; // whether this replica may act
pub mod listing; // lists of VMs
pub mod manifests; // what is installed beside the provider
pub mod metrics; // what is counted and timed
pub mod reconciler; // what is around every reconcile
pub mod telemetry; // logs
pub mod workload_cluster; // connections to the API servers of workload clusters

// Layer 2: reconcilers. None knows another.
pub mod cluster; // InfraClusters
pub mod inventory; // VMs that vanished, found by lists
pub mod machine; // InfraMachines
pub mod not_ready_taint; // the taint of Nodes whose VM is not initialized
pub mod orphans; // VMs that no InfraMachine has
pub mod remediation; // InfraMachineRemediations
pub mod template; // InfraMachineTemplates
pub mod volume_drain; // pods with volumes, evicted one after the other

// Layer 3: what puts them together, and runs them.
pub mod cli; // the command line, and the one place that names concrete drivers
pub mod controllers; // what is watched, and what that wakes
pub mod manager; // the process: election, health, metrics, an orderly end
pub mod runtime_extension; // what Cluster API asks before and while it updates machines in place
