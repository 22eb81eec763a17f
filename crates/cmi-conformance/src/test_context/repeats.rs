//! Repeats of a call that answers ABORTED: another operation is running.

use std::time::Duration;

use tokio::time::Instant;

use crate::answer::{CaseResult, ensure};
use crate::backoff::Backoff;

const FIRST_WAIT: Duration = Duration::from_millis(20);
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The end of the time for repeats, and the waits before them.
#[derive(Debug)]
pub(super) struct Repeats {
    until: Instant,
    backoff: Backoff,
}

impl Repeats {
    /// Allows repeats until the limit is over.
    pub fn within(limit: Duration) -> Self {
        Self {
            until: Instant::now() + limit,
            backoff: Backoff::new(FIRST_WAIT, MAX_WAIT),
        }
    }

    /// Waits before the next repeat.
    ///
    /// # Errors
    /// [`crate::CaseError::Failed`] when the time is over, with a description of the remaining problem.
    pub async fn wait(&mut self, still: impl FnOnce() -> String) -> CaseResult {
        ensure(Instant::now() < self.until, still)?;
        tokio::time::sleep(self.backoff.next_wait()).await;
        Ok(())
    }
}
