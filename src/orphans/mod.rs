//! VMs that no InfraMachine has.
//!
//! Layer 2.

pub mod endings;
pub mod plan;
pub mod scope;

pub use endings::{Ended, Endings};
