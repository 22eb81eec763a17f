//! How often each object of a controller has failed in a row.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::retry::MAX_REQUESTED_DELAY;

/// Failures further apart than this are not in a row, because no retry waits longer.
const FORGOTTEN_AFTER: Duration = MAX_REQUESTED_DELAY.saturating_mul(2);

/// Outdated entries are removed when the log has twice the entries that the last cleanup kept, plus this
/// number. So cleanups, which walk through all entries, stay rare.
const SPARE_FAILURES: usize = 1024;

/// The failures of the objects of a controller.
#[derive(Default)]
pub struct FailureLog(Mutex<FailuresByUid>);

#[derive(Default)]
struct FailuresByUid {
    all: HashMap<String, Failures>,
    /// The number of entries that triggers the next cleanup. Without it, deleted objects would stay in the
    /// log.
    sweep_at: usize,
}

/// Failures of one object in a row.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl FailureLog {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().all.is_empty()
    }

    fn count(&self, uid: &str, now: Instant) -> u32 {
        let is_recent = |failures: &Failures| now.saturating_duration_since(failures.last) < FORGOTTEN_AFTER;
        let mut known = self.0.lock();
        if known.all.len() >= known.sweep_at {
            known.all.retain(|_, failures| is_recent(failures));
            known.sweep_at = 2 * known.all.len() + SPARE_FAILURES;
        }
        let before = known.all.get(uid).filter(|failures| is_recent(failures));
        let count = before.map_or(1, |failures| failures.count.saturating_add(1));
        known.all.insert(uid.to_owned(), Failures { count, last: now });
        count
    }

    /// Counts a failure of the object with this UID, and returns how many there were in a row.
    pub fn count_failure(&self, uid: &str) -> u32 {
        self.count(uid, Instant::now())
    }

    /// Forgets the failures of an object.
    pub fn forget(&self, uid: &str) {
        let mut known = self.0.lock();
        known.all.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_an_object_that_is_not_heard_of_any_more_are_forgotten() {
        let (log, start) = (FailureLog::default(), Instant::now());
        for object in 0..3 * SPARE_FAILURES {
            log.count(&object.to_string(), start);
        }
        assert_eq!(log.count("0", start), 2);
        let later = start + FORGOTTEN_AFTER;
        assert_eq!(log.count("0", later), 1, "they are not in a row");
        for object in 0..8 * SPARE_FAILURES {
            log.count(&format!("later-{object}"), later);
        }
        let known = log.0.lock().all.len();
        assert_eq!(known, 8 * SPARE_FAILURES + 1);
    }
}
