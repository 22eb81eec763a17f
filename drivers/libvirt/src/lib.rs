//! A driver of virtual machines on hosts with libvirt and QEMU.
//!
//! A machine is a domain and some volumes on one of the configured hosts. Nothing of it is kept anywhere
//! else: the ids follow from what the machine is, and the rest stands in the metadata of its domain.

pub mod addresses;
pub mod config;
mod connection;
mod driver;
mod errors;
pub mod identity;
mod images;
mod locks;
mod machines;
pub mod metadata;
mod placement;
pub mod seed;
mod spec;
mod storage_pool;
mod xml;

pub use config::Config;
pub use driver::{LibvirtDriver, NAME};
