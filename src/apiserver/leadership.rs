//! Whether this replica may act: a deadline on the monotonic clock that every driver call and write checks.
//!
//! A process does not learn that it was stopped, or that its timers fire late. So leadership is not a flag
//! that a task clears in time. It is an instant that is compared with now, immediately before each act. The
//! clock is monotonic: it continues while the process is stopped (SIGSTOP, a starved node) and does not jump
//! with the wall clock.

use std::error::Error;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A shared handle on this replica's leadership. Clones share the same leadership.
///
/// # Guarantees
/// * A process leads at most once: a lost leadership is never held again.
/// * [`Leadership::check`] is one comparison with the clock, so that it holds after any pause.
#[derive(Clone, Debug)]
pub struct Leadership {
    term: Arc<watch::Sender<Term>>,
}

/// This replica is not, or no longer, the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica is not the leader")]
pub struct NotLeader;

/// Whether an error or one of its sources is [`NotLeader`].
pub fn is_not_leader(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(<dyn Error>::is::<NotLeader>)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Term {
    /// Not yet the leader.
    Ahead,
    /// Leader without an election.
    Unlimited,
    /// Leader before this instant, unless it is renewed.
    Until(Instant),
    /// The leadership was lost or handed over.
    Over,
}

impl Leadership {
    /// Leadership that an elector grants by [`Leadership::renew`].
    pub fn elected() -> Self {
        Self::new(Term::Ahead)
    }

    /// Leadership without leader election: held until [`Leadership::resign`].
    pub fn unelected() -> Self {
        Self::new(Term::Unlimited)
    }

    fn new(term: Term) -> Self {
        Self {
            term: Arc::new(watch::Sender::new(term)),
        }
    }

    /// Whether this replica may act at this moment.
    pub fn is_held(&self) -> bool {
        self.term.borrow().is_held(Instant::now())
    }

    /// Returns an error when this replica may not act. Call it with `?` immediately before an act.
    ///
    /// # Errors
    /// [`NotLeader`] when this replica may not act.
    pub fn check(&self) -> Result<(), NotLeader> {
        if self.is_held() { Ok(()) } else { Err(NotLeader) }
    }

    /// Waits until this replica leads; forever if its leadership was lost.
    pub async fn acquired(&self) {
        let mut term = self.term.subscribe();
        // The sender lives in `self`, so that the wait can't fail.
        if term.wait_for(|term| term.is_held(Instant::now())).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until a leadership that was held is lost.
    pub async fn lost(&self) {
        let mut changes = self.term.subscribe();
        loop {
            let term = *changes.borrow_and_update();
            match term {
                Term::Over => return,
                Term::Until(deadline) => tokio::select! {
                    // A renewal that came in time counts, also when this is polled
                    // only after the old deadline.
                    biased;
                    _ = changes.changed() => {}
                    () = sleep_until(deadline) => return,
                },
                Term::Ahead | Term::Unlimited => {
                    if changes.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            }
        }
    }

    /// For the elector: the lease is valid until this instant, which is when the renewing request was *sent*
    /// plus the lease's duration. Has no effect after leadership was lost, since another replica may have led
    /// in between.
    pub fn renew(&self, until: Instant) {
        let now = Instant::now();
        self.term.send_modify(|term| {
            *term = match *term {
                Term::Ahead => Term::Until(until),
                Term::Until(deadline) if now < deadline => Term::Until(until.max(deadline)),
                Term::Until(_) | Term::Over => Term::Over,
                Term::Unlimited => Term::Unlimited,
            };
        });
    }

    /// Gives up the leadership: every later check fails.
    pub fn resign(&self) {
        self.term.send_replace(Term::Over);
    }
}

impl Term {
    fn is_held(self, now: Instant) -> bool {
        match self {
            Self::Unlimited => true,
            Self::Until(deadline) => now < deadline,
            Self::Ahead | Self::Over => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_by_itself_without_a_renewal() {
        let leadership = Leadership::elected();
        assert_eq!(leadership.check(), Err(NotLeader));
        leadership.renew(Instant::now() + LEASE);
        advance(Duration::from_millis(14_999)).await;
        assert_eq!(leadership.check(), Ok(()));
        advance(Duration::from_millis(1)).await;
        assert_eq!(leadership.check(), Err(NotLeader));
        assert!(leadership.lost().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_leadership_that_was_lost_is_not_revived_by_a_late_renewal() {
        let leadership = Leadership::elected();
        leadership.renew(Instant::now() + LEASE);
        advance(LEASE).await;
        leadership.renew(Instant::now() + LEASE);
        assert!(!leadership.is_held());
        assert!(leadership.acquired().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_in_time_wakes_no_task_that_waits_for_the_loss() {
        let leadership = Leadership::elected();
        leadership.renew(Instant::now() + LEASE);
        let lost = leadership.lost();
        tokio::pin!(lost);
        assert!(lost.as_mut().now_or_never().is_none());
        advance(LEASE / 2).await;
        leadership.renew(Instant::now() + LEASE);
        advance(LEASE / 2 + Duration::from_secs(1)).await;
        assert!(lost.as_mut().now_or_never().is_none());
        advance(LEASE).await;
        assert!(lost.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_replica_is_woken_when_it_becomes_the_leader() {
        let leadership = Leadership::elected();
        let waiting = tokio::spawn({
            let leadership = leadership.clone();
            async move { leadership.acquired().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        leadership.renew(Instant::now() + LEASE);
        waiting.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_election_leadership_is_held_until_it_is_given_up() {
        let leadership = Leadership::unelected();
        advance(Duration::from_hours(24)).await;
        assert!(leadership.is_held());
        leadership.resign();
        assert!(!leadership.is_held());
        assert!(leadership.lost().now_or_never().is_some());
    }
}
