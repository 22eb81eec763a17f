//! The wall clock, which may be set back or differ between machines, and times between its timestamps.

use std::cell::Cell;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

thread_local! {
    /// The time and the instant at which the wall clock of this thread began to follow tokio's clock.
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

/// Makes the wall clock of this thread follow tokio's clock from now on. For tests that pause tokio's clock:
/// otherwise only half of the times in a reconcile would stand still.
pub fn follow_tokio() {
    FOLLOWS_TOKIO.set(Some((Timestamp::now(), Instant::now())));
}

/// The time since then; nothing where it lies in the future.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(since)).ok()
}

/// The time until a deadline; none once it has passed.
pub fn until(deadline: Timestamp, now: Timestamp) -> Duration {
    elapsed(now, deadline).unwrap_or_default()
}

/// What is left of a time that began then; nothing once it is over. What began later than now has just begun:
/// a clock that was set back does not make the time longer.
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
