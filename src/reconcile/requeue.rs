//! When to reconcile an object again.

use std::time::Duration;

use crate::api::retry::{self, Call, Delay, LONG_WAIT};
use cmi_driver::Status;

/// When to reconcile an object again, unless it changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Only after a change.
    OnChange,
    /// After this long.
    After(Duration),
    /// After a back-off for a transient failure: 5 s, doubling up to 5 min, and at least this delay.
    BackOff(Duration),
}

impl Requeue {
    /// Decides on the requeue after a failed driver call, by the table of codes. As for machines, the delay
    /// that the driver asks for is a lower bound. If the default wait is long, the driver can ask for an
    /// earlier retry, which then follows the back-off.
    pub fn after_failure(call: Call, status: &Status) -> Self {
        let asked = retry::requested_delay(status);
        match retry::disposition(call, status.code()).delay() {
            Delay::UntilChange => Self::After(LONG_WAIT),
            Delay::Backoff => Self::BackOff(asked.unwrap_or_default()),
            Delay::Long => asked.map_or(Self::After(LONG_WAIT), Self::BackOff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmi_driver::Code;

    #[test]
    fn failures_for_operators_are_retried_later_than_transient_ones() {
        let after = |code| Requeue::after_failure(Call::ListZones, &Status::new(code, "no"));
        assert_eq!(after(Code::Unavailable), Requeue::BackOff(Duration::ZERO));
        assert_eq!(after(Code::PermissionDenied), Requeue::After(LONG_WAIT));
        assert_eq!(after(Code::InvalidArgument), Requeue::After(LONG_WAIT));
    }
}
