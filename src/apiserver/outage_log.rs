//! Logs an outage of the API server: its start, once a minute while it lasts, and its end. Repeated short
//! outages are logged at most once a minute, too.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The least time between two lines.
const AGAIN: Duration = Duration::from_mins(1);

/// The log of an outage that a caller runs into repeatedly. A line for each error would hide all other lines.
#[derive(Debug)]
pub struct OutageLog(Mutex<Lines>);

#[derive(Debug)]
struct Lines {
    last: Option<Instant>,
    unreported: u32,
    /// Whether the outage of the last line is still open.
    is_open: bool,
}

/// The outage that all requests share.
static UNANSWERED: OutageLog = OutageLog::new();

/// Logs that the API server gave no answer: one line for all callers, then one a minute.
pub fn log_unanswered(error: &(dyn std::error::Error + 'static)) {
    if let Some(unreported) = UNANSWERED.failed() {
        tracing::warn!(error, "the API server does not answer; retrying{unreported}");
    }
}

/// Logs that the API server answers again, if its outage was logged.
pub fn log_answered() {
    if UNANSWERED.answered() {
        tracing::info!("the API server answers again");
    }
}

/// Whether a request got no answer. An answer, such as an unknown kind or an unreadable object, concerns only
/// the caller.
pub const fn is_unanswered(error: &kube::Error) -> bool {
    matches!(
        error,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_)
    )
}

impl Default for OutageLog {
    fn default() -> Self {
        Self::new()
    }
}

impl OutageLog {
    /// A log without a failure.
    pub const fn new() -> Self {
        Self(Mutex::new(Lines {
            last: None,
            unreported: 0,
            is_open: false,
        }))
    }

    /// Records an error. If it should be logged as a warning, returns the number of errors since the last
    /// line.
    pub fn failed(&self) -> Option<Unreported> {
        self.failed_at(Instant::now())
    }

    /// Records that a request was answered, and returns whether that ends an outage that was logged.
    pub fn answered(&self) -> bool {
        std::mem::take(&mut self.0.lock().is_open)
    }

    fn failed_at(&self, now: Instant) -> Option<Unreported> {
        let mut lines = self.0.lock();
        let is_soon = |last| now.saturating_duration_since(last) < AGAIN;
        if lines.last.is_some_and(is_soon) {
            lines.unreported = lines.unreported.saturating_add(1);
            return None;
        }
        lines.last = Some(now);
        lines.is_open = true;
        Some(Unreported(std::mem::take(&mut lines.unreported)))
    }
}

/// The number of errors that were not logged.
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
        let next = start + Duration::from_secs(179);
        assert_eq!(log.failed_at(next), None, "it comes and goes");
        assert!(!log.answered(), "what was not logged does not end");
        assert!(log.failed_at(next + Duration::from_secs(1)).is_some());
        assert!(log.answered());
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
