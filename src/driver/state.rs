//! The state of a configured driver, read once for a reconcile.

use std::sync::Arc;
use std::time::Duration;

use super::StableReachability;
use cmi_driver::{Capabilities, Status};

/// The state of a configured driver.
#[derive(Debug)]
pub enum DriverState {
    /// The driver has declared its capabilities.
    Known(KnownDriver),
    /// The driver has never declared its capabilities, and can't be asked: nothing may be assumed.
    Unknown(Status),
    /// Another caller is asking the driver, or this replica may not ask.
    Pending,
}

/// A driver that has declared its capabilities.
#[derive(Debug)]
pub struct KnownDriver {
    /// The name that the driver is configured under.
    pub name: Arc<str>,
    /// The capabilities that it has declared.
    pub capabilities: Arc<Capabilities>,
    /// Whether the capabilities were declared since the last handshake. Otherwise the driver may have been
    /// replaced, and nothing is refused in its name.
    pub is_current: bool,
    /// The longest time from recording a create in its object until the call is abandoned: see
    /// [`super::ConfiguredDriver::give_up_in_time`].
    pub create_given_up_after: Duration,
    /// The settle time of creates, see [`super::CREATE_SETTLE_TIME`].
    pub create_settle_time: Duration,
    /// Whether the driver is reachable, debounced.
    pub reachability: StableReachability,
}
