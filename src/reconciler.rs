//! What is around every reconcile of an object that has no VM: it is counted and timed; when the object can't
//! be read, an event says so to its user; when it fails, it is tried again after a back-off of its own.
//!
//! Layer 2. The machine's reconciler does without: it remembers more of each object, and can
//! delete one that it can't read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Resource;
use kube::runtime::controller::Action;

use crate::api::DeserializeGuard;
use crate::apiserver::{Error, Events, Note};
use crate::metrics::{Kind, Metrics, Outcome};
use crate::retry::{self, Delay, LONG_WAIT, LONGEST_ASKED, Stage};
use cmi_driver::Status;

/// Failures further apart than this are not in a row: nothing waits for longer.
const FORGOTTEN_AFTER: Duration = LONGEST_ASKED.saturating_mul(2);

/// How often what a driver said of itself and of its classes is asked anew.
pub const REFRESH: Duration = Duration::from_mins(10);

/// The reconciler of one kind.
pub struct Reconciler {
    kind: Kind,
    metrics: Arc<Metrics>,
    events: Events,
    failures: Mutex<HashMap<String, Failures>>,
}

/// Failures of one object in a row.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

/// When an object is looked at again, if nothing changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Not before something changes.
    OnChange,
    /// After this long.
    After(Duration),
    /// Something failed that may pass by itself: after 5 s, doubling up to 5 min, and not before this long.
    BackOff(Duration),
}

impl Again {
    /// After a call of a driver that failed, by the table of codes. As for machines, what the driver asks for
    /// is a lower bound; where the wait is otherwise a long one, a driver that knows better may say so, and
    /// the call is repeated by the back-off.
    pub fn after(stage: Stage, status: &Status) -> Self {
        let asked = retry::asked(status);
        match retry::disposition(stage, status.code()).delay() {
            Delay::UntilChange => Self::After(LONG_WAIT),
            Delay::Backoff => Self::BackOff(asked.unwrap_or_default()),
            Delay::Long => asked.map_or(Self::After(LONG_WAIT), Self::BackOff),
        }
    }
}

impl Reconciler {
    /// A reconciler of this kind.
    pub fn new(kind: Kind, metrics: Arc<Metrics>, events: Events) -> Self {
        Self {
            kind,
            metrics,
            events,
            failures: Mutex::default(),
        }
    }

    /// One reconcile of one object, if it can be read.
    ///
    /// # Errors
    /// Those of `reconcile`; [`Reconciler::retry`] says when to try again.
    pub async fn run<'a, K, F>(
        &self,
        guarded: &'a DeserializeGuard<K>,
        reconcile: impl FnOnce(&'a K) -> F,
    ) -> Result<Action, Error>
    where
        K: Resource<DynamicType = ()>,
        F: Future<Output = Result<Again, Error>>,
    {
        let started = Instant::now();
        let result = match &guarded.0 {
            Ok(object) => reconcile(object).await,
            Err(invalid) => {
                let (kind, name) = (self.kind.name(), &invalid.metadata.name);
                tracing::error!(kind, name, error = invalid.error, "an object can't be read");
                self.events
                    .publish_once(guarded, Note::unreadable(&invalid.error))
                    .await;
                Ok(Again::OnChange)
            }
        };
        let outcome = match &result {
            Ok(Again::OnChange) => Outcome::Success,
            Ok(Again::After(_) | Again::BackOff(_)) => Outcome::Requeue,
            Err(Error::Conflict { .. }) => Outcome::Conflict,
            Err(_) => Outcome::Error,
        };
        self.metrics.reconciled(self.kind, outcome, started.elapsed());
        let uid = uid(guarded);
        Ok(match result? {
            Again::OnChange => {
                self.succeeded(uid);
                Action::await_change()
            }
            Again::After(wait) => {
                self.succeeded(uid);
                Action::requeue(wait)
            }
            Again::BackOff(least) => {
                Action::requeue(retry::backoff(self.failed(uid, started), 0.0).max(least))
            }
        })
    }

