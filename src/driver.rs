//! A configured driver, which `InfraMachine.spec.driver` names.
//!
//! The module knows [`cmi_driver`], but no concrete driver and no reconciler. A driver call needs a
//! [`Permit`], and is made through [`Permit::driver`], which applies the rules that are the same for every
//! call.

mod breaker;
mod bucket;
mod capability_cache;
pub mod credentials;
mod driver_client;
mod guard;
mod limits;
pub mod listing;
mod own_credentials;
mod permits;
mod prober;
mod registry;
pub mod resolution;
mod state;
mod vm_locks;
mod waker;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::apiserver::leadership::Leadership;
use crate::apiserver::leadership::is_not_leader;
use crate::telemetry::metrics::Metrics;
use cmi_driver::{Capabilities, Code, Driver, MachineClass, Result, Secrets, Status};

pub use breaker::{Attempt, CREATES_SUSPENDED};
pub use limits::{Limits, Namespaces, Timeouts};
pub use own_credentials::{CredentialsDirectory, InvalidCredentials};
pub use permits::Priority;
pub use prober::{Reachability, StableReachability};
pub use registry::{ConfiguredDrivers, DuplicateName, ResolveError};
pub use state::{DriverState, KnownDriver};
pub use waker::Waker;

use capability_cache::CapabilityCache;
use driver_client::DriverClient;
use guard::GuardedDriver;
pub use guard::{failure_domain, full_failure_domain};
use permits::Permits;
use prober::Prober;
use vm_locks::{VmLock, VmLocks};

/// How long a requester waits before it asks again for a permit or for the driver's capabilities. The waker
/// usually runs earlier.
pub const PERMIT_WAIT: Duration = Duration::from_mins(1);
/// How long until a call that changes a VM is retried when another call has locked the VM.
pub const VM_LOCK_WAIT: Duration = Duration::from_secs(5);
/// The interval for waking machines that wait for capacity, for an unclaimed permit, or to publish their
/// wait.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// How a driver is used: the part of its configuration that is the same for every kind of driver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The driver's name in `spec.driver`.
    pub name: String,
    /// The namespaces that may use the driver.
    pub namespaces: Namespaces,
    /// The limits of the calls to the driver.
    pub limits: Limits,
    /// The credentials for machines that name no Secret; `None` if the driver gets none then.
    pub credentials: Option<CredentialsDirectory>,
    /// The settle time of creates, see [`CREATE_SETTLE_TIME`]; `None` leaves it to the driver.
    pub create_settle_time: Option<Duration>,
}

/// The settle time of creates, unless the configuration or the driver sets one: how long a VM may still
/// become visible after its create was abandoned.
pub const CREATE_SETTLE_TIME: Duration = Duration::from_mins(5);

/// A driver with its configuration, and the rules for calling it.
#[derive(Debug)]
pub struct ConfiguredDriver {
    name: Arc<str>,
    namespaces: Namespaces,
    max_concurrent_calls: NonZeroU32,
    create_given_up_after: Duration,
    create_settle_time: Option<Duration>,
    driver: GuardedDriver,
    capabilities: Arc<CapabilityCache>,
    prober: Arc<Prober>,
    permits: Arc<Permits>,
    vm_locks: VmLocks,
    credentials: Option<CredentialsDirectory>,
}

/// The right to make driver calls, one after another. There are as many permits as concurrent calls. Dropping
/// a permit returns it.
#[derive(Debug)]
pub struct Permit<'a> {
    driver: &'a ConfiguredDriver,
    namespace: Box<str>,
    priority: Priority,
}

impl ConfiguredDriver {
    /// Returns a configured driver that has not been called yet. Every call requires the given leadership.
    pub fn new(
        settings: Settings,
        driver: Arc<dyn Driver>,
        leadership: Leadership,
        metrics: Arc<Metrics>,
    ) -> Self {
        let name: Arc<str> = settings.name.into();
        let caller = DriverClient {
            name: Arc::clone(&name),
            driver,
            leadership,
            metrics,
            timeouts: settings.limits.timeouts.clone(),
            credentials: settings.credentials.clone(),
        };
        let capabilities = Arc::new(CapabilityCache::new(caller.clone()));
        let prober = Arc::new(Prober::new(caller.clone(), Arc::clone(&capabilities)));
        let permits = Arc::new(Permits::new(
            settings.limits.max_concurrent_calls,
            settings.namespaces.are_several(),
        ));
        let counted = Arc::clone(&permits);
        let metrics = Arc::clone(&caller.metrics);
        metrics.driver_configured(&name);
        metrics.permits(&name, move || counted.count());
        let driver = GuardedDriver::new(
            caller,
            Arc::clone(&capabilities),
            Arc::clone(&prober),
            &settings.limits,
        );
        let breakers = Arc::clone(driver.breakers());
        metrics.breakers(&name, move || breakers.count());
        Self {
            name,
            namespaces: settings.namespaces,
            max_concurrent_calls: settings.limits.max_concurrent_calls,
            create_given_up_after: settings.limits.create_given_up_after(),
            create_settle_time: settings.create_settle_time,
            driver,
            capabilities,
            prober,
            permits,
            vm_locks: VmLocks::default(),
            credentials: settings.credentials,
        }
    }

