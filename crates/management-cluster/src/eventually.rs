//! Waiting for a condition with a deadline.

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout_at};

use crate::run_folder::keep_all;

// Short at first, then a fiftieth of the time waited so far: a long wait would otherwise take thousands of
// probes, each with a request to an API server.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);
const WAITED_PER_POLL: u32 = 50;

/// Calls `probe` until it returns `Ok`, and returns its value. While the condition does not hold, the probe
/// returns an error with the observed state: `ensure!(ready == 3, "{ready} of 3 are ready")`.
///
/// # Errors
/// When the deadline passes. The error names the awaited condition and has the probe's last error. The logs
/// of the management cluster are then kept.
pub async fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let started = Instant::now();
    let expiry = started + deadline;
    let mut seen = None;
    while Instant::now() < expiry {
        match timeout_at(expiry, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => seen = Some(error),
            // The probe itself hung.
            Err(_) => break,
        }
        sleep((started.elapsed() / WAITED_PER_POLL).clamp(POLL_INTERVAL, MAX_POLL_INTERVAL)).await;
    }
    keep_all();
    let seen = seen.unwrap_or_else(|| anyhow!("the condition could not be examined in time"));
    Err(seen.context(format!("{what} was awaited for {deadline:?}")))
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[tokio::test]
    async fn an_expired_wait_reports_what_was_seen_last() {
        let mut seen = 0;
        let probe = async || -> Result<()> {
            seen += 1;
            bail!("seen {seen}")
        };
        let error = eventually(Duration::from_millis(120), "the impossible", probe).await;
        let error = format!("{:#}", error.expect_err("the condition never holds"));
        assert!(
            error.starts_with("the impossible was awaited for 120ms: seen "),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_hanging_probe_does_not_outlast_the_deadline() {
        let probe = async || std::future::pending::<Result<()>>().await;
        let started = Instant::now();
        assert!(
            eventually(Duration::from_millis(100), "nothing", probe)
                .await
                .is_err()
        );
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
