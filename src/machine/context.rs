//! The clients, caches and queues of a reconcile, and how it waits for a permit or for capacity.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::runtime::reflector::ObjectRef;

use super::outcome::Outcome;
use super::runtime_state::RuntimeStates;
use crate::admission::AdmissionPolicies;
use crate::api::conditions::{self, reason};
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::Events;
use crate::caches::{Caches, ClusterIds};
use crate::configured_driver::{
    ConfiguredDriver, ConfiguredDrivers, DriverState, Permit, Priority, ProbeHint, Requester, Waker,
};
use crate::metrics::Metrics;
use crate::reconciler::{Enqueue, waker};
use crate::retry::{LONG_WAIT, LONG_WAIT_JITTER, jitter};
use cmi_driver::MachineClass;

/// When a machine that waits for a permit asks again, should its wake-up get lost.
const LOST_WAKE_UP: Duration = Duration::from_hours(1);

/// What every reconcile works with.
#[derive(Clone)]
pub struct Context {
    /// Writes and live reads.
    pub client: Client,
    /// What is watched.
    pub caches: Caches,
    /// Cluster ids, once found.
    pub cluster_ids: Arc<ClusterIds>,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// What is remembered between reconciles.
    pub states: Arc<RuntimeStates>,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Whether identities may be trusted.
    pub policies: Arc<AdmissionPolicies>,
    /// Queues a machine for reconciling.
    pub enqueue: Enqueue,
}

/// Names a machine.
pub type Reference = ObjectRef<DeserializeGuard<InfraMachine>>;

impl Context {
    /// The right to call the driver for this machine; without one, it is reconciled
    /// again when there is one.
    pub fn permit<'a>(
        &self,
        machine: &InfraMachine,
        driver: &'a ConfiguredDriver,
        priority: Priority,
    ) -> Option<Permit<'a>> {
        let requester = Requester {
            key: machine.metadata.uid(),
            namespace: machine.metadata.namespace(),
            shows_another_wait: shows_another_wait(machine),
        };
        driver.try_acquire(priority, requester, self.waker(machine))
    }

    /// What is known of the machine's driver; where another task is asking, the machine is reconciled
    /// again when there is an answer.
    pub async fn driver_state(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> DriverState {
        driver.state(machine.metadata.uid(), self.waker(machine)).await
    }

    fn waker(&self, machine: &InfraMachine) -> Waker {
        waker(&self.enqueue, &machine.metadata)
    }

    /// Wakes a machine, whatever its wait, when there may be room for it.
    fn capacity_waker(&self, machine: &InfraMachine) -> Waker {
        let (states, uid) = (Arc::clone(&self.states), machine.metadata.uid().to_owned());
        let waker = self.waker(machine);
        Waker::new(move || {
            states.signal_capacity(&uid);
            waker.wake();
        })
    }

    /// The outcome of a machine for which there is known to be no room; nothing when its VM may be created.
    /// Asked before anything is done for the create.
    pub fn circuit_open(
        &self,
        machine: &InfraMachine,
        permit: &Permit<'_>,
        class: &MachineClass,
        reason: ProbeHint,
    ) -> Option<Outcome> {
        let has_capacity = permit.has_capacity(
            class,
            machine.metadata.uid(),
            reason,
            self.capacity_waker(machine),
        );
        (!has_capacity).then(|| Self::awaiting_capacity(machine))
    }

    /// Has a machine tried again that was refused for want of capacity, when there may be room.
    pub fn await_capacity(&self, machine: &InfraMachine, permit: &Permit<'_>, class: &MachineClass) {
        permit.await_capacity(class, machine.metadata.uid(), self.capacity_waker(machine));
    }

    /// The outcome of a machine that is woken when there may be room.
    pub fn awaiting_capacity(machine: &InfraMachine) -> Outcome {
        Outcome::AwaitingCapacity {
            requeue_after: LONG_WAIT.mul_f64(1.0 - LONG_WAIT_JITTER * jitter(machine.metadata.uid(), 0)),
        }
    }

    /// Whether a permit may be used to make or finish a VM; else the machine waits for one that may.
    pub fn may_create(&self, machine: &InfraMachine, permit: &mut Permit<'_>) -> bool {
        if permit.may_create(machine.metadata.uid()) {
            return true;
        }
        match self.permit(machine, permit.configured_driver(), Priority::Create) {
            Some(own) => {
                *permit = own;
                true
            }
            None => false,
        }
    }

    /// Waits for a permit. That is published of a wait that will be long: a fleet that comes up at the pace
    /// of its driver would else be written twice.
    pub fn waiting_for_a_permit(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> Outcome {
        let uid = machine.metadata.uid();
        tracing::debug!(
            name = machine.metadata.name,
            "the driver is busy: waiting for a permit"
        );
        // It is woken when there is a permit: a fleet that waits asks no more often than that.
        let requeue_after = LOST_WAKE_UP.mul_f64(1.0 - 0.5 * jitter(uid, 0));
        if driver.should_report_wait(uid) {
            Outcome::Queued { requeue_after }
        } else {
            Outcome::Waiting(Some(requeue_after))
        }
    }
}

/// Whether its status shows that it waits for what comes before a permit. That wait is over once it asks for
/// one.
fn shows_another_wait(machine: &InfraMachine) -> bool {
    let status = machine.status.as_ref();
    let ready = status.and_then(|status| conditions::get(&status.conditions, conditions::READY));
    ready.is_some_and(|ready| {
        [
            reason::WAITING_FOR_OWNER,
            reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE,
            reason::WAITING_FOR_BOOTSTRAP_DATA,
        ]
        .contains(&&*ready.reason)
    })
}
