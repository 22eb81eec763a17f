//! Whether a driver can be reached, for subscribers that need to know only of an outage that lasts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Reachability;

/// Whether a driver can be reached, debounced: the value changes when the probes have said the same for the
/// whole grace period. A probe that fails, or the restart of a plugin, leaves the value as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StableReachability {
    /// The probes have not said the same for long enough since this replica leads.
    Unsettled,
    /// The driver can be reached.
    Reachable,
    /// The driver can't be reached, for this reason.
    Unreachable(Arc<str>),
}

impl StableReachability {
    /// Returns the result of a probe; nothing before the first one.
    fn of(reachability: &Reachability) -> Option<Self> {
        match reachability {
            Reachability::Unknown => None,
            Reachability::Reachable => Some(Self::Reachable),
            Reachability::Unreachable(why) => Some(Self::Unreachable(Arc::clone(why))),
        }
    }

    /// Whether both say the same, for whatever reason.
    fn agrees(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Keeps `stable` up to date with what the probes say, for ever.
pub(super) async fn debounce(
    mut probed: watch::Receiver<Reachability>,
    stable: &watch::Sender<StableReachability>,
    grace: Duration,
) {
    loop {
        let is_news = |seen: &Reachability| {
            StableReachability::of(seen).is_some_and(|seen| !stable.borrow().agrees(&seen))
        };
        let Ok(seen) = probed.wait_for(is_news).await.map(|seen| seen.clone()) else {
            return;
        };
        let is_over = |now: &Reachability| std::mem::discriminant(now) != std::mem::discriminant(&seen);
        let changed = timeout(grace, probed.wait_for(is_over))
            .await
            .map(|changed| changed.is_ok());
        match changed {
            Ok(true) => {}
            Ok(false) => return,
            Err(_elapsed) => {
                let lasting = StableReachability::of(&probed.borrow());
                lasting
                    .into_iter()
                    .for_each(|lasting| drop(stable.send_replace(lasting)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    const GRACE: Duration = Duration::from_mins(1);

    fn lost(why: &str) -> Reachability {
        Reachability::Unreachable(why.into())
    }

    async fn after(stable: &watch::Receiver<StableReachability>, time: Duration) -> StableReachability {
        sleep(time).await;
        stable.borrow().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_and_its_end_are_reported_when_they_have_lasted_and_a_short_one_is_not() {
        let probed = watch::Sender::new(Reachability::Unknown);
        let stable = watch::Sender::new(StableReachability::Unsettled);
        let debounced = stable.subscribe();
        let news = probed.subscribe();
        tokio::spawn(async move { debounce(news, &stable, GRACE).await });
        assert_eq!(after(&debounced, GRACE * 2).await, StableReachability::Unsettled);

        probed.send_replace(Reachability::Reachable);
        assert_eq!(after(&debounced, GRACE / 2).await, StableReachability::Unsettled);
        assert_eq!(after(&debounced, GRACE).await, StableReachability::Reachable);

        // A plugin that restarts, and one that does so again and again.
        for _ in 0..10 {
            probed.send_replace(lost("restarting"));
            assert_eq!(
                after(&debounced, GRACE * 9 / 10).await,
                StableReachability::Reachable
            );
            probed.send_replace(Reachability::Reachable);
            assert_eq!(after(&debounced, GRACE / 10).await, StableReachability::Reachable);
        }

        probed.send_replace(lost("refused"));
        assert_eq!(after(&debounced, GRACE / 2).await, StableReachability::Reachable);
        probed.send_replace(lost("timed out"));
        assert_eq!(
            after(&debounced, GRACE * 6 / 10).await,
            StableReachability::Unreachable("timed out".into()),
            "for another reason it is the same outage"
        );
        probed.send_replace(lost("refused"));
        assert_eq!(
            after(&debounced, GRACE * 2).await,
            StableReachability::Unreachable("timed out".into()),
            "it is reported once"
        );

        probed.send_replace(Reachability::Reachable);
        assert!(matches!(
            after(&debounced, GRACE / 2).await,
            StableReachability::Unreachable(_)
        ));
        assert_eq!(after(&debounced, GRACE).await, StableReachability::Reachable);
        advance(GRACE).await;
    }
}
