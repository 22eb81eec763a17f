//! Metrics and logs.

pub mod logs;
pub mod metrics;
