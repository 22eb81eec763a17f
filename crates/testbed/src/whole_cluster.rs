//! A whole Cluster whose machines are real, and the namespaces that a test of it runs in.

pub mod cluster;
pub mod sandbox;
pub mod steps;
pub mod workload;
