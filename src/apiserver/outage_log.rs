//! How an outage of the API server is logged: when it begins, once a minute while it lasts, and its end.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often an outage that lasts is logged again.
const AGAIN: Duration = Duration::from_mins(1);
/// Without an error for so long, the next one begins another outage.
const OVER: Duration = Duration::from_mins(1);

/// What meets the same outage again and again. An outage makes errors at the pace at which requests are
/// repeated; a log that has them all hides what else happens.
#[derive(Debug)]
pub struct OutageLog(Mutex<Option<Outage>>);

#[derive(Clone, Copy, Debug)]
struct Outage {
    told: Instant,
    last: Instant,
    untold: u32,
}

impl Default for OutageLog {
    fn default() -> Self {
        Self::new()
    }
}

impl OutageLog {
    /// Nothing has failed yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Takes note of an error; how many were left out since the last one that was logged, where this one is
    /// to be logged as a warning.
    pub fn failed(&self) -> Option<Untold> {
        self.failed_at(Instant::now())
    }

    /// Takes note that a request was answered; whether that ends an outage.
    pub fn answered(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .is_some()
    }

    fn failed_at(&self, now: Instant) -> Option<Untold> {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = outage
            .as_mut()
            .filter(|outage| now.saturating_duration_since(outage.last) < OVER);
        let Some(lasting) = lasting else {
            *outage = Some(Outage {
                told: now,
                last: now,
                untold: 0,
            });
            return Some(Untold(0));
        };
        lasting.last = now;
        if now.saturating_duration_since(lasting.told) < AGAIN {
            lasting.untold = lasting.untold.saturating_add(1);
            return None;
        }
        lasting.told = now;
        Some(Untold(std::mem::take(&mut lasting.untold)))
    }
}

/// How many errors were left out of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untold(u32);

impl fmt::Display for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, ", {more} more times since the last line"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_when_it_begins_and_then_once_a_minute() {
        let (log, start) = (OutageLog::new(), Instant::now());
        let told: Vec<_> = (0..600)
            .filter_map(|tenth| {
                let told = log.failed_at(start + Duration::from_millis(tenth * 250))?;
                Some((tenth / 4, told.0))
            })
            .collect();
        assert_eq!(told, [(0, 0), (60, 239), (120, 239)]);
        assert!(log.answered());
        assert!(!log.answered(), "it is over");
        let next = start + Duration::from_secs(151);
        assert_eq!(log.failed_at(next), Some(Untold(0)));
        assert_eq!(
            log.failed_at(next + OVER),
            Some(Untold(0)),
            "long after, it is another"
        );
    }
}
