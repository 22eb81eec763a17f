//! The rate at which permits are granted.

use std::time::Duration;

use tokio::time::Instant;

use super::priority::PerPriority;

/// The window in which grants are counted.
pub(super) const RATE_WINDOW: Duration = Duration::from_secs(5);

/// How many permits were granted lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantRate {
    /// The beginning of the window that is counted in `current`.
    since: Option<Instant>,
    current: u32,
    /// The permits granted in the window before.
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

    /// Permits per second; none where the next grant would begin a window of its own.
    pub(super) fn per_second(self, now: Instant) -> f64 {
        let age = self.age(now);
        if age >= RATE_WINDOW * 2 {
            return 0.0;
        }
        let granted = self.current.saturating_add(self.previous);
        let counted = if self.previous > 0 { age + RATE_WINDOW } else { age };
        f64::from(granted) / counted.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl PerPriority<GrantRate> {
    /// Permits per second of both priorities.
    pub(super) fn per_second(self, now: Instant) -> f64 {
        self.upkeep.per_second(now) + self.create.per_second(now)
    }
}
