//! The frame of every reconcile: counts and times it, and removes its object from the queues of drivers that
//! the reconcile did not ask for a permit.
//!
//! For an object that has no VM also: when it can't be read, an event says so to its user; when a reconcile
//! fails, it is tried again after a back-off of its own. The machine's reconciler remembers more of each
//! object, and can delete one that it can't read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Resource;
use kube::api::ObjectMeta;
use parking_lot::Mutex;

use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::{Error, Events, NewEvent, OutageLog, outage_log};
use crate::caches::NamespacedName;
use crate::configured_driver::{ConfiguredDriver, ConfiguredDrivers, Permit, Priority, Requester, Waker};
use crate::metrics::{ControllerName, Metrics, ReconcileResult};
use crate::retry::{self, Delay, LONG_WAIT, MAX_REQUESTED_DELAY, Stage};
use cmi_driver::Status;

/// Failures further apart than this are not in a row: nothing waits for longer.
const FORGOTTEN_AFTER: Duration = MAX_REQUESTED_DELAY.saturating_mul(2);

/// The number of objects that may be known to have failed, besides twice those that still do: objects are not
/// held up by one walk through all of them each.
const SPARE_FAILURES: usize = 1024;

/// The interval at which a driver is asked anew about itself and its classes.
pub const REFRESH: Duration = Duration::from_mins(10);

/// Logs, at a bounded rate, errors that hit all objects alike, such as 429.
static REFUSED: OutageLog = OutageLog::new();

/// Enqueues the object of this name.
pub type Enqueue = Arc<dyn Fn(NamespacedName) + Send + Sync>;

/// Returns a waker that enqueues the object of this metadata. Small: a fleet that waits for its driver has
/// one for each machine.
pub fn waker(enqueue: &Enqueue, object: &ObjectMeta) -> Waker {
    let (enqueue, name) = (Arc::clone(enqueue), NamespacedName::of(object));
    Waker::new(move || enqueue(name))
}

/// Acquires a permit for a call that makes no VM; without one, the object is enqueued again when there is
/// one.
pub fn upkeep_permit<'a>(
    driver: &'a ConfiguredDriver,
    enqueue: &Enqueue,
    object: &ObjectMeta,
) -> Option<Permit<'a>> {
    let requester = Requester::new(object.uid(), object.namespace());
    driver.try_acquire(Priority::Upkeep, requester, waker(enqueue, object))
}

/// When an object is reconciled again. kube's own type can't be read outside of its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    requeue_after: Option<Duration>,
}

impl Action {
    /// Requeues the object after this long, if nothing changes before.
    pub const fn requeue(after: Duration) -> Self {
        Self {
            requeue_after: Some(after),
        }
    }

    /// Reconciles the object only after a change.
    pub const fn await_change() -> Self {
        Self { requeue_after: None }
    }

    /// The delay of the requeue; none where the object waits for a change.
    pub const fn requeue_after(self) -> Option<Duration> {
        self.requeue_after
    }
}

/// Runs one reconcile.
///
/// # Errors
/// Those of `reconcile`; [`error_policy`] says when to try again.
pub async fn run_one<K: Resource<DynamicType = ()>>(
    controller: ControllerName,
    metrics: &Metrics,
    drivers: &ConfiguredDrivers,
    object: &K,
    reconcile: impl Future<Output = Result<Action, Error>>,
) -> Result<Action, Error> {
    let started = Instant::now();
    let scope = drivers.permit_scope(object.meta().uid());
    let result = reconcile.await;
    drop(scope);
    let outcome = match &result {
        Ok(action) if *action == Action::await_change() => ReconcileResult::Success,
        Ok(_) => ReconcileResult::Requeue,
        Err(Error::Conflict { .. }) => ReconcileResult::Conflict,
        Err(_) => ReconcileResult::Error,
    };
    metrics.reconciled(controller, outcome, started.elapsed());
    result
}

/// Failures in a row, by the UID of their object.
pub trait FailureCounts {
    /// Counts a failure, and returns how many there were in a row.
    fn count_failure(&self, uid: &str) -> u32;

    /// Forgets the failures of an object.
    fn forget(&self, uid: &str);
}

