//! The clients, caches and queues of a reconcile, and its waits for permits and capacity.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use super::outcome::Outcome;
use crate::admission::AdmissionPolicies;
use crate::api::retry::jitter;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::Events;
use crate::driver::{ConfiguredDriver, ConfiguredDrivers, Waker};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::reconcile::runtime_state::RuntimeStates;
use crate::reconcile::{Enqueue, FailureLog, waker};
use crate::telemetry::metrics::Metrics;

/// How long a machine waits for a permit before it tries again, in case its wake-up is lost.
const LOST_WAKE_UP: Duration = Duration::from_hours(1);

/// The clients, caches and queues that every reconcile works with.
#[derive(Clone)]
pub struct Context {
    /// The client for writes and live reads.
    pub client: Client,
    /// The caches of the watched objects.
    pub caches: Caches,
    /// The cluster ids found so far.
    pub cluster_ids: Arc<ClusterIds>,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// The state of the machines that is kept between reconciles.
    pub states: Arc<RuntimeStates>,
    /// The failures of reconciles that could not be finished.
    pub failures: Arc<FailureLog>,
    /// Publishes events.
    pub events: Events,
    /// The metrics of the controller.
    pub metrics: Arc<Metrics>,
    /// The admission policies that protect identities against forgery.
    pub policies: Arc<AdmissionPolicies>,
    /// Enqueues a machine.
    pub enqueue: Enqueue,
    /// Notified when a machine waits for a static address. Claims are watched from the first time.
    pub claims_wanted: Arc<Notify>,
}

/// A reference to a machine.
pub type Reference = ObjectRef<DeserializeGuard<InfraMachine>>;

impl Context {
    /// Returns a waker that enqueues a machine.
    pub fn waker(&self, machine: &InfraMachine) -> Waker {
        waker(&self.enqueue, &machine.metadata)
    }

    /// Returns a waker that ends any wait of a machine when there may be capacity.
    pub fn capacity_waker(&self, machine: &InfraMachine) -> Waker {
        let (states, uid) = (Arc::clone(&self.states), machine.metadata.uid().to_owned());
        let waker = self.waker(machine);
        Waker::new(move || {
            states.signal_capacity(&uid);
            waker.wake();
        })
    }

    /// Returns the outcome of a machine that waits for a permit. Only long waits are published. Otherwise, a
    /// growing fleet would cost two writes for each machine.
    pub fn waiting_for_a_permit(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> Outcome {
        let uid = machine.metadata.uid();
        tracing::debug!(name = machine.metadata.name, "waiting for a permit of the driver");
        // A permit wakes the machine, so this only limits the delay after a lost wake-up.
        let requeue_after = LOST_WAKE_UP.mul_f64(1.0 - 0.5 * jitter(uid, 0));
        if driver.should_report_wait(uid) {
            Outcome::Queued { requeue_after }
        } else {
            Outcome::Waiting(Some(requeue_after))
        }
    }
}
