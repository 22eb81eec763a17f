//! Whether a driver answers, and what it implements: probes, and what it declared last, which outlives its
//! connection.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tokio::time::{Instant, sleep};

use super::driver_client::DriverClient;
use super::waker::Waker;
use crate::leadership::is_not_leader;
use cmi_driver::{Capabilities, Code, PluginInfo, Readiness, Result, SpecSchema, Status};

/// Between two probes of a driver that answers.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Between two probes of a driver that does not, or when a call hints at a change.
const SHORT_PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// A caller that asks what a driver implements this soon after it could not say gets the same answer: or else
/// each machine of a driver that hangs would wait for its own answer.
const FAILURE_SHARED: Duration = Duration::from_secs(3);

/// Whether a driver answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// Not asked yet.
    Unknown,
    /// It is ready to serve.
    Reachable,
    /// It is not, for this reason.
    Unreachable(Arc<str>),
}

/// What is known of a driver, and the means to ask it.
#[derive(Debug)]
pub(super) struct Prober {
    client: DriverClient,
    cached: RwLock<Option<CachedCapabilities>>,
    fetching: Mutex<()>,
    failure: parking_lot::Mutex<Option<LastFailure>>,
    waiting: parking_lot::Mutex<Waiting>,
    reachability: watch::Sender<Reachability>,
    hints: Notify,
}

/// What a driver said of itself. The driver may have been lost since: see [`Prober::is_current`].
#[derive(Clone, Debug)]
pub(super) struct CachedCapabilities {
    pub capabilities: Arc<Capabilities>,
    /// The driver's, when it was asked.
    connection_generation: u64,
}

/// The waiters for the answer that another caller asked for.
#[derive(Default)]
struct Waiting(HashMap<Arc<str>, Waker>);

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiting").field(&self.0.len()).finish()
    }
}

/// The right to ask the driver what it implements. The waiters for the answer are woken when
/// it ends, in whatever way.
struct FetchGuard<'a> {
    prober: &'a Prober,
    right: Option<MutexGuard<'a, ()>>,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        // Before a waiter is woken: it has to find that it may ask.
        drop(self.right.take());
        let woken = std::mem::take(&mut *self.prober.waiting.lock()).0;
        woken.into_values().for_each(Waker::wake);
    }
}

/// The last time that the driver could not be asked.
#[derive(Debug)]
struct LastFailure {
    at: Instant,
    code: Code,
    message: String,
}

impl Prober {
    pub(super) fn new(client: DriverClient) -> Self {
        Self {
            client,
            cached: RwLock::new(None),
            fetching: Mutex::new(()),
            failure: parking_lot::Mutex::default(),
            waiting: parking_lot::Mutex::default(),
            reachability: watch::Sender::new(Reachability::Unknown),
            hints: Notify::new(),
        }
    }

    /// What the driver says of itself, or said before it was lost, where it can't be asked. One caller asks
    /// it, where it has to be asked; `None` for all others, and `waker` runs when there is an answer, so that
    /// no caller waits here for the question of another.
    pub(super) async fn try_capabilities(
        &self,
        key: &str,
        waker: Waker,
    ) -> Option<Result<CachedCapabilities>> {
        if let Some(current) = self.current() {
            return Some(Ok(current));
        }
        let guard = self.try_lock_fetch(key, waker)?;
        let answer = self.answer(&guard).await;
        Some(answer.or_else(|status| self.cached().ok_or(status)))
    }

    /// What the driver implements; asks when it is not known, or when the driver may have become another.
    pub(super) async fn capabilities(&self) -> Result<Arc<Capabilities>> {
        if let Some(current) = self.current() {
            return Ok(current.capabilities);
        }
        let guard = self.lock_fetch().await;
        Ok(self.answer(&guard).await?.capabilities)
    }

    /// Asks where it is not known what the driver implements, or the driver may have become another.
    async fn refresh(&self) {
        if self.current().is_some() {
            return;
        }
        let guard = self.lock_fetch().await;
        if self.current().is_none()
            && let Err(status) = self.fetch(&guard).await
        {
            tracing::warn!(driver = %self.client.name, %status, "keeping the capabilities that were known");
        }
    }

