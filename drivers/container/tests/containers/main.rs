//! The driver as a plugin that makes real containers. `make test-container` runs these tests.

#![allow(clippy::unwrap_used)]

mod addresses;
mod boots;
mod conformance;
mod crashes;
mod hooks;
mod lab;