    /// When a reconcile that could not be finished is tried again.
    pub fn retry<K: Resource<DynamicType = ()>>(
        &self,
        guarded: &DeserializeGuard<K>,
        error: &Error,
    ) -> Action {
        let (kind, name, uid) = (self.kind.name(), &guarded.meta().name, uid(guarded));
        let attempt = self.failed(uid, Instant::now());
        match error {
            Error::Conflict { .. } => tracing::debug!(kind, name, %error, "reconciling again"),
            Error::Gone { .. } => {
                tracing::debug!(kind, name, %error, "reconciling again");
                self.succeeded(uid);
            }
            Error::Api { .. } | Error::Encode { .. } => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(kind, name, error, attempt, "reconciling failed");
            }
        }
        Action::requeue(error.wait(attempt))
    }

    /// Counts a failure; how many there were in a row.
    fn failed(&self, uid: &str, now: Instant) -> u32 {
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // An object that is gone is not heard of again.
        all.retain(|_, failures| now.saturating_duration_since(failures.last) < FORGOTTEN_AFTER);
        let failures = all
            .entry(uid.to_owned())
            .or_insert(Failures { count: 0, last: now });
        *failures = Failures {
            count: failures.count.saturating_add(1),
            last: now,
        };
        failures.count
    }

    fn succeeded(&self, uid: &str) {
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(uid);
    }
}

fn uid<K: Resource<DynamicType = ()>>(guarded: &DeserializeGuard<K>) -> &str {
    guarded.meta().uid.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::{InfraCluster, InfraClusterSpec};
    use crate::apiserver::recorded;
    use cmi_driver::Code;

    const BACK_OFF: Again = Again::BackOff(Duration::ZERO);

    fn reconciler() -> Reconciler {
        let (events, _) = recorded();
        Reconciler::new(Kind::InfraCluster, Arc::new(Metrics::new()), events)
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
        let waits: Vec<_> = (0..4).map(|_| reconciler.retry(&stubborn, &refused())).collect();
        assert_eq!(
            waits,
            [1, 2, 4, 8].map(|seconds| Action::requeue(Duration::from_secs(seconds)))
        );
        let other = reconciler.retry(&object("u-2"), &refused());
        assert_eq!(other, Action::requeue(Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn a_wait_that_was_backed_off_begins_anew_once_the_object_was_reconciled() {
        let (reconciler, object) = (reconciler(), object("u-1"));
        let run = async |again| reconciler.run(&object, async |_| Ok(again)).await.unwrap();
        for seconds in [5, 10, 20] {
            assert_eq!(run(BACK_OFF).await, Action::requeue(Duration::from_secs(seconds)));
        }
        assert_eq!(run(Again::OnChange).await, Action::await_change());
        assert_eq!(run(BACK_OFF).await, Action::requeue(Duration::from_secs(5)));
        reconciler.retry(&object, &Error::Gone { action: "test" });
        assert!(reconciler.failures.lock().unwrap().is_empty());
    }

    /// One that asks for a second for ever is called ever more rarely, and one that
    /// asks for a minute not before.
    #[tokio::test]
    async fn what_the_driver_asks_for_is_a_lower_bound_of_the_wait() {
        let asks = |code, seconds| {
            let status = Status::new(code, "no").with_retry_after(Duration::from_secs(seconds));
            Again::after(Stage::ListZones, &status)
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
        assert_eq!(asks(Code::PermissionDenied, 0), Again::After(LONG_WAIT));
    }

    #[tokio::test]
    async fn of_an_object_that_cannot_be_read_its_user_is_told_once_and_where() {
        let (events, published) = recorded();
        let reconciler = Reconciler::new(Kind::InfraCluster, Arc::new(Metrics::new()), events);
        let text = r#"{"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"driver": 7}}"#;
        let object: DeserializeGuard<InfraCluster> = serde_json::from_str(text).unwrap();
        for _ in 0..2 {
            let action = reconciler.run(&object, async |_| Ok(BACK_OFF)).await;
            assert_eq!(action.unwrap(), Action::await_change());
        }
        let published = published.lock().unwrap();
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
        reconciler.failed("u-1", start);
        reconciler.failed("u-2", start + FORGOTTEN_AFTER);
        assert_eq!(reconciler.failures.lock().unwrap().len(), 1);
        assert_eq!(reconciler.failed("u-1", start + FORGOTTEN_AFTER), 1);
    }

    #[test]
    fn what_a_person_has_to_repair_is_asked_rarely_and_what_passes_by_itself_soon() {
        let after = |code| Again::after(Stage::ListZones, &Status::new(code, "no"));
        assert_eq!(after(Code::Unavailable), BACK_OFF);
        assert_eq!(after(Code::PermissionDenied), Again::After(LONG_WAIT));
        assert_eq!(after(Code::InvalidArgument), Again::After(LONG_WAIT));
    }
}
