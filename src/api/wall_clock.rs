//! The wall clock, which may be set back or differ between hosts, and durations between its timestamps.

use std::cell::Cell;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

thread_local! {
    /// The time and instant when the wall clock of this thread started to follow tokio's clock.
    static FOLLOWS_TOKIO: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

/// Returns the current time.
pub fn now() -> Timestamp {
    FOLLOWS_TOKIO
        .get()
        .map_or_else(Timestamp::now, |(time, instant)| {
            time.checked_add(instant.elapsed()).unwrap_or(time)
        })
}

/// Makes the wall clock of this thread follow tokio's clock. For tests that pause tokio's clock: otherwise,
/// only half of the times in a reconcile would stand still.
pub fn follow_tokio() {
    FOLLOWS_TOKIO.set(Some((Timestamp::now(), Instant::now())));
}

/// Returns the time since `since`, and `None` if it is in the future.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(since)).ok()
}

/// Returns the time until a deadline, and zero once it has passed.
pub fn until(deadline: Timestamp, now: Timestamp) -> Duration {
    elapsed(now, deadline).unwrap_or_default()
}

/// Returns the rest of a period that started at `since`, and `None` once it has ended. A start in the future
/// counts as now, so that a clock that was set back does not lengthen the period.
pub fn remaining(since: Timestamp, time: Duration, now: Timestamp) -> Option<Duration> {
    let left = time.checked_sub(elapsed(since, now).unwrap_or_default())?;
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_time_longer() {
        let time = Duration::from_secs(10);
        assert_eq!(remaining(at(0), time, at(4)), Some(Duration::from_secs(6)));
        assert_eq!(remaining(at(0), time, at(10)), None);
        assert_eq!(remaining(at(50), time, at(0)), Some(time));
        assert_eq!(elapsed(at(50), at(0)), None);
        assert_eq!(elapsed(at(0), at(0)), Some(Duration::ZERO));
        assert_eq!(until(at(3), at(1)), Duration::from_secs(2));
        assert_eq!(until(at(1), at(3)), Duration::ZERO);
    }
}