/// Says when a reconcile that could not be finished is tried again.
pub fn error_policy<K: Resource<DynamicType = ()>>(
    controller: ControllerName,
    object: &K,
    error: &Error,
    failures: &impl FailureCounts,
) -> Action {
    let attempt = failures.count_failure(object.meta().uid());
    if matches!(error, Error::Gone { .. }) {
        failures.forget(object.meta().uid());
    }
    let (controller, name) = (controller.name(), &object.meta().name);
    match error {
        Error::Conflict { .. } | Error::Gone { .. } => {
            tracing::debug!(controller, name, %error, "reconciling again");
        }
        Error::Api { .. } | Error::Encode { .. } => {
            let is_refusal = error.is_refusal();
            let is_unanswered =
                matches!(error, Error::Api { source, .. } if outage_log::is_unanswered(source));
            let error = error as &dyn std::error::Error;
            if is_refusal {
                tracing::warn!(controller, name, error, attempt, "reconciling failed");
            } else if is_unanswered {
                tracing::debug!(controller, name, error, attempt, "reconciling failed");
                outage_log::log_unanswered(error);
            } else if let Some(unreported) = REFUSED.failed() {
                tracing::warn!(controller, name, error, attempt, "reconciling failed{unreported}");
            } else {
                tracing::debug!(controller, name, error, attempt, "reconciling failed");
            }
        }
    }
    Action::requeue(error.wait(attempt))
}

/// The reconciler of one controller.
pub struct Reconciler {
    controller: ControllerName,
    metrics: Arc<Metrics>,
    drivers: ConfiguredDrivers,
    events: Events,
    failures: FailureLog,
}

/// The failures of the objects of a controller.
#[derive(Default)]
struct FailureLog(Mutex<FailuresByUid>);

#[derive(Default)]
struct FailuresByUid {
    all: HashMap<String, Failures>,
    /// The number of known objects at which the outdated failures are dropped. An object that is gone is not
    /// heard of again.
    sweep_at: usize,
}

/// Failures of one object in a row.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

/// When an object is looked at again, if nothing changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Not before something changes.
    OnChange,
    /// After this long.
    After(Duration),
    /// Something failed that may pass by itself: after 5 s, doubling up to 5 min, and not before this long.
    BackOff(Duration),
}

impl Requeue {
    /// Decides on the requeue after a failed driver call, by the table of codes. As for machines, the delay
    /// that the driver asks for is a lower bound; where the wait is otherwise a long one, a driver that knows
    /// better may say so, and the call is repeated by the back-off.
    pub fn after(stage: Stage, status: &Status) -> Self {
        let asked = retry::requested_delay(status);
        match retry::disposition(stage, status.code()).delay() {
            Delay::UntilChange => Self::After(LONG_WAIT),
            Delay::Backoff => Self::BackOff(asked.unwrap_or_default()),
            Delay::Long => asked.map_or(Self::After(LONG_WAIT), Self::BackOff),
        }
    }
}

impl Reconciler {
    /// The reconciler of this controller.
    pub fn new(
        controller: ControllerName,
        metrics: Arc<Metrics>,
        drivers: ConfiguredDrivers,
        events: Events,
    ) -> Self {
        Self {
            controller,
            metrics,
            drivers,
            events,
            failures: FailureLog::default(),
        }
    }

    /// Runs one reconcile of one object, if the object can be read.
    ///
    /// # Errors
    /// Those of `reconcile`; [`Reconciler::error_policy`] says when to try again.
    pub async fn run<'a, K, F>(
        &self,
        object: &'a DeserializeGuard<K>,
        reconcile: impl FnOnce(&'a K) -> F,
    ) -> Result<Action, Error>
    where
        K: Resource<DynamicType = ()>,
        F: Future<Output = Result<Requeue, Error>>,
    {
        let run = async {
            let requeue = match &object.0 {
                Ok(object) => reconcile(object).await?,
                Err(invalid) => {
                    let event = NewEvent::unreadable(&invalid.error);
                    if self.events.record_once(object, event).await {
                        let (controller, name) = (self.controller.name(), &invalid.metadata.name);
                        tracing::error!(controller, name, error = invalid.error, "an object can't be read");
                    }
                    Requeue::OnChange
                }
            };
            Ok(self.action(object.meta().uid(), requeue))
        };
        run_one(self.controller, &self.metrics, &self.drivers, object, run).await
    }

    fn action(&self, uid: &str, requeue: Requeue) -> Action {
        match requeue {
            Requeue::OnChange => {
                self.failures.forget(uid);
                Action::await_change()
            }
            Requeue::After(wait) => {
                self.failures.forget(uid);
                Action::requeue(wait)
            }
            Requeue::BackOff(least) => {
                Action::requeue(retry::backoff(self.failures.count_failure(uid), 0.0).max(least))
            }
        }
    }

