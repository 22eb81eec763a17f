//! Whether a driver answers, and what it implements: probes, and what it declared last, which outlives its
//! connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tokio::time::{Instant, sleep};

use super::driver_client::DriverClient;
use super::waker::Waker;
use cmi_driver::{
    Capabilities, Code, DeclaredCapabilities, PluginInfo, Readiness, Result, SpecSchema, Status,
};

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
    /// What the driver declared last, which may have been lost since: see [`Prober::is_current`].
    declared: RwLock<Option<DeclaredCapabilities>>,
    asking: Mutex<Option<LastFailure>>,
    /// The waiters for the answer that another caller asked for.
    waiting: parking_lot::Mutex<HashMap<Arc<str>, Waker>>,
    reachability: watch::Sender<Reachability>,
    hints: Notify,
}

/// The right to ask the driver what it implements, and how that failed the last time. When the question ends,
/// in whatever way, the waiters for the answer are woken.
struct Question<'a> {
    // Dropped before a waiter is woken: it has to find that it may ask.
    last_failure: MutexGuard<'a, Option<LastFailure>>,
    _wakes: WakesWaiters<'a>,
}

struct WakesWaiters<'a>(&'a Prober);

impl Drop for WakesWaiters<'_> {
    fn drop(&mut self) {
        let woken = std::mem::take(&mut *self.0.waiting.lock());
        woken.into_values().for_each(Waker::wake);
    }
}

/// The driver could not say what it implements.
#[derive(Debug)]
struct LastFailure {
    at: Instant,
    message: String,
}

impl Prober {
    pub(super) fn new(client: DriverClient) -> Self {
        Self {
            client,
            declared: RwLock::default(),
            asking: Mutex::default(),
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
    ) -> Option<Result<DeclaredCapabilities>> {
        if let Some(current) = self.current() {
            return Some(Ok(current));
        }
        let question = self.try_begin_question(key, waker)?;
        let answer = self.answer(question).await;
        Some(answer.or_else(|status| self.declared().ok_or(status)))
    }

    /// What the driver implements; asks when it is not known, or when the driver may have become another.
    pub(super) async fn capabilities(&self) -> Result<DeclaredCapabilities> {
        match self.current() {
            Some(current) => Ok(current),
            None => self.answer(self.begin_question().await).await,
        }
    }

    /// The same of a driver that answers: that it could not say a moment ago is no reason to wait.
    async fn refresh(&self) {
        if self.current().is_some() {
            return;
        }
        let mut question = self.begin_question().await;
        *question.last_failure = None;
        if let Err(status) = self.answer(question).await {
            tracing::warn!(driver = %self.client.name, %status, "keeping the capabilities that were known");
        }
    }

    async fn begin_question(&self) -> Question<'_> {
        Question {
            last_failure: self.asking.lock().await,
            _wakes: WakesWaiters(self),
        }
    }

    /// The right to ask, or else a place among the waiters, which are woken when the one that asks is done.
    fn try_begin_question(&self, key: &str, waker: Waker) -> Option<Question<'_>> {
        // Held over both steps: a caller that is done wakes only then, and finds the waker.
        let mut waiting = self.waiting.lock();
        if let Ok(last_failure) = self.asking.try_lock() {
            return Some(Question {
                last_failure,
                _wakes: WakesWaiters(self),
            });
        }
        waiting.insert(key.into(), waker);
        None
    }

    /// What the caller before was answered, if that still holds; else what the driver says.
    async fn answer(&self, mut question: Question<'_>) -> Result<DeclaredCapabilities> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some(failure) = question.last_failure.as_ref().filter(|last| last.is_shared()) {
            return Err(failure.status());
        }
        match self.client.get_plugin_capabilities().await {
            Ok(declared) => {
                self.report(&declared.capabilities).await;
                *self.declared.write() = Some(declared.clone());
                *question.last_failure = None;
                Ok(declared)
            }
            // The driver was not asked, which says nothing about the next time.
            Err(status) if status.code() == Code::Canceled => Err(status),
            Err(status) => Err(question.last_failure.insert(LastFailure::of(&status)).status()),
        }
    }

    /// Says in metric and log what the driver is. Nothing depends on it.
    async fn report(&self, capabilities: &Capabilities) {
        let driver = &self.client.name;
        match self.client.get_plugin_info().await {
            Ok(PluginInfo { name, version, .. }) => {
                tracing::info!(%driver, name, version, "the driver has said what it can do");
                self.client.metrics.driver_info(driver, &name, &version);
            }
            Err(status) => tracing::warn!(%driver, %status, "the driver does not say what it is"),
        }
        let schema = capabilities.provider_spec_schema.as_ref();
        if let Some(Err(error)) = schema.map(SpecSchema::validate) {
            tracing::warn!(
                %driver, %error,
                "the driver's schema can't be used: provider specs are left for the driver to check"
            );
        }
    }

    /// What the driver declared last, of which nothing may hold any more.
    pub(super) fn declared(&self) -> Option<DeclaredCapabilities> {
        self.declared.read().clone()
    }

    /// Whether the driver is still the one that declared this.
    pub(super) fn is_current(&self, declared: &DeclaredCapabilities) -> bool {
        declared.connection_generation == self.client.driver.connection_generation()
    }

    fn current(&self) -> Option<DeclaredCapabilities> {
        self.declared().filter(|declared| self.is_current(declared))
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
    fn of(status: &Status) -> Self {
        let (code, said) = (status.code(), status.message());
        Self {
            at: Instant::now(),
            message: format!("the driver could not be asked what it implements: {code}: {said}"),
        }
    }

    fn is_shared(&self) -> bool {
        self.at.elapsed() < FAILURE_SHARED
    }

    /// The code of another call must not be taken for the answer to the one that waits: NOT_FOUND would lead
    /// to a create.
    fn status(&self) -> Status {
        Status::new(Code::Unavailable, self.message.clone())
    }
}
