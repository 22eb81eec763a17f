//! A driver of machines as system containers on a Linux host.
//!
//! A machine is a folder below the state folder and, while it is on, a container of runc with systemd as its
//! first process. The folder has the machine's record, so nothing is kept in memory.

mod bundle;
pub mod config;
mod console;
mod driver;
mod errors;
pub mod identity;
mod layers;
mod machines;
mod network;
mod programs;
pub mod record;
mod runtime;
mod seed;
mod spec;
pub mod state;

pub use config::Config;
pub use driver::{ContainerDriver, NAME};
