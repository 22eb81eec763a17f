//! From machine-controller-manager (group `machine.sapcloud.io`) to Cluster API: its objects are read, a plan
//! says what is made in their place, and their VMs are adopted.
//!
//! [`source`] and [`mod@plan`] are pure; [`controller`] says whether the old controller runs, and
//! [`health_checks`](mod@health_checks) what might have Machines deleted before their VMs are adopted;
//! [`write`](mod@write) makes the objects, in an order that lets Cluster API's controllers neither make nor
//! delete a machine on the way; [`undo`](mod@undo) takes them back, and leaves the VMs.

pub mod controller;
pub mod error;
pub mod health_checks;
pub mod plan;
pub mod source;
#[cfg(test)]
mod tests;
pub mod undo;
pub mod write;