    async fn lock_fetch(&self) -> FetchGuard<'_> {
        FetchGuard {
            right: Some(self.fetching.lock().await),
            prober: self,
        }
    }

    /// The right to ask, or else a place among the waiters, which are woken when the one that asks is done.
    fn try_lock_fetch(&self, key: &str, waker: Waker) -> Option<FetchGuard<'_>> {
        // Held over both steps: a caller that is done wakes only then, and finds the waker.
        let mut waiting = self.waiting.lock();
        if let Ok(right) = self.fetching.try_lock() {
            return Some(FetchGuard {
                right: Some(right),
                prober: self,
            });
        }
        waiting.0.insert(key.into(), waker);
        None
    }

    /// What the caller before was answered, if that still holds; else what the driver says.
    async fn answer(&self, guard: &FetchGuard<'_>) -> Result<CachedCapabilities> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let shared = self
            .failure
            .lock()
            .as_ref()
            .filter(|failure| failure.is_shared())
            .map(LastFailure::status);
        match shared {
            Some(status) => Err(status),
            None => self.fetch(guard).await,
        }
    }

    async fn fetch(&self, _guard: &FetchGuard<'_>) -> Result<CachedCapabilities> {
        // Of a driver that becomes another meanwhile, it is asked again.
        let connection_generation = self.client.driver.connection_generation();
        let capabilities = match self.client.get_plugin_capabilities().await {
            Ok(capabilities) => capabilities,
            // The driver was not asked.
            Err(status) if is_not_leader(&status) => return Err(status),
            Err(status) => {
                let failure = LastFailure::of(&status);
                let status = failure.status();
                *self.failure.lock() = Some(failure);
                return Err(status);
            }
        };
        self.report_info().await;
        Ok(self.cache(capabilities, connection_generation))
    }

    /// Says in metric and log what the driver is. Nothing depends on it.
    async fn report_info(&self) {
        let driver = &self.client.name;
        match self.client.get_plugin_info().await {
            Ok(PluginInfo { name, version, .. }) => {
                tracing::info!(%driver, name, version, "the driver has said what it can do");
                self.client.metrics.driver_info(driver, &name, &version);
            }
            Err(status) => tracing::warn!(%driver, %status, "the driver does not say what it is"),
        }
    }

    fn cache(&self, capabilities: Capabilities, connection_generation: u64) -> CachedCapabilities {
        let schema = capabilities.provider_spec_schema.as_ref();
        if let Some(Err(error)) = schema.map(SpecSchema::validate) {
            tracing::warn!(
                driver = %self.client.name, %error,
                "the driver's schema can't be used: provider specs are left for the driver to check"
            );
        }
        let cached = CachedCapabilities {
            capabilities: Arc::new(capabilities),
            connection_generation,
        };
        *self.cached.write() = Some(cached.clone());
        cached
    }

    /// What the driver said last, of which nothing may hold any more.
    pub(super) fn cached(&self) -> Option<CachedCapabilities> {
        self.cached.read().clone()
    }

    /// Whether the driver is still the one that said this.
    pub(super) fn is_current(&self, cached: &CachedCapabilities) -> bool {
        cached.connection_generation == self.client.driver.connection_generation()
    }

    fn current(&self) -> Option<CachedCapabilities> {
        self.cached().filter(|cached| self.is_current(cached))
    }

    pub(super) fn reachability(&self) -> watch::Receiver<Reachability> {
        self.reachability.subscribe()
    }

    /// Records the answer to a call. It is a hint: the probe decides, so that a call that fails
    /// here and succeeds there does not turn the driver on and off.
    pub(super) fn record_answer<T>(&self, answer: &Result<T>) {
        let answers = match answer.as_ref().map_err(Status::code) {
            Err(code) if code.is_outage() => false,
            // Nothing is known of the driver from a call that was given up or failed for an unknown reason.
            Err(Code::Canceled | Code::Unknown) => return,
            Ok(_) | Err(_) => true,
        };
        let was = *self.reachability.borrow() == Reachability::Reachable;
        if answers != was || self.current().is_none() {
            self.hints.notify_one();
        }
    }

    /// Probes for ever, from when this replica is the leader.
    pub(super) async fn run(&self) {
        self.client.leadership.acquired().await;
        let mut generation = self.client.driver.connection_generation();
        loop {
            let reachability = self.probe().await;
            let interval = match &reachability {
                Some(Reachability::Reachable) => PROBE_INTERVAL,
                Some(Reachability::Unknown | Reachability::Unreachable(_)) | None => SHORT_PROBE_INTERVAL,
            };
            if let Some(reachability) = reachability {
                if reachability == Reachability::Reachable {
                    self.refresh().await;
                }
                let now = self.client.driver.connection_generation();
                let is_another = std::mem::replace(&mut generation, now) != now;
                self.announce(reachability, is_another);
            }
            tokio::select! {
                () = sleep(interval) => {}
                () = self.hints.notified() => sleep(SHORT_PROBE_INTERVAL).await,
            }
        }
    }

    /// What a probe says; nothing when this replica may not ask.
    async fn probe(&self) -> Option<Reachability> {
        match Readiness::from_probe(self.client.probe().await) {
            Ok(Readiness::Ready) => Some(Reachability::Reachable),
            Ok(Readiness::NotReady) => Some(Reachability::Unreachable(
                "the driver has not finished starting".into(),
            )),
            Err(_) if !self.client.leadership.is_held() => None,
            Err(status) => Some(Reachability::Unreachable(status.message().into())),
        }
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
                Reachability::Unknown | Reachability::Reachable => {
                    tracing::info!(%driver, "the driver can be reached");
                }
                Reachability::Unreachable(why) => {
                    tracing::warn!(%driver, %why, "the driver can't be reached");
                }
            }
            *last = reachability;
            true
        });
    }
}

impl LastFailure {
    /// The code of another call must not be taken for the answer to the one that waits: NOT_FOUND would lead
    /// to a create. So it is UNAVAILABLE, but for CANCELED, which says that the driver was not asked.
    fn of(status: &Status) -> Self {
        let (code, message) = match status.code() {
            Code::Canceled => (Code::Canceled, status.message().to_owned()),
            code => (
                Code::Unavailable,
                format!(
                    "the driver could not be asked what it implements: {code}: {}",
                    status.message()
                ),
            ),
        };
        Self {
            at: Instant::now(),
            code,
            message,
        }
    }

    /// That the driver was not asked says nothing about the next time.
    fn is_shared(&self) -> bool {
        self.code != Code::Canceled && self.at.elapsed() < FAILURE_SHARED
    }

    fn status(&self) -> Status {
        Status::new(self.code, self.message.clone())
    }
}
