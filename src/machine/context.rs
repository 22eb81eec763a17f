//! The clients, caches and queues of a reconcile, and how it waits for a permit or for capacity.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::runtime::reflector::ObjectRef;

use super::outcome::Outcome;
use super::runtime_state::RuntimeStates;
use crate::admission::AdmissionPolicies;
use crate::api::retry::{LONG_WAIT, LONG_WAIT_JITTER, jitter};
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::Events;
use crate::driver::{
    ConfiguredDriver, ConfiguredDrivers, DriverState, HalfOpenReason, Permit, Priority, Waker,
};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::reconcile::{Enqueue, waker};
use crate::telemetry::metrics::Metrics;
use cmi_driver::MachineClass;

/// How long a machine waits for a permit before it asks again, should its wake-up get lost.
const LOST_WAKE_UP: Duration = Duration::from_hours(1);

/// The clients, caches and queues that every reconcile works with.
#[derive(Clone)]
pub struct Context {
    /// The client for writes and live reads.
    pub client: Client,
    /// The caches of the watched objects.
    pub caches: Caches,
    /// The cluster ids that were found so far.
    pub cluster_ids: Arc<ClusterIds>,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// The state of the machines that is kept between reconciles.
    pub states: Arc<RuntimeStates>,
    /// Publishes events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The admission policies, which say whether identities may be trusted.
    pub policies: Arc<AdmissionPolicies>,
    /// Enqueues a machine.
    pub enqueue: Enqueue,
}

/// A reference to a machine.
pub type Reference = ObjectRef<DeserializeGuard<InfraMachine>>;

impl Context {
    /// Returns a permit to call the driver for this machine. Without one, the machine is enqueued once there
    /// is a permit.
    pub fn permit<'a>(
        &self,
        machine: &InfraMachine,
        driver: &'a ConfiguredDriver,
        priority: Priority,
    ) -> Option<Permit<'a>> {
        let (uid, namespace) = (machine.metadata.uid(), machine.metadata.namespace());
        driver.try_acquire(priority, uid, namespace, self.waker(machine))
    }

    /// Returns what is known of the machine's driver. While another task asks the driver, the machine is
    /// enqueued once there is an answer.
    pub async fn driver_state(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> DriverState {
        driver.state(machine.metadata.uid(), self.waker(machine)).await
    }

    fn waker(&self, machine: &InfraMachine) -> Waker {
        waker(&self.enqueue, &machine.metadata)
    }

    /// Returns a waker that enqueues a machine, whatever its wait, when there may be capacity for it.
    fn capacity_waker(&self, machine: &InfraMachine) -> Waker {
        let (states, uid) = (Arc::clone(&self.states), machine.metadata.uid().to_owned());
        let waker = self.waker(machine);
        Waker::new(move || {
            states.signal_capacity(&uid);
            waker.wake();
        })
    }

    /// Lets the VM of a machine be created. Where there is known to be no capacity, the machine waits for it,
    /// and that is the outcome. The caller asks before it does anything for the create.
    pub fn admit_create_or_wait(
        &self,
        machine: &InfraMachine,
        permit: &Permit<'_>,
        class: &MachineClass,
        reason: HalfOpenReason,
    ) -> Option<Outcome> {
        let is_admitted = permit.admit_create_or_wait(
            class,
            machine.metadata.uid(),
            reason,
            self.capacity_waker(machine),
        );
        (!is_admitted).then(|| Self::awaiting_capacity(machine))
    }

    /// Enqueues a machine that was refused for lack of capacity, once there may be capacity.
    pub fn await_capacity(&self, machine: &InfraMachine, permit: &Permit<'_>, class: &MachineClass) {
        permit.await_capacity(class, machine.metadata.uid(), self.capacity_waker(machine));
    }

    /// The outcome of a machine that is woken when there may be capacity.
    pub fn awaiting_capacity(machine: &InfraMachine) -> Outcome {
        Outcome::AwaitingCapacity {
            requeue_after: LONG_WAIT.mul_f64(1.0 - LONG_WAIT_JITTER * jitter(machine.metadata.uid(), 0)),
        }
    }

    /// Whether the permit may be used to create or finish a VM. Otherwise the machine is enqueued later.
    pub fn may_create(&self, machine: &InfraMachine, permit: &mut Permit<'_>) -> bool {
        permit.may_create(machine.metadata.uid(), self.waker(machine))
    }

    /// Returns the outcome of a machine that waits for a permit. Only a long wait is published: otherwise
    /// every machine of a fleet that comes up at the pace of its driver would be written twice.
    pub fn waiting_for_a_permit(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> Outcome {
        let uid = machine.metadata.uid();
        tracing::debug!(name = machine.metadata.name, "waiting for a permit of the driver");
        // The machine is woken when there is a permit, so a waiting fleet asks no more often than this.
        let requeue_after = LOST_WAKE_UP.mul_f64(1.0 - 0.5 * jitter(uid, 0));
        if driver.should_report_wait(uid) {
            Outcome::Queued { requeue_after }
        } else {
            Outcome::Waiting(Some(requeue_after))
        }
    }
}
