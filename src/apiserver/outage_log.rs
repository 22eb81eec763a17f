//! How an outage of the API server is logged: when it begins, once a minute while it lasts, and its end.
//! Where requests fail and are answered alternately, that is one outage.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often an outage that lasts is logged again.
const AGAIN: Duration = Duration::from_mins(1);
/// How long there has to be no error for the next one to begin another outage, whether or not anything was
/// answered.
const OVER: Duration = Duration::from_mins(1);
/// The same where requests were answered since. It bounds how often an API server that comes and goes is
/// logged.
const OVER_ONCE_ANSWERED: Duration = Duration::from_secs(10);

/// The log of an outage that a caller meets again and again. An outage makes errors at the rate at which
/// requests are repeated; a log that has them all hides what else happens.
#[derive(Debug)]
pub struct OutageLog(Mutex<Option<Outage>>);

/// The outage that all requests share.
static UNANSWERED: OutageLog = OutageLog::new();

/// Logs that the API server gave no answer: one line for all callers, and then one a minute.
pub fn log_unanswered(error: &(dyn std::error::Error + 'static)) {
    if let Some(unreported) = UNANSWERED.failed() {
        tracing::warn!(error, "the API server does not answer; retrying{unreported}");
    }
}

/// Logs that the API server answers again, where it was logged that it does not.
pub fn log_answered() {
    if UNANSWERED.answered() {
        tracing::info!("the API server answers again");
    }
}

/// Whether a request had no answer. An answer, such as that a kind is not served or an object can't be read,
/// concerns the caller alone.
pub const fn is_unanswered(error: &kube::Error) -> bool {
    matches!(
        error,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_)
    )
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    last_logged: Instant,
    last: Instant,
    unreported: u32,
    /// Whether a request was answered since.
    is_over: bool,
}

impl Outage {
    /// Whether an error is still of this outage.
    fn lasts(&self, now: Instant) -> bool {
        let over = if self.is_over { OVER_ONCE_ANSWERED } else { OVER };
        now.saturating_duration_since(self.last) < over
    }
}

impl Default for OutageLog {
    fn default() -> Self {
        Self::new()
    }
}

impl OutageLog {
    /// A log without a failure.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Records an error; where it is to be logged as a warning, returns how many were left out since the last
    /// one that was logged.
    pub fn failed(&self) -> Option<Unreported> {
        self.failed_at(Instant::now())
    }

    /// Records that a request was answered, and returns whether that ends an outage that was logged. Where
    /// one request is answered and another is not, again and again, that is one outage: its lines are no
    /// closer together.
    pub fn answered(&self) -> bool {
        let mut outage = self.0.lock();
        let ended = outage.as_mut().filter(|outage| !outage.is_over);
        ended.map(|outage| outage.is_over = true).is_some()
    }

    fn failed_at(&self, now: Instant) -> Option<Unreported> {
        let mut outage = self.0.lock();
        let lasting = outage.as_mut().filter(|outage| outage.lasts(now));
        let Some(lasting) = lasting else {
            *outage = Some(Outage {
                last_logged: now,
                last: now,
                unreported: 0,
                is_over: false,
            });
            return Some(Unreported(0));
        };
        lasting.last = now;
        if now.saturating_duration_since(lasting.last_logged) < AGAIN {
            lasting.unreported = lasting.unreported.saturating_add(1);
            return None;
        }
        lasting.last_logged = now;
        lasting.is_over = false;
        Some(Unreported(std::mem::take(&mut lasting.unreported)))
    }
}

/// How many errors were left out of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreported(u32);

impl fmt::Display for Unreported {
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
        let logged: Vec<_> = (0..600)
            .filter_map(|tenth| {
                let logged = log.failed_at(start + Duration::from_millis(tenth * 250))?;
                Some((tenth / 4, logged.0))
            })
            .collect();
        assert_eq!(logged, [(0, 0), (60, 239), (120, 239)]);
        assert!(log.answered());
        assert!(!log.answered(), "it is over");
        let next = start + Duration::from_secs(151);
        assert_eq!(log.failed_at(next), None, "it comes and goes");
        assert!(!log.answered(), "what was not logged does not end");
        assert_eq!(
            log.failed_at(next + OVER),
            Some(Unreported(0)),
            "long after, it is another"
        );
    }

    #[test]
    fn an_outage_that_begins_soon_after_another_is_logged_at_once() {
        let (log, start) = (OutageLog::new(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.failed_at(start), Some(Unreported(0)));
        assert_eq!(log.failed_at(after(15)), None, "it is repeated so seldom");
        assert!(log.answered());
        assert_eq!(log.failed_at(after(24)), None, "it comes and goes");
        assert_eq!(
            log.failed_at(after(34)),
            Some(Unreported(0)),
            "another, after ten seconds without an error"
        );
        assert!(log.answered(), "the end of what was logged is logged");
    }

    #[test]
    fn only_what_is_not_answered_is_an_outage_of_all() {
        let status = kube::core::Status::failure("no", "Forbidden").with_code(403);
        assert!(!is_unanswered(&kube::Error::Api(status.boxed())));
        let unreadable = serde_json::from_str::<bool>("1").unwrap_err();
        assert!(!is_unanswered(&kube::Error::SerdeError(unreadable)));
        assert!(is_unanswered(&kube::Error::Service("connection refused".into())));
    }
}