    /// Says when a reconcile that could not be finished is tried again.
    pub fn error_policy<K: Resource<DynamicType = ()>>(&self, object: &K, error: &Error) -> Action {
        error_policy(self.controller, object, error, &self.failures)
    }
}

impl FailureLog {
    fn count(&self, uid: &str, now: Instant) -> u32 {
        let is_recent = |failures: &Failures| now.saturating_duration_since(failures.last) < FORGOTTEN_AFTER;
        let mut known = self.0.lock();
        if known.all.len() >= known.sweep_at {
            known.all.retain(|_, failures| is_recent(failures));
            known.sweep_at = 2 * known.all.len() + SPARE_FAILURES;
        }
        let before = known.all.get(uid).filter(|failures| is_recent(failures));
        let count = before.map_or(1, |failures| failures.count.saturating_add(1));
        known.all.insert(uid.to_owned(), Failures { count, last: now });
        count
    }
}

impl FailureCounts for FailureLog {
    fn count_failure(&self, uid: &str) -> u32 {
        self.count(uid, Instant::now())
    }

    fn forget(&self, uid: &str) {
        let mut known = self.0.lock();
        known.all.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::{InfraCluster, InfraClusterSpec};
    use crate::apiserver::recorded;
    use crate::configured_driver::tests::{FakeDriver, driver_with_one_permit};
    use cmi_driver::Code;

    const BACK_OFF: Requeue = Requeue::BackOff(Duration::ZERO);

    fn reconciler() -> Reconciler {
        let (events, _) = recorded();
        Reconciler::new(
            ControllerName::InfraCluster,
            Arc::new(Metrics::new()),
            ConfiguredDrivers::default(),
            events,
        )
    }

    fn object(uid: &str) -> DeserializeGuard<InfraCluster> {
        let mut object = InfraCluster::new("c", InfraClusterSpec::default());
        object.metadata.uid = Some(uid.to_owned());
        DeserializeGuard(Ok(object))
    }

    fn refused() -> Error {
        let status = kube::core::Status::failure("no", "Invalid")
            .with_code(422)
            .boxed();
        Error::api("writing status", kube::Error::Api(status))
    }

    #[tokio::test]
    async fn an_object_that_the_api_server_refuses_is_written_ever_more_rarely_and_holds_no_other_up() {
        let (reconciler, stubborn) = (reconciler(), object("u-1"));
        let waits: Vec<_> = (0..4)
            .map(|_| reconciler.error_policy(&stubborn, &refused()))
            .collect();
        assert_eq!(
            waits,
            [1, 2, 4, 8].map(|seconds| Action::requeue(Duration::from_secs(seconds)))
        );
        let other = reconciler.error_policy(&object("u-2"), &refused());
        assert_eq!(other, Action::requeue(Duration::from_secs(1)));
    }

    /// A permit would else be reserved for it that others wait for.
    #[tokio::test]
    async fn however_a_reconcile_ends_that_asked_for_no_permit_its_object_has_left_the_queue() {
        let driver = driver_with_one_permit(FakeDriver::default());
        let drivers = ConfiguredDrivers::new(vec![driver]).unwrap();
        let driver = drivers.named("pool").unwrap();
        let ask = |key: &'static str| {
            let requester = Requester::new(key, "ns");
            driver.try_acquire(Priority::Create, requester, Waker::new(|| {}))
        };
        let events = recorded().0;
        let reconciler = Reconciler::new(
            ControllerName::InfraCluster,
            Arc::new(Metrics::new()),
            drivers.clone(),
            events,
        );
        let object = object("u-1");
        let permit = ask("other").unwrap();
        let waits = async |_| Ok(Requeue::After(REFRESH)).inspect(|_| assert!(ask("u-1").is_none()));
        let abandoned = async |_| futures::future::pending().await;
        for end in ["error", "nothing to do", "abandoned"] {
            reconciler.run(&object, waits).await.unwrap();
            assert_eq!(waiting(&driver), 1, "{end}");
            match end {
                "error" => drop(reconciler.run(&object, async |_| Err(refused())).await),
                "abandoned" => drop(futures::poll!(Box::pin(reconciler.run(&object, abandoned)))),
                _ => drop(reconciler.run(&object, async |_| Ok(Requeue::OnChange)).await),
            }
            assert_eq!(waiting(&driver), 0, "{end}");
        }
        drop(permit);
    }

