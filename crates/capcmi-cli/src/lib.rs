//! `capcmi`, the command for operators of the provider and for authors of drivers. kubectl runs it as a
//! plugin under the name `kubectl-capcmi`.

pub mod commands; // the command line
pub mod describe; // one page about a machine or a driver
pub mod introspection; // the answers of a driver about itself
pub mod migration; // from machine-controller-manager to Cluster API
pub mod node_image; // the requirements of a node image
pub mod observed_vm; // a VM as its driver sees it
