//! Drivers that are part of this program.
//!
//! Each implements [`crate::driver::Driver`]; `grpc` is built on [`crate::cmi`]. They know nothing else of this crate.

pub mod grpc;
pub mod simulated;
