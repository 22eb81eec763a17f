//! The Common Machine Interface on the wire: protobuf, and what the driver's types are there.

pub mod proto;
