//! The time in the cloud.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 UTC: processes that share a cloud have to agree on the time,
/// so it is the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Instant(u64);

impl Instant {
    /// This many milliseconds after 1970 UTC.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970 UTC.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time as a calendar timestamp; `None` beyond the calendar's range.
    pub fn timestamp(self) -> Option<jiff::Timestamp> {
        jiff::Timestamp::from_millisecond(i64::try_from(self.0).ok()?).ok()
    }

    /// The instant this much later, to the millisecond.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// How long from `earlier` to this; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// The clock of the cloud.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Instant;
}

/// The time of the computer.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Instant {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Instant::from_millis(0).after(since)
    }
}

/// Follows the timers of tokio, starting at the wall time of its creation. In a test with paused time, boot,
/// deletion and latency pass without waiting.
#[derive(Clone, Copy, Debug)]
pub struct TimerClock {
    origin: Instant,
    started: tokio::time::Instant,
}

impl TimerClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self {
            origin: WallClock.now(),
            started: tokio::time::Instant::now(),
        }
    }
}

impl Clock for TimerClock {
    fn now(&self) -> Instant {
        self.origin.after(self.started.elapsed())
    }
}