    /// The driver's name in `spec.driver`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the current credentials for calls about objects that name no Secret; empty where the drivers
    /// file configures none.
    ///
    /// # Errors
    /// The credentials can't be read. A call without them would prove nothing about a VM.
    pub async fn credentials(&self) -> std::result::Result<Secrets, InvalidCredentials> {
        match &self.credentials {
            Some(directory) => directory.get().await,
            None => Ok(Secrets::default()),
        }
    }

    /// Returns a permit to call the driver now; `None` when the driver is busy. Never waits: `key`, the UID
    /// of an object or the name of a task, gets one place in the queue. `waker` runs when the caller should
    /// ask again or publish its wait: see [`ConfiguredDriver::should_report_wait`].
    pub fn try_acquire(
        &self,
        priority: Priority,
        key: &str,
        namespace: &str,
        waker: Waker,
    ) -> Option<Permit<'_>> {
        let priority = self.permits.acquire_or_queue(priority, key, namespace, waker)?;
        Some(Permit {
            driver: self,
            namespace: namespace.into(),
            priority,
        })
    }

    /// Waits for a permit, for one of the provider's own tasks.
    pub async fn acquire(&self, priority: Priority, key: &str) -> Permit<'_> {
        loop {
            let (wake, woken) = oneshot::channel();
            let waker = Waker::new(move || {
                // The receiver may be gone.
                let _ = wake.send(());
            });
            if let Some(permit) = self.try_acquire(priority, key, "", waker) {
                return permit;
            }
            let _ = timeout(PERMIT_WAIT, woken).await;
        }
    }

    /// Whether `key` waits for a permit and should publish that: its queue is stuck, or its wait is long.
    pub fn should_report_wait(&self, key: &str) -> bool {
        self.permits.should_report(key)
    }

    /// Locks the VM of the machine with this UID for a call that initializes, updates or restarts it. Returns
    /// `None` when another call has locked the VM: the caller retries after [`VM_LOCK_WAIT`]. A deletion does
    /// not wait for the lock.
    pub fn try_lock_vm<'a>(&'a self, uid: &'a str) -> Option<VmLock<'a>> {
        self.vm_locks.try_lock(uid)
    }

    /// Awaits a create that was recorded in its object at `noted`. Cancels the create when
    /// [`KnownDriver::create_given_up_after`] has passed since, and sends nothing later: a deletion counts
    /// the settle time from that moment.
    ///
    /// # Errors
    /// The errors of the create, and DEADLINE_EXCEEDED.
    pub async fn give_up_in_time<T>(
        &self,
        noted: Instant,
        create: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let given_up = |message: &str| Status::new(Code::DeadlineExceeded, message);
        let left = self.create_given_up_after.saturating_sub(noted.elapsed());
        if left.is_zero() {
            let message = "CreateMachine was not sent: its deadline passed before it was recorded";
            return Err(given_up(message).with_never_sent());
        }
        let answer = timeout(left, create).await;
        answer.unwrap_or_else(|_elapsed| Err(given_up("CreateMachine timed out")))
    }

    /// Returns how many objects and tasks wait for a permit.
    pub fn waiting(&self) -> u64 {
        self.permits.count().iter().map(|count| count.waiting).sum()
    }

    /// Returns how many permits there are.
    pub fn max_concurrent_calls(&self) -> u32 {
        self.max_concurrent_calls.get()
    }

    /// Forgets `key`, whose object is gone: removes it from the queue and from the waits for capacity.
    pub fn forget(&self, key: &str) {
        self.permits.forget(key);
        self.driver.breakers().forget(key);
    }

    /// Returns the state of the driver. Its capabilities are fetched once for all callers, without a permit.
    /// While another caller fetches them, this does not wait: `waker` wakes `key` when it should ask again.
    pub async fn state(&self, key: &str, waker: Waker) -> DriverState {
        let declared = match self.capabilities.try_get(key, waker).await {
            Some(Ok(declared)) => declared,
            // The driver was not asked.
            Some(Err(status)) if is_not_leader(&status) => return DriverState::Pending,
            Some(Err(status)) => return DriverState::Unknown(status),
            None => return DriverState::Pending,
        };
        DriverState::Known(KnownDriver {
            name: Arc::clone(&self.name),
            is_current: self.capabilities.is_current(&declared),
            create_given_up_after: self.create_given_up_after,
            create_settle_time: self.create_settle_time(&declared.capabilities),
            reachability: self.stable_reachability().borrow().clone(),
            capabilities: declared.capabilities,
        })
    }

    /// Whether machines of this namespace may use the driver.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.contain(namespace)
    }

    /// Watches whether the driver answers. A new [`ConfiguredDriver::connection_generation`] also counts as a
    /// change.
    pub fn reachability(&self) -> watch::Receiver<Reachability> {
        self.prober.reachability()
    }

    /// Returns the settle time of creates: the configured time, but at least the driver's consistency window.
    /// Without a configured time, it is the declared window, or else [`CREATE_SETTLE_TIME`].
    fn create_settle_time(&self, capabilities: &Capabilities) -> Duration {
        let window = capabilities.consistency_window;
        match self.create_settle_time {
            Some(configured) => configured.max(window),
            None if window.is_zero() => CREATE_SETTLE_TIME,
            None => window,
        }
    }

    /// Watches whether the driver is reachable, debounced: only an outage that lasts is a change.
    pub fn stable_reachability(&self) -> watch::Receiver<StableReachability> {
        self.prober.stable_reachability()
    }

    /// Which driver answers, as a number that counts from 1 for a driver outside of this process; see
    /// [`Driver::connection_generation`].
    pub fn connection_generation(&self) -> u64 {
        self.driver.connection_generation()
    }

    /// Probes the driver forever, once this replica leads, and fetches its capabilities when it comes back.
    /// [`ConfiguredDriver::reachability`] changes while this future is polled. For
    /// [`ConfiguredDriver::stable_reachability`], the probes have to agree for the whole grace period.
    pub async fn run(&self, grace: Duration) {
        tokio::join!(self.prober.run(grace), self.keep_waking());
    }

    /// Wakes machines that may find capacity or a permit, and machines that have to publish their wait.
    async fn keep_waking(&self) {
        loop {
            sleep(WAKE_INTERVAL).await;
            self.driver.breakers().wake_due();
            self.permits.tick();
        }
    }
}

