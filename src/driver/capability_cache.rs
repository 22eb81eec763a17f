//! The capabilities that a driver declared last, which outlive the connection. At most one fetch runs at a
//! time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::driver_client::DriverClient;
use super::waker::Waker;
use cmi_driver::{Capabilities, Code, DeclaredCapabilities, PluginInfo, Result, SpecSchema, Status};

/// How long later callers share a failed fetch. Otherwise each machine of a hanging driver would wait for its
/// own answer.
const FAILURE_SHARED: Duration = Duration::from_secs(3);

/// The capabilities of a driver. Concurrent callers share one fetch (single flight).
#[derive(Debug)]
pub(super) struct CapabilityCache {
    client: DriverClient,
    /// The capabilities that the driver declared last. The driver may have been lost since: see
    /// [`CapabilityCache::is_current`].
    declared: RwLock<Option<DeclaredCapabilities>>,
    fetch_lock: Mutex<Option<LastFailure>>,
    /// The callers that wait for another caller's fetch.
    waiting: parking_lot::Mutex<HashMap<Arc<str>, Waker>>,
}

/// The right to fetch the driver's capabilities, and the last failure to do so. When it is dropped, the
/// waiters are woken.
struct Fetch<'a> {
    // Dropped before the waiters are woken: a waiter has to see that it may fetch.
    last_failure: MutexGuard<'a, Option<LastFailure>>,
    _wakes: WakesWaiters<'a>,
}

struct WakesWaiters<'a>(&'a CapabilityCache);

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

impl CapabilityCache {
    pub(super) fn new(client: DriverClient) -> Self {
        Self {
            client,
            declared: RwLock::default(),
            fetch_lock: Mutex::default(),
            waiting: parking_lot::Mutex::default(),
        }
    }

    /// Returns the driver's capabilities, or the last declared ones where the driver is lost and can't be
    /// asked. If they have to be fetched, one caller does so. All others get `None`, and `waker` runs when
    /// there is an answer, so that no caller waits here for another's fetch.
    pub(super) async fn try_get(&self, key: &str, waker: Waker) -> Option<Result<DeclaredCapabilities>> {
        if let Some(current) = self.current() {
            return Some(Ok(current));
        }
        let fetch = self.try_begin_fetch(key, waker)?;
        let answer = self.fetch(fetch).await;
        Some(answer.or_else(|status| self.declared().ok_or(status)))
    }

    /// Returns the driver's capabilities. Fetches them when they are unknown, or when the driver may have
    /// been replaced.
    pub(super) async fn get(&self) -> Result<DeclaredCapabilities> {
        match self.current() {
            Some(current) => Ok(current),
            None => self.fetch(self.begin_fetch().await).await,
        }
    }

    /// Does the same for a driver that answers, even after a recent failure.
    pub(super) async fn refresh(&self) {
        if self.current().is_some() {
            return;
        }
        let mut fetch = self.begin_fetch().await;
        *fetch.last_failure = None;
        if let Err(status) = self.fetch(fetch).await {
            tracing::warn!(driver = %self.client.name, %status, "cannot refresh the capabilities of the \
                driver; keeping the known ones");
        }
    }

    async fn begin_fetch(&self) -> Fetch<'_> {
        Fetch {
            last_failure: self.fetch_lock.lock().await,
            _wakes: WakesWaiters(self),
        }
    }

    /// Returns the right to fetch, or queues the caller, which is woken when another caller's fetch ends.
    fn try_begin_fetch(&self, key: &str, waker: Waker) -> Option<Fetch<'_>> {
        // Locked over both steps: a fetch that ends in between wakes the waiters only later, and finds this
        // waker.
        let mut waiting = self.waiting.lock();
        if let Ok(last_failure) = self.fetch_lock.try_lock() {
            return Some(Fetch {
                last_failure,
                _wakes: WakesWaiters(self),
            });
        }
        waiting.insert(key.into(), waker);
        None
    }

    /// Returns the previous caller's answer, if it still holds; otherwise asks the driver.
    async fn fetch(&self, mut fetch: Fetch<'_>) -> Result<DeclaredCapabilities> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some(failure) = fetch.last_failure.as_ref().filter(|last| last.is_shared()) {
            return Err(failure.status());
        }
        match self.client.get_plugin_capabilities().await {
            Ok(declared) => {
                self.report(&declared.capabilities).await;
                *self.declared.write() = Some(declared.clone());
                *fetch.last_failure = None;
                Ok(declared)
            }
            // The driver was not asked, so the failure is not shared.
            Err(status) if status.code() == Code::Canceled => Err(status),
            Err(status) => Err(fetch.last_failure.insert(LastFailure::of(&status)).status()),
        }
    }

    /// Reports the driver's name and version as a metric and in the log. Nothing depends on the report.
    async fn report(&self, capabilities: &Capabilities) {
        let driver = &self.client.name;
        match self.client.get_plugin_info().await {
            Ok(PluginInfo { name, version, .. }) => {
                tracing::info!(%driver, name, version, "driver capabilities changed");
                self.client.metrics.driver_info(driver, &name, &version);
            }
            Err(status) => tracing::warn!(%driver, %status, "cannot get the capabilities of the driver"),
        }
        let schema = capabilities.provider_spec_schema.as_ref();
        if let Some(Err(error)) = schema.map(SpecSchema::validate) {
            tracing::warn!(
                %driver, %error,
                "invalid ProviderSpec schema of the driver; leaving validation to the driver"
            );
        }
    }

    /// Returns the last declared capabilities, which may no longer hold.
    pub(super) fn declared(&self) -> Option<DeclaredCapabilities> {
        self.declared.read().clone()
    }

    /// Whether the driver has not been replaced since this declaration.
    pub(super) fn is_current(&self, declared: &DeclaredCapabilities) -> bool {
        declared.connection_generation == self.client.driver.connection_generation()
    }

    pub(super) fn is_known(&self) -> bool {
        self.current().is_some()
    }

    fn current(&self) -> Option<DeclaredCapabilities> {
        self.declared().filter(|declared| self.is_current(declared))
    }
}

impl LastFailure {
    fn of(status: &Status) -> Self {
        let (code, said) = (status.code(), status.message());
        Self {
            at: Instant::now(),
            message: format!("cannot get the capabilities of the driver: {code}: {said}"),
        }
    }

    fn is_shared(&self) -> bool {
        self.at.elapsed() < FAILURE_SHARED
    }

    /// Returns UNAVAILABLE. The waiting call must not get the code of the failed fetch, since NOT_FOUND would
    /// lead to a create.
    fn status(&self) -> Status {
        Status::new(Code::Unavailable, self.message.clone())
    }
}
