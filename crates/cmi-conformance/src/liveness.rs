//! Whether the driver can still be reached. A run has to end when the driver is gone.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use cmi_driver::Code;

/// The longest outage that a driver may recover from.
const MAX_OUTAGE: Duration = Duration::from_secs(30);

/// An outage that began during one of several requests: nothing shows which one.
#[derive(Clone, Debug, Serialize)]
pub struct Outage {
    /// The running requests.
    pub requests: BTreeSet<String>,
    /// The reason to believe that the driver is gone.
    pub reason: String,
}

/// Whether the driver can still be reached. All cases share it: an observation of one case counts for all.
#[derive(Debug)]
pub struct Liveness {
    timeout: Duration,
    state: Mutex<State>,
    /// The request that the driver did not survive, until it answers again.
    gone: Mutex<Option<String>>,
    /// Each outage that began during one of several requests.
    outages: Mutex<Vec<Outage>>,
    /// Whether `gone` is set, readable without a lock: concurrent creates have to meet within microseconds.
    is_gone: AtomicBool,
    end: CancellationToken,
}

/// The state that the last calls showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The driver answers.
    Reachable,
    /// The driver has not answered since.
    UnreachableSince(Instant),
    /// The driver was away for too long.
    Lost,
}

impl Liveness {
    /// Creates the state for a run that `end` ends. A driver counts as lost when every observation failed for
    /// half a minute, or for the longest time of a call if that is less.
    pub fn new(call_limit: Duration, end: CancellationToken) -> Self {
        Self {
            timeout: call_limit.min(MAX_OUTAGE),
            state: Mutex::new(State::Reachable),
            gone: Mutex::default(),
            outages: Mutex::default(),
            is_gone: AtomicBool::new(false),
            end,
        }
    }

    /// Records the answer of a call, by the driver or for it.
    pub fn observe<T>(&self, answer: &cmi_driver::Result<T>) {
        match answer {
            Err(status) if status.code() == Code::Unavailable => self.unreachable(),
            Ok(_) | Err(_) => {
                let mut state = self.state.lock();
                if *state != State::Lost {
                    *state = State::Reachable;
                }
            }
        }
    }

    /// Records that the driver itself is gone, not its back end. Returns the request that the driver did not
    /// survive, and whether this is the first report.
    pub fn died(&self, call: &str) -> (String, bool) {
        let mut gone = self.gone.lock();
        let is_new = gone.is_none();
        let call = gone.get_or_insert_with(|| call.to_owned()).clone();
        self.is_gone.store(true, Ordering::SeqCst);
        drop(gone);
        self.unreachable();
        (call, is_new)
    }

    /// Records an outage that began during one of several requests.
    pub fn record(&self, outage: Outage) {
        let mut outages = self.outages.lock();
        outages.push(outage);
    }

    /// Returns each outage that began during one of several requests.
    pub fn outages(&self) -> Vec<Outage> {
        let outages = self.outages.lock();
        outages.clone()
    }

    /// Records that a probe has shown the driver to be back. The answer of an ordinary call does not show it:
    /// a call that was running when the driver went away may be answered late.
    pub fn is_back(&self) {
        let mut gone = self.gone.lock();
        *gone = None;
        self.is_gone.store(false, Ordering::SeqCst);
    }

    /// Whether the driver itself is gone.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    /// Returns the request that the driver did not survive, if it has not answered since.
    pub fn gone_since(&self) -> Option<String> {
        self.gone.lock().clone()
    }

    /// Records a call without an answer. An outage lasts from the first such call to the last, so that a
    /// pause between calls is no outage.
    pub fn unreachable(&self) {
        let mut state = self.state.lock();
        *state = match *state {
            State::Reachable => State::UnreachableSince(Instant::now()),
            State::UnreachableSince(since) if since.elapsed() >= self.timeout => {
                self.end.cancel();
                State::Lost
            }
            State::UnreachableSince(_) | State::Lost => *state,
        };
    }

    /// Whether the last observation of the driver was an answer.
    pub fn answers(&self) -> bool {
        let state = self.state.lock();
        *state == State::Reachable && self.gone.lock().is_none()
    }

    /// Whether the driver counts as lost.
    pub fn is_lost(&self) -> bool {
        *self.state.lock() == State::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmi_driver::Status;

    fn gone() -> cmi_driver::Result<()> {
        Err(Status::new(Code::Unavailable, "no server listens there"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_is_lost_after_lasting_failures_and_not_after_a_pause() {
        let end = CancellationToken::new();
        let liveness = Liveness::new(Duration::from_mins(5), end.clone());
        liveness.observe(&gone());
        tokio::time::advance(Duration::from_mins(2)).await;
        assert!(!liveness.is_lost());
        liveness.observe(&Ok(()));
        liveness.observe(&gone());
        tokio::time::advance(Duration::from_secs(29)).await;
        liveness.observe(&gone());
        assert!(!liveness.is_lost() && !end.is_cancelled());
        tokio::time::advance(Duration::from_secs(1)).await;
        liveness.observe(&gone());
        assert!(liveness.is_lost() && end.is_cancelled());
        liveness.observe(&Ok(()));
        assert!(liveness.is_lost(), "what was given up stays given up");
    }
}
