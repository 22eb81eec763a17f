//! Whether a driver answers: the probes.

use std::mem::{discriminant, replace};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::capability_cache::CapabilityCache;
use super::driver_client::DriverClient;
use cmi_driver::{Code, Readiness, Result, Status};

/// The interval of the probes of a driver that answers.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The interval of the probes of a driver that does not answer, or after a call that hints at a change.
const SHORT_PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Whether a driver answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// The driver was not asked yet, or its probes have not agreed for long enough.
    Unsettled,
    /// The driver is ready to serve.
    Reachable,
    /// The driver is not ready, for this reason.
    Unreachable(Arc<str>),
}

/// Whether a driver answers, debounced.
pub type StableReachability = Reachability;

/// Probes a driver, and fetches its capabilities when it answers.
#[derive(Debug)]
pub(super) struct Prober {
    client: DriverClient,
    capabilities: Arc<CapabilityCache>,
    reachability: watch::Sender<Reachability>,
    stable: watch::Sender<StableReachability>,
    probe_soon: Notify,
}

impl Prober {
    pub(super) fn new(client: DriverClient, capabilities: Arc<CapabilityCache>) -> Self {
        Self {
            client,
            capabilities,
            reachability: watch::Sender::new(Reachability::Unsettled),
            stable: watch::Sender::new(StableReachability::Unsettled),
            probe_soon: Notify::new(),
        }
    }

    pub(super) fn reachability(&self) -> watch::Receiver<Reachability> {
        self.reachability.subscribe()
    }

    pub(super) fn stable_reachability(&self) -> watch::Receiver<StableReachability> {
        self.stable.subscribe()
    }

    /// Records the answer to a call as a hint, which triggers a probe. The probe decides, so that single
    /// calls do not change the state back and forth.
    pub(super) fn record_answer<T>(&self, answer: &Result<T>) {
        let answers = match answer.as_ref().map_err(Status::code) {
            Err(code) if code.is_outage() => false,
            // A call that was cancelled or failed for an unknown reason proves nothing about the driver.
            Err(Code::Canceled | Code::Unknown) => return,
            Ok(_) | Err(_) => true,
        };
        let was = *self.reachability.borrow() == Reachability::Reachable;
        if answers != was || !self.capabilities.is_known() {
            self.probe_soon.notify_one();
        }
    }

    /// Probes forever, once this replica leads. The stable reachability changes when the probes have agreed
    /// for the whole grace period, for any reason. A failed probe or the restart of a plugin does not change
    /// it.
    pub(super) async fn run(&self, grace: Duration) {
        self.client.leadership.acquired().await;
        let mut generation = self.client.driver.connection_generation();
        let mut agreed = (discriminant(&Reachability::Unsettled), Instant::now());
        loop {
            let reachability = self.probe().await;
            let interval = match &reachability {
                Some(Reachability::Reachable) => PROBE_INTERVAL,
                Some(Reachability::Unsettled | Reachability::Unreachable(_)) | None => SHORT_PROBE_INTERVAL,
            };
            if let Some(reachability) = reachability {
                if reachability == Reachability::Reachable {
                    self.capabilities.refresh().await;
                }
                let now = self.client.driver.connection_generation();
                let is_another = replace(&mut generation, now) != now;
                if replace(&mut agreed.0, discriminant(&reachability)) != agreed.0 {
                    agreed.1 = Instant::now();
                }
                if agreed.1.elapsed() >= grace {
                    self.settle(&reachability);
                }
                self.announce(reachability, is_another);
            }
            tokio::select! {
                () = sleep(interval) => {}
                () = self.probe_soon.notified() => sleep(SHORT_PROBE_INTERVAL).await,
            }
        }
    }

    /// Returns the result of a probe; `None` when this replica may not ask.
    async fn probe(&self) -> Option<Reachability> {
        match Readiness::from_probe(self.client.probe().await) {
            Ok(Readiness::Ready) => Some(Reachability::Reachable),
            Ok(Readiness::NotReady) => Some(Reachability::Unreachable("the driver is still starting".into())),
            Err(_) if !self.client.leadership.is_held() => None,
            Err(status) => Some(Reachability::Unreachable(status.message().into())),
        }
    }

    /// Stores a lasting state. The reason of an outage stays as it was first.
    fn settle(&self, lasting: &Reachability) {
        self.stable.send_if_modified(|stable| {
            let is_news = discriminant(stable) != discriminant(lasting);
            if is_news {
                stable.clone_from(lasting);
            }
            is_news
        });
    }

    fn announce(&self, reachability: Reachability, is_another: bool) {
        let driver = &self.client.name;
        let is_reachable = reachability == Reachability::Reachable;
        self.client.metrics.driver_reachable(driver, is_reachable);
        self.reachability.send_if_modified(|last| {
            if *last == reachability {
                return is_another;
            }
            match &reachability {
                Reachability::Unsettled | Reachability::Reachable => {
                    tracing::info!(%driver, "driver is reachable");
                }
                Reachability::Unreachable(why) => {
                    tracing::warn!(%driver, %why, "cannot reach the driver");
                }
            }
            *last = reachability;
            true
        });
    }
}
