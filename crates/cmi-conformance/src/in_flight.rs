//! The running calls: they show which call hangs, and during which call a driver went away.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The duration of a call before the first line about it.
const NOTICE_AFTER: Duration = Duration::from_secs(10);
/// The factor between the times of two lines about a call.
const TIMES: u32 = 3;

/// The running calls.
#[derive(Debug, Default)]
pub struct InFlight(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    all: BTreeMap<u64, InFlightCall>,
}

#[derive(Debug)]
struct InFlightCall {
    case: String,
    what: String,
    limit: Duration,
    since: Instant,
    notice: Duration,
}

/// A call that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The case that makes it.
    pub case: String,
    /// The call and its subject.
    pub what: String,
    /// How long the call has taken so far.
    pub time: Duration,
    /// How long the call may take in all.
    pub limit: Duration,
}

/// Ends the entry of a call.
#[derive(Debug)]
pub struct Entry {
    in_flight: Arc<InFlight>,
    number: u64,
}

impl InFlight {
    /// Records a call with this time limit, until the entry is dropped.
    pub fn begin(self: &Arc<Self>, case: &str, what: &str, limit: Duration) -> Entry {
        self.begin_with(case, what, limit, NOTICE_AFTER)
    }

    fn begin_with(self: &Arc<Self>, case: &str, what: &str, limit: Duration, notice: Duration) -> Entry {
        let mut calls = self.0.lock();
        let number = calls.next;
        calls.next += 1;
        let call = InFlightCall {
            case: case.to_owned(),
            what: what.to_owned(),
            limit,
            since: Instant::now(),
            notice,
        };
        let _new = calls.all.insert(number, call);
        Entry {
            in_flight: Arc::clone(self),
            number,
        }
    }

    /// Records a request that needs no line when it takes long, until the entry is dropped.
    pub fn keep(self: &Arc<Self>, case: &str, what: &str) -> Entry {
        self.begin_with(case, what, Duration::MAX, Duration::MAX)
    }

    /// Returns all running calls.
    pub fn all(&self) -> Vec<Waiting> {
        self.0.lock().all.values().map(InFlightCall::waiting).collect()
    }

    /// Returns the running calls of a case.
    pub fn of(&self, case: &str) -> Vec<Waiting> {
        let mut all = self.all();
        all.retain(|call| call.case == case);
        all
    }

    /// Returns the calls that have taken so long that a line about them is due.
    pub fn overdue(&self) -> Vec<Waiting> {
        let mut calls = self.0.lock();
        let overdue = calls
            .all
            .values_mut()
            .filter(|call| call.since.elapsed() >= call.notice);
        overdue
            .map(|call| {
                call.notice = call.notice.saturating_mul(TIMES);
                call.waiting()
            })
            .collect()
    }
}

impl InFlightCall {
    fn waiting(&self) -> Waiting {
        Waiting {
            case: self.case.clone(),
            what: self.what.clone(),
            time: self.since.elapsed(),
            limit: self.limit,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.in_flight.0.lock().all.remove(&self.number);
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` waits for {}", self.case, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_long_is_worth_a_line_now_and_then() {
        let in_flight = Arc::new(InFlight::default());
        let entry = in_flight.begin("create-again", "CreateMachine of machine `a`", NOTICE_AFTER * 9);
        assert!(in_flight.overdue().is_empty());
        tokio::time::advance(NOTICE_AFTER).await;
        let [waiting] = in_flight.overdue().try_into().unwrap();
        assert_eq!(
            (waiting.case.as_str(), waiting.time),
            ("create-again", NOTICE_AFTER)
        );
        assert!(in_flight.overdue().is_empty());
        tokio::time::advance(NOTICE_AFTER * 2).await;
        assert_eq!(in_flight.overdue().len(), 1);
        drop(entry);
        assert!(in_flight.all().is_empty());
    }
}
