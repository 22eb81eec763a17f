//! The Common Machine Interface on the wire: protobuf, and the conversions of the driver's types.
//!
//! [`cli::ProgramArgs`] is the whole program of a driver, and [`server`] serves one without it.
//! [`client::GrpcDriver`] calls a driver in another process.

#![deny(missing_docs)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod client;
mod codec;
pub mod connections;
pub mod convert;
pub mod endpoint;
pub mod memory;
pub mod proto;
mod redacted;
mod rpcs;
pub mod server;
pub mod trailers;

/// The most bytes of a message, for client and server: more than 10,000 machines with the longest names need.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
