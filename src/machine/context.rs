//! The clients, caches and queues of a reconcile, and its waits for permits and capacity.

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
    Attempt, ConfiguredDriver, ConfiguredDrivers, DriverState, Permit, Priority, Waker, failure_domain,
};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::reconcile::{Enqueue, FailureLog, waker};
use crate::telemetry::metrics::Metrics;
use cmi_driver::{MachineClass, ProviderSpec};

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
}

/// A reference to a machine.
pub type Reference = ObjectRef<DeserializeGuard<InfraMachine>>;

impl Context {
    /// Returns a permit to call the driver for this machine. Without a permit, the machine is enqueued when a
    /// permit becomes available.
    pub fn permit<'a>(
        &self,
        machine: &InfraMachine,
        driver: &'a ConfiguredDriver,
        priority: Priority,
    ) -> Option<Permit<'a>> {
        let (uid, namespace) = (machine.metadata.uid(), machine.metadata.namespace());
        driver.try_acquire(priority, uid, namespace, self.waker(machine))
    }

    /// Returns the state of the machine's driver. While another task queries the driver, the machine is
    /// enqueued when that query ends.
    pub async fn driver_state(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> DriverState {
        driver.state(machine.metadata.uid(), self.waker(machine)).await
    }

    fn waker(&self, machine: &InfraMachine) -> Waker {
        waker(&self.enqueue, &machine.metadata)
    }

    /// Returns a waker that ends any wait of a machine when there may be capacity.
    fn capacity_waker(&self, machine: &InfraMachine) -> Waker {
        let (states, uid) = (Arc::clone(&self.states), machine.metadata.uid().to_owned());
        let waker = self.waker(machine);
        Waker::new(move || {
            states.signal_capacity(&uid);
            waker.wake();
        })
    }

    /// Admits a create. When capacity is known to be exhausted, the machine is enqueued when there may be
    /// capacity.
    pub fn admit_create_or_wait<'a>(
        &self,
        machine: &InfraMachine,
        permit: &Permit<'a>,
        class: &MachineClass,
        requested: bool,
    ) -> Option<Attempt<'a>> {
        permit.admit_create_or_wait(
            class,
            machine.metadata.uid(),
            requested,
            self.capacity_waker(machine),
        )
    }

    /// Enqueues a machine that was refused for lack of capacity when there may be capacity again.
    pub fn await_capacity(&self, machine: &InfraMachine, permit: &Permit<'_>, class: &MachineClass) {
        permit.await_capacity(class, machine.metadata.uid(), self.capacity_waker(machine));
    }

    /// Returns the outcome of a machine that waits for capacity.
    pub fn awaiting_capacity(machine: &InfraMachine, spec: &ProviderSpec) -> Outcome {
        Outcome::AwaitingCapacity {
            failure_domain: failure_domain(spec).map(str::to_owned),
            requeue_after: LONG_WAIT.mul_f64(1.0 - LONG_WAIT_JITTER * jitter(machine.metadata.uid(), 0)),
        }
    }

    /// Returns whether the permit allows creating or finishing a VM. If not, the machine is enqueued later.
    pub fn may_create(&self, machine: &InfraMachine, permit: &mut Permit<'_>) -> bool {
        permit.may_create(machine.metadata.uid(), self.waker(machine))
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
