//! Reports to subscribers whether a driver is reachable, without short outages.

use std::mem::discriminant;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::{Reachability, StableReachability};

/// Keeps `stable` up to date forever. It changes when the probes have agreed for the whole grace period, for
/// any reason. A failed probe or the restart of a plugin does not change it.
pub(super) async fn debounce(
    mut probed: watch::Receiver<Reachability>,
    stable: &watch::Sender<StableReachability>,
    grace: Duration,
) {
    loop {
        let is_news = |seen: &Reachability| {
            *seen != Reachability::Unsettled && discriminant(seen) != discriminant(&*stable.borrow())
        };
        let Ok(seen) = probed.wait_for(is_news).await.map(|seen| discriminant(&*seen)) else {
            return;
        };
        let lasted = timeout(grace, probed.wait_for(|now| discriminant(now) != seen)).await;
        match lasted.map(|changed| changed.is_ok()) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_elapsed) => {
                stable.send_replace(probed.borrow().clone());
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
    async fn only_lasting_outages_and_recoveries_are_reported() {
        let probed = watch::Sender::new(Reachability::Unsettled);
        let stable = watch::Sender::new(StableReachability::Unsettled);
        let debounced = stable.subscribe();
        let news = probed.subscribe();
        tokio::spawn(async move { debounce(news, &stable, GRACE).await });
        assert_eq!(after(&debounced, GRACE * 2).await, StableReachability::Unsettled);

        probed.send_replace(Reachability::Reachable);
        assert_eq!(after(&debounced, GRACE / 2).await, StableReachability::Unsettled);
        assert_eq!(after(&debounced, GRACE).await, StableReachability::Reachable);

        // A plugin that restarts repeatedly.
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
