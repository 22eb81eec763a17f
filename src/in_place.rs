//! Updates of VMs that exist: the changes that a driver can make, and the Runtime Extension by which Cluster
//! API asks for them.

pub mod hot_update;
pub mod runtime_extension;
