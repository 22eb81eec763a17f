//! A driver of virtual machines on hosts with libvirt and QEMU.
//!
//! A machine is a domain and its volumes on one of the configured hosts. The driver stores nothing elsewhere:
//! the machine's identity determines the ids, and the domain's metadata has the rest.

mod addresses;
pub mod config;
mod connection;
mod driver;
mod errors;
pub mod identity;
mod images;
mod library;
mod machines;
pub mod metadata;
mod neighbours;
mod placement;
pub mod seed;
mod spec;
mod storage_pool;
mod xml;

pub use config::Config;
pub use driver::{LibvirtDriver, NAME};
