//! At which rate permits are granted, and whether a queue takes long at it.

use std::time::Duration;

use tokio::time::Instant;

/// A queue that is served within this time is not worth a status write for each object in it.
const LONG_QUEUE: Duration = Duration::from_mins(5);
/// The window in which grants are counted.
pub(super) const RATE_WINDOW: Duration = Duration::from_secs(5);

/// How many permits were granted lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantRate {
    /// The begin of the window that is counted in `current`.
    since: Option<Instant>,
    current: u32,
    /// In the window before that.
    previous: u32,
}

impl GrantRate {
    pub(super) fn count(&mut self, now: Instant) {
        let age = self.age(now);
        if self.since.is_none() || age >= RATE_WINDOW {
            *self = Self {
                since: Some(now),
                current: 0,
                previous: if age < RATE_WINDOW * 2 { self.current } else { 0 },
            };
        }
        self.current = self.current.saturating_add(1);
    }

    fn age(&self, now: Instant) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Whether a queue of this length takes long at this rate.
    pub(super) fn is_slow(self, waiting: usize, now: Instant) -> bool {
        let age = self.age(now);
        let granted = self.current.saturating_add(self.previous);
        // The next grant would begin a window of its own.
        if granted == 0 || age >= RATE_WINDOW * 2 {
            return true;
        }
        let counted = if self.previous > 0 { age + RATE_WINDOW } else { age };
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        counted.as_secs_f64() * f64::from(waiting) > LONG_QUEUE.as_secs_f64() * f64::from(granted)
    }
}