impl<'a> Permit<'a> {
    /// The driver that the permit is for.
    pub fn configured_driver(&self) -> &'a ConfiguredDriver {
        self.driver
    }

    /// The guarded driver. Every call is checked against leadership and capabilities, waits for the
    /// driver's rate, has a deadline, is counted, survives a panic, and returns no secrets.
    pub fn driver(&self) -> &dyn Driver {
        &self.driver.driver
    }

    /// Returns the capabilities that the driver has declared, without asking it; [`Capabilities::minimal`]
    /// before it has answered.
    pub fn known_capabilities(&self) -> Arc<Capabilities> {
        let declared = self.driver.capabilities.declared();
        declared.map_or_else(
            || Arc::new(Capabilities::minimal()),
            |declared| declared.capabilities,
        )
    }

    /// Returns the capabilities of the driver, and fetches them unless they are known. Concurrent callers
    /// share one answer.
    ///
    /// # Errors
    /// The driver's error, when it can't be asked. Its capabilities are unknown then, and nothing may be
    /// assumed.
    pub async fn fetch_capabilities(&self) -> Result<Arc<Capabilities>> {
        Ok(self.driver.capabilities.get().await?.capabilities)
    }

    /// Admits `key` to a create of this class if there may be capacity. Otherwise queues it, and `waker` runs
    /// when there may be capacity. The caller records the answer to the create, and `waker` runs in the same
    /// way if there was none. Makes no call.
    pub fn admit_create_or_wait(
        &self,
        class: &MachineClass,
        key: &str,
        requested: bool,
        waker: Waker,
    ) -> Option<Attempt<'a>> {
        let driver = &self.driver.driver;
        let class = driver.key(class);
        driver.breakers().begin_or_wait(class, key, requested, waker)
    }

    /// Records that a VM with these credentials is gone: there may be capacity for others.
    pub fn on_vm_deleted(&self, secrets: &Secrets) {
        self.driver.driver.breakers().on_freed(breaker::account(secrets));
    }

    /// Whether `key`, which holds this permit, may use it to create a VM: the permit was acquired for a
    /// create, or one more create leaves the reserve intact. Otherwise queues `key` for such a permit.
    pub fn may_create(&mut self, key: &str, waker: Waker) -> bool {
        let permits = &self.driver.permits;
        if self.priority == Priority::Upkeep && permits.exchange_for_create(key, &self.namespace, waker) {
            self.priority = Priority::Create;
        }
        self.priority == Priority::Create
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.driver.permits.release(&self.namespace, self.priority);
    }
}

#[cfg(test)]
pub(crate) mod tests;
