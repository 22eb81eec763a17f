//! Migrates machine-controller-manager (group `machine.sapcloud.io`) to Cluster API: reads its objects, plans
//! the objects that replace them, and adopts their VMs.
//!
//! [`source`] and [`mod@plan`] are pure. [`controller`] detects whether the old controller runs, and
//! [`health_checks`](mod@health_checks) finds checks that might delete Machines before their VMs are adopted.
//! [`write`](mod@write) creates the objects, in an order that lets Cluster API's controllers neither create
//! nor delete a machine in between. [`undo`](mod@undo) deletes them again, and leaves the VMs.

pub mod controller;
pub mod error;
pub mod health_checks;
pub mod plan;
pub mod source;
#[cfg(test)]
mod tests;
pub mod undo;
pub mod write;
