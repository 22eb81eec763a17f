//! Drivers that are part of this program.
//!
//! Each implements [`crate::driver::Driver`] and knows nothing else of this crate.

pub mod grpc;
pub mod simulated;
