//! Whether a driver answers, and its capabilities: the probes, and the last declared capabilities, which
//! outlive the connection.

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

/// The interval of the probes of a driver that answers.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The interval of the probes of a driver that does not answer, or after a call that hints at a change.
const SHORT_PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a failure to fetch the capabilities is shared with later callers: otherwise each machine of a
/// driver that hangs would wait for an answer of its own.
const FAILURE_SHARED: Duration = Duration::from_secs(3);

/// Whether a driver answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// The driver was not asked yet.
    Unknown,
    /// The driver is ready to serve.
    Reachable,
    /// The driver is not ready, for this reason.
    Unreachable(Arc<str>),
}

/// What is known of a driver, and the means to ask it.
#[derive(Debug)]
pub(super) struct Prober {
    client: DriverClient,
    /// The capabilities that the driver declared last. The driver may have been lost since: see
    /// [`Prober::is_current`].
    declared: RwLock<Option<DeclaredCapabilities>>,
    asking: Mutex<Option<LastFailure>>,
    /// The waiters for an answer that another caller has asked for.
    waiting: parking_lot::Mutex<HashMap<Arc<str>, Waker>>,
    reachability: watch::Sender<Reachability>,
    hints: Notify,
}

/// The right to fetch the driver's capabilities, and the last failure to do so. When the question ends, in
/// whatever way, the waiters for the answer are woken.
struct Question<'a> {
    // Dropped before the waiters are woken: a waiter has to find that it may ask.
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

/// A failure to fetch the driver's capabilities.
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

    /// Returns the driver's capabilities, or the last declared ones where the driver was lost and can't be
    /// asked. Where the driver has to be asked, one caller asks it; all others get `None`, and `waker` runs
    /// when there is an answer, so that no caller waits here for the question of another.
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

    /// Returns the driver's capabilities, and fetches them when they are unknown, or when the driver may be
    /// another one.
    pub(super) async fn capabilities(&self) -> Result<DeclaredCapabilities> {
        match self.current() {
            Some(current) => Ok(current),
            None => self.answer(self.begin_question().await).await,
        }
    }

    /// Does the same for a driver that answers: a failure a moment ago is no reason to wait.
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

    /// Returns the right to ask, or queues the caller, which is woken when the one that asks is done.
    fn try_begin_question(&self, key: &str, waker: Waker) -> Option<Question<'_>> {
        // Held over both steps: a caller that is done wakes the waiters only after that, and finds the waker.
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

    /// Returns the answer that the previous caller got, if it still holds; otherwise asks the driver.
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

    /// Reports the driver's name and version in metric and log. Nothing depends on it.
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

    /// Returns what the driver declared last, which may no longer hold.
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

    /// Records the answer to a call as a hint: the probe decides, so that a call that fails here and a call
    /// that succeeds there do not turn the driver on and off.
    pub(super) fn record_answer<T>(&self, answer: &Result<T>) {
        let answers = match answer.as_ref().map_err(Status::code) {
            Err(code) if code.is_outage() => false,
            // A call that was given up or failed for an unknown reason says nothing about the driver.
            Err(Code::Canceled | Code::Unknown) => return,
            Ok(_) | Err(_) => true,
        };
        let was = *self.reachability.borrow() == Reachability::Reachable;
        if answers != was || self.current().is_none() {
            self.hints.notify_one();
        }
    }

    /// Probes for ever, once this replica is the leader.
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

    /// Returns the result of a probe; nothing when this replica may not ask.
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

    /// Returns UNAVAILABLE: the code of the failed call must not be taken for the answer to the call that
    /// waits, since NOT_FOUND would lead to a create.
    fn status(&self) -> Status {
        Status::new(Code::Unavailable, self.message.clone())
    }
}
