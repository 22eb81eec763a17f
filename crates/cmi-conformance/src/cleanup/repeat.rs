//! Repeats a call that must succeed.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::Instant;

use super::Cleanup;
use crate::backoff::Backoff;
use cmi_driver::{Code, Operation};

const FIRST_WAIT: Duration = Duration::from_millis(20);
/// How long a driver that is gone may take to come back.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The errors that are worth a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Temporary errors. A call that fails for another reason fails immediately.
    Transient,
    /// All errors except for permanent ones.
    Any,
}

impl Repeat {
    /// Whether an error with this code is worth a repeat.
    pub const fn is_worth_it(self, code: Code) -> bool {
        match code {
            Code::Canceled | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => true,
            // Credentials that the driver refuses once stay refused: the author forgot `secrets`.
            Code::NotFound
            | Code::InvalidArgument
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => false,
            // UNKNOWN is the answer to an exception in a driver's first draft: it does not pass.
            Code::Unknown
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Internal
            | Code::DataLoss
            | Code::Uninitialized => matches!(self, Self::Any),
        }
    }
}

impl Cleanup<'_> {
    /// Makes a call until it answers OK or a permanent error, until `limit` is over, or until the driver is
    /// considered lost. The error has the code, if there was an answer, and the reason.
    pub(super) async fn repeat<T, F>(
        &self,
        operation: Operation,
        repeat: Repeat,
        call: impl Fn() -> F,
    ) -> Result<T, (Option<Code>, String)>
    where
        F: Future<Output = cmi_driver::Result<T>>,
    {
        if self.liveness.is_lost() {
            return Err((None, "the driver can't be reached any more".to_owned()));
        }
        // A driver that is gone gets the shorter limit, so that the cleanup does not wait the full time for
        // each machine.
        let limit = if self.liveness.gone_since().is_some() {
            self.limit.min(RECOVERY_TIMEOUT)
        } else {
            self.limit
        };
        let until = Instant::now() + limit;
        let mut backoff = Backoff::new(FIRST_WAIT, MAX_WAIT);
        loop {
            // A driver in this process may panic, and all other VMs have to be deleted anyway.
            let answer = tokio::time::timeout_at(until, AssertUnwindSafe(call()).catch_unwind()).await;
            let status = match answer {
                Ok(Ok(answer)) => {
                    self.liveness.observe(&answer);
                    match answer {
                        Ok(response) => return Ok(response),
                        Err(status) => status,
                    }
                }
                Ok(Err(_)) => return Err((None, format!("the driver panicked in {operation}"))),
                Err(_) => {
                    self.liveness.unreachable();
                    return Err((None, format!("{operation} did not end within {limit:?}")));
                }
            };
            let code = status.code();
            let wait = backoff.next_wait();
            let is_over = self.liveness.is_lost() || Instant::now() + wait >= until;
            if is_over || !repeat.is_worth_it(code) {
                return Err((Some(code), format!("{operation} answered {status}")));
            }
            tokio::time::sleep(wait).await;
        }
    }
}
