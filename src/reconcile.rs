//! The frame of every reconcile: counts and times it, and removes its object from the queues of drivers whose
//! permit the reconcile did not request.
//!
//! For an object without a VM it also reports an unreadable object in an event, and retries a failed
//! reconcile after a back-off. The machine's reconciler keeps more state of each object, and can delete an
//! unreadable object.

pub mod caches;
pub mod driver_query;
mod failure_log;
mod permit;
mod requeue;
pub mod runtime_state;

use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use tokio::time::Instant;

pub use self::failure_log::FailureLog;
pub use self::permit::{Enqueue, upkeep_permit, waker};
pub use self::requeue::Requeue;
pub use kube_fleet::Action;

use crate::api::retry;
use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::{Error, Events, NewEvent, OutageLog, outage_log};
use crate::driver::ConfiguredDrivers;
use crate::telemetry::metrics::{ControllerName, Metrics, ReconcileResult};

/// How often a driver is asked about itself and its classes.
pub const DRIVER_REFRESH_INTERVAL: Duration = Duration::from_mins(10);

/// Logs, at a bounded rate, errors that affect all objects alike, such as 429.
static REFUSED: OutageLog = OutageLog::new();

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
    let result = reconcile.await;
    drivers.reconciled(object.meta().uid(), started);
    let outcome = match &result {
        Ok(action) if *action == Action::await_change() => ReconcileResult::Success,
        Ok(_) => ReconcileResult::Requeue,
        Err(Error::Conflict { .. }) => ReconcileResult::Conflict,
        Err(_) => ReconcileResult::Error,
    };
    metrics.reconciled(controller, outcome, started.elapsed());
    result
}

/// Returns when to retry a failed reconcile.
pub fn error_policy<K: Resource<DynamicType = ()>>(
    controller: ControllerName,
    object: &K,
    error: &Error,
    failures: &FailureLog,
) -> Action {
    let attempt = failures.count_failure(object.meta().uid());
    if matches!(error, Error::Gone { .. }) {
        failures.forget(object.meta().uid());
    }
    let (controller, name) = (controller.name(), &object.meta().name);
    match error {
        Error::Conflict { .. } | Error::Gone { .. } => {
            tracing::debug!(controller, name, %error, "retrying the reconcile");
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
                        tracing::error!(controller, name, error = invalid.error, "cannot read an object");
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

    /// Returns when to retry a failed reconcile.
    pub fn error_policy<K: Resource<DynamicType = ()>>(&self, object: &K, error: &Error) -> Action {
        error_policy(self.controller, object, error, &self.failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::retry::{Call, LONG_WAIT};
    use crate::api::v1alpha1::{InfraCluster, InfraClusterSpec};
    use crate::apiserver::recorded;
    use crate::driver::tests::{FakeDriver, driver_with_one_permit};
    use crate::driver::{Priority, Waker};
    use cmi_driver::{Code, Status};

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
    async fn the_backoff_of_a_refused_object_doubles_and_affects_no_other() {
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

    /// Otherwise a permit would be reserved for it while others wait.
    #[tokio::test]
    async fn a_reconcile_without_a_permit_request_leaves_the_queue() {
        let driver = driver_with_one_permit(FakeDriver::default());
        let drivers = ConfiguredDrivers::new(vec![driver]).unwrap();
        let driver = drivers.named("pool").unwrap();
        let ask = |key: &'static str| driver.try_acquire(Priority::Create, key, "ns", Waker::new(|| {}));
        let events = recorded().0;
        let reconciler = Reconciler::new(
            ControllerName::InfraCluster,
            Arc::new(Metrics::new()),
            drivers.clone(),
            events,
        );
        let object = object("u-1");
        let permit = ask("other").unwrap();
        let waits =
            async |_| Ok(Requeue::After(DRIVER_REFRESH_INTERVAL)).inspect(|_| assert!(ask("u-1").is_none()));
        for end in ["error", "nothing to do"] {
            reconciler.run(&object, waits).await.unwrap();
            assert_eq!(driver.waiting(), 1, "{end}");
            match end {
                "error" => drop(reconciler.run(&object, async |_| Err(refused())).await),
                _ => drop(reconciler.run(&object, async |_| Ok(Requeue::OnChange)).await),
            }
            assert_eq!(driver.waiting(), 0, "{end}");
        }
        drop(permit);
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
        assert!(reconciler.failures.is_empty());
    }

    /// A driver that always asks for a second is called less and less often. A driver that asks for a minute
    /// is not called earlier.
    #[tokio::test]
    async fn what_the_driver_asks_for_is_a_lower_bound_of_the_wait() {
        let asks = |code, seconds| {
            let status = Status::new(code, "no").with_retry_after(Duration::from_secs(seconds));
            Requeue::after_failure(Call::ListZones, &status)
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
}
