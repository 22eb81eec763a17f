//! Repeats of a call that answers ABORTED: something is under way.

use std::time::Duration;

use tokio::time::Instant;

use crate::answer::{CaseResult, ensure};

/// The first wait. Later waits double here by hand, as those of a cleanup do: `Backoff` belongs to the
/// provider, which this crate does not know.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The end of the time for repeats, and the wait before the next one.
#[derive(Debug)]
pub(super) struct Repeats {
    until: Instant,
    wait: Duration,
}

impl Repeats {
    /// Allows repeats until the limit is over.
    pub fn within(limit: Duration) -> Self {
        Self {
            until: Instant::now() + limit,
            wait: FIRST_WAIT,
        }
    }

    /// Waits before the next repeat.
    ///
    /// # Errors
    /// [`crate::CaseError::Failed`] when the time is over, with what is still not as it should be.
    pub async fn wait(&mut self, still: impl FnOnce() -> String) -> CaseResult {
        ensure(Instant::now() < self.until, still)?;
        tokio::time::sleep(self.wait).await;
        self.wait = self.wait.saturating_mul(2).min(MAX_WAIT);
        Ok(())
    }
}
