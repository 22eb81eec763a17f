//! Watches every call of a case, to name a call that hangs, and a call that the driver did not survive.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use super::TestContext;
use crate::answer::{CaseError, CaseResult};
use crate::answer_checker::SERVES_AGAIN_RULES;
use crate::hooks::Hook;
use crate::in_flight::Entry;
use crate::liveness::Outage;
use crate::wire::PROBE;
use cmi_driver::Code;

/// The longest time for a driver to answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The name of the request when the driver went away in one of several: the summary lists them in one line.
const ONE_OF_SEVERAL: &str = "one of the requests that a line at the end names";
/// The polling interval for a driver that is gone.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

impl TestContext {
    /// Returns the outcome of a call, within the limit.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when it hangs; [`CaseError::Skipped`] when the run is to end early;
    /// [`CaseError::Inconclusive`] when the driver is gone.
    pub async fn watched<T>(&self, what: &str, call: impl Future<Output = T>) -> CaseResult<T> {
        self.goes_on()?;
        self.is_back().await?;
        let limit = self.shared.config.call_limit();
        let entry = self.waits_for(what, limit);
        let outcome = tokio::time::timeout(limit, call).await;
        if let Ok(outcome) = outcome {
            drop(entry);
            return Ok(outcome);
        }
        let hang = format!("{what} did not answer within {} s", limit.as_secs_f64());
        self.is_alive(
            what,
            &format!("{hang}, and Probe does not answer either: the driver hangs"),
        )
        .await?;
        Err(CaseError::Failed(hang))
    }

    /// Ends the case if a call failed because the driver itself is gone, and not its back end. The first case
    /// that notices fails with the request if no other case had a running request. Otherwise, any of the
    /// requests may be the cause, and all are named. Every other case is inconclusive.
    ///
    /// # Errors
    /// [`CaseError::DriverGone`] for the first, if it was alone; [`CaseError::Inconclusive`] for any other.
    pub async fn is_alive(&self, what: &str, otherwise: &str) -> CaseResult {
        let in_flight = &self.shared.in_flight;
        // Another case that checks at the same moment must see this request as running, too.
        let _doubted = in_flight.keep(&self.case, what);
        let mut all = in_flight.all();
        if self.shows_life().await {
            return Ok(());
        }
        all.extend(in_flight.all());
        let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|other| other.case == self.case);
        let since = if others.is_empty() { what } else { ONE_OF_SEVERAL };
        let (since, is_first) = self.shared.liveness.died(since);
        if !is_first {
            return Err(gone(&since));
        }
        if !others.is_empty() {
            let candidates = own.into_iter().chain(others);
            let candidates = candidates.map(|call| format!("{} (`{}`)", call.what, call.case));
            self.shared.liveness.record(Outage {
                requests: candidates.collect(),
                reason: otherwise.to_owned(),
            });
            return Err(gone(&since));
        }
        let beside: BTreeSet<_> = own.into_iter().map(|call| call.what).collect();
        let beside: Vec<_> = beside.into_iter().filter(|other| other != what).collect();
        let beside = match beside.as_slice() {
            [] => String::new(),
            others => format!(
                "; or it was one of those that were under way beside it: {}",
                others.join(", ")
            ),
        };
        Err(CaseError::DriverGone(format!(
            "the driver is gone since {what}: {otherwise}{beside}"
        )))
    }

    /// Waits until a driver that is gone comes back or counts as lost.
    pub(super) async fn is_back(&self) -> CaseResult {
        while let Some(call) = self.shared.liveness.gone_since() {
            if self.shows_life().await {
                break;
            }
            self.shared.liveness.unreachable();
            if self.shared.stop.is_cancelled() {
                return Err(gone(&call));
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    }

    /// Whether the driver answers Probe, even with an error.
    async fn shows_life(&self) -> bool {
        if let Some(hook) = self.disturbance() {
            return self.may_be_there(hook).await;
        }
        let limit = self.shared.config.call_limit().min(PROBE_TIMEOUT);
        let probed = tokio::time::timeout(limit, self.shared.target.driver.probe()).await;
        match probed {
            Ok(answer) => {
                let is_there = !matches!(&answer, Err(status) if status.code() == Code::Unavailable);
                if is_there {
                    self.shared.liveness.observe(&answer);
                    self.shared.liveness.is_back();
                }
                is_there
            }
            Err(_) => false,
        }
    }

    /// Whether the driver may still be there under a fault: UNAVAILABLE may be the driver's answer, and
    /// silence the effect of the fault. Only a plugin that takes no connection, or breaks it, is gone.
    async fn may_be_there(&self, hook: Hook) -> bool {
        let wire = self.shared.target.wire().filter(|_| hook != Hook::Restart);
        let Some(wire) = wire else { return true };
        let probed = tokio::time::timeout(PROBE_TIMEOUT, wire.call(PROBE, &[], None)).await;
        !matches!(probed, Ok(Err(_)))
    }

    /// Records a wait until the entry is dropped. The wait is named when it takes long.
    pub fn waits_for(&self, what: &str, limit: Duration) -> Entry {
        self.shared.in_flight.begin(&self.case, what, limit)
    }

    /// Returns the error for a driver that failed to come back, in this case and in later cases. That breaks
    /// the rules about coming back, no matter which case restarted the driver.
    pub fn never_came_back(&self, since: &str, reason: &str) -> CaseError {
        let (call, is_first) = self.shared.liveness.died(since);
        if !is_first {
            return gone(&call);
        }
        let hint = if self.shared.target.name.starts_with("unix://") {
            "; does it remove the socket that it left?"
        } else {
            ""
        };
        let message = format!("the driver is gone since {since}: {reason}{hint}");
        self.shared
            .answer_checker
            .record(SERVES_AGAIN_RULES, message.clone());
        CaseError::Inconclusive(message)
    }
}

fn gone(call: &str) -> CaseError {
    CaseError::Inconclusive(format!("the driver is gone since {call}"))
}
