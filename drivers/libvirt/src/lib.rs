//! A driver of virtual machines on hosts with libvirt and QEMU: what needs no host.
//!
//! A machine is a domain and some volumes on one of the configured hosts. Nothing of it is kept anywhere
//! else: the ids follow from what the machine is, and the rest stands in the metadata of its domain.

pub mod config;
pub mod errors;
pub mod identity;
pub mod metadata;
pub mod placement;
pub mod seed;
pub mod spec;
pub mod xml;

pub use config::Config;
