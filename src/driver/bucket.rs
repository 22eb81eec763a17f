//! A token bucket: calls per second.
//!
//! Not `governor`: tests can't advance its timers with tokio's paused clock.

use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// Lets `rate` callers pass per second, and `burst` callers together after a quiet time.
///
/// A caller takes its token immediately, on credit if need be, and waits until the bucket would have held the
/// token. So callers pass in their order of arrival, and a caller that stops waiting has used up its token.
#[derive(Debug)]
pub(super) struct TokenBucket {
    rate: f64,
    burst: f64,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    pub(super) fn new(rate: NonZeroU32, burst: NonZeroU32) -> Self {
        let burst = f64::from(burst.get());
        Self {
            rate: f64::from(rate.get()),
            burst,
            level: Mutex::new(Level {
                tokens: burst,
                at: Instant::now(),
            }),
        }
    }

    pub(super) async fn take(&self) {
        let wait = self.reserve(Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    fn reserve(&self, now: Instant) -> Duration {
        let mut level = self.level.lock();
        let gained = now.saturating_duration_since(level.at).as_secs_f64() * self.rate;
        level.tokens = (level.tokens + gained).min(self.burst) - 1.0;
        level.at = level.at.max(now);
        Duration::from_secs_f64((-level.tokens).max(0.0) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let bucket = TokenBucket::new(number(10), number(3));
        let start = Instant::now();
        for _ in 0..3 {
            bucket.take().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            bucket.take().await;
        }
        let took = start.elapsed();
        assert!(
            took >= Duration::from_secs(2) && took < Duration::from_millis(2100),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_time_earns_no_more_than_a_burst() {
        let bucket = TokenBucket::new(number(10), number(2));
        tokio::time::advance(Duration::from_hours(1)).await;
        let start = Instant::now();
        for _ in 0..3 {
            bucket.take().await;
        }
        assert!(start.elapsed() >= Duration::from_millis(99));
    }
}