    fn waiting(driver: &ConfiguredDriver) -> usize {
        driver.load().map(|load| load.waiting).iter().sum()
    }

    #[tokio::test]
    async fn a_wait_that_was_backed_off_begins_anew_once_the_object_was_reconciled() {
        let (reconciler, object) = (reconciler(), object("u-1"));
        let run = async |requeue| reconciler.run(&object, async |_| Ok(requeue)).await.unwrap();
        for seconds in [5, 10, 20] {
            assert_eq!(run(BACK_OFF).await, Action::requeue(Duration::from_secs(seconds)));
        }
        assert_eq!(run(Requeue::OnChange).await, Action::await_change());
        assert_eq!(run(BACK_OFF).await, Action::requeue(Duration::from_secs(5)));
        reconciler.error_policy(&object, &Error::Gone { action: "test" });
        assert!(reconciler.failures.0.lock().all.is_empty());
    }

    /// One that asks for a second for ever is called ever more rarely, and one that
    /// asks for a minute not before.
    #[tokio::test]
    async fn what_the_driver_asks_for_is_a_lower_bound_of_the_wait() {
        let asks = |code, seconds| {
            let status = Status::new(code, "no").with_retry_after(Duration::from_secs(seconds));
            Requeue::after(Stage::ListZones, &status)
        };
        for (code, asked, waits) in [
            (Code::Unavailable, 1, [5, 10, 20]),
            (Code::Unavailable, 12, [12, 12, 20]),
            (Code::ResourceExhausted, 12, [12, 12, 20]),
            (Code::Unavailable, 1_000_000, [3600, 3600, 3600]),
        ] {
            let (reconciler, object) = (reconciler(), object("u-1"));
            for wait in waits {
                let action = reconciler.run(&object, async |_| Ok(asks(code, asked))).await;
                let wanted = Action::requeue(Duration::from_secs(wait));
                assert_eq!(action.unwrap(), wanted, "{code} {asked}");
            }
        }
        assert_eq!(asks(Code::PermissionDenied, 0), Requeue::After(LONG_WAIT));
    }

    #[tokio::test]
    async fn of_an_object_that_cannot_be_read_its_user_is_reported_once_and_where() {
        let (events, published) = recorded();
        let reconciler = Reconciler::new(
            ControllerName::InfraCluster,
            Arc::new(Metrics::new()),
            ConfiguredDrivers::default(),
            events,
        );
        let text = r#"{"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"driver": 7}}"#;
        let object: DeserializeGuard<InfraCluster> = serde_json::from_str(text).unwrap();
        for _ in 0..2 {
            let action = reconciler.run(&object, async |_| Ok(BACK_OFF)).await;
            assert_eq!(action.unwrap(), Action::await_change());
        }
        let published = published.lock();
        let [event] = published.as_slice() else {
            panic!("{published:?}")
        };
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        let regarding = event.regarding.as_ref().unwrap();
        assert_eq!(
            (
                regarding.kind.as_deref(),
                regarding.name.as_deref(),
                regarding.uid.as_deref()
            ),
            (Some("InfraCluster"), Some("c"), Some("u"))
        );
        let note = event.note.as_deref().unwrap_or_default();
        assert!(note.contains("spec.driver: invalid type"), "{note}");
    }

    #[tokio::test]
    async fn failures_of_an_object_that_is_not_heard_of_any_more_are_forgotten() {
        let (reconciler, start) = (reconciler(), Instant::now());
        for object in 0..3 * SPARE_FAILURES {
            reconciler.failures.count(&object.to_string(), start);
        }
        assert_eq!(reconciler.failures.count("0", start), 2);
        let later = start + FORGOTTEN_AFTER;
        assert_eq!(reconciler.failures.count("0", later), 1, "they are not in a row");
        for object in 0..8 * SPARE_FAILURES {
            reconciler.failures.count(&format!("later-{object}"), later);
        }
        let known = reconciler.failures.0.lock().all.len();
        assert_eq!(known, 8 * SPARE_FAILURES + 1);
    }

    #[test]
    fn what_an_operator_has_to_repair_is_asked_rarely_and_what_passes_by_itself_soon() {
        let after = |code| Requeue::after(Stage::ListZones, &Status::new(code, "no"));
        assert_eq!(after(Code::Unavailable), BACK_OFF);
        assert_eq!(after(Code::PermissionDenied), Requeue::After(LONG_WAIT));
        assert_eq!(after(Code::InvalidArgument), Requeue::After(LONG_WAIT));
    }
}
