//! What is known of a configured driver, read once for a reconcile.

use std::sync::Arc;
use std::time::Duration;

use super::StableReachability;
use cmi_driver::{Capabilities, Status};

/// What is known of a configured driver.
#[derive(Debug)]
pub enum DriverState {
    /// It has said what it offers.
    Known(KnownDriver),
    /// It has never said, and can't be asked: nothing may be assumed.
    Unknown(Status),
    /// Another caller is asking it, or this replica may not.
    Pending,
}

/// A driver that has said what it offers.
#[derive(Debug)]
pub struct KnownDriver {
    /// The name it is configured under.
    pub name: Arc<str>,
    /// What it offers.
    pub capabilities: Arc<Capabilities>,
    /// Whether it has said so since the last handshake; else it may be another by now, and
    /// nothing is refused in its name.
    pub is_current: bool,
    /// How long a create may be under way before it is given up.
    pub create_timeout: Duration,
    /// The settle time of creates, see [`super::CREATE_SETTLE_TIME`].
    pub create_settle_time: Duration,
    /// Whether it can be reached, as its probes have said for a while.
    pub reachability: StableReachability,
}
