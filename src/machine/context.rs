//! What every reconcile works with.

use std::sync::Arc;

use kube::Client;
use kube::runtime::reflector::ObjectRef;

use super::jitter::jitter;
use super::memory::Memory;
use super::outcome::Outcome;
use crate::admission::Guard;
use crate::api::Guarded;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::Events;
use crate::caches::{Caches, ClusterIds};
use crate::configured_driver::{
    Applicant, Bell, ConfiguredDriver, ConfiguredDrivers, Facts, Share, TURN_WAIT, Trial, Turn,
};
use crate::metrics::Metrics;
use crate::retry::LONG_WAIT;
use cmi_driver::MachineClass;

/// What every reconcile works with.
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
    pub memory: Arc<Memory>,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Says whether identities may be trusted.
    pub guard: Arc<Guard>,
    /// Queues a machine for reconciling.
    pub wake: Arc<dyn Fn(Reference) + Send + Sync>,
}

/// Names a machine.
pub type Reference = ObjectRef<Guarded<InfraMachine>>;

impl Context {
    /// The right to call the driver for this machine; without one, it is reconciled
    /// again when its turn comes.
    pub fn turn<'a>(
        &self,
        machine: &InfraMachine,
        driver: &'a ConfiguredDriver,
        share: Share,
    ) -> Option<Turn<'a>> {
        let applicant = Applicant {
            who: uid_of(machine),
            namespace: machine.metadata.namespace.as_deref().unwrap_or_default(),
        };
        driver.try_turn(share, applicant, self.bell(machine))
    }

    /// What the machine's driver says of itself; where another task is asking, the machine is reconciled
    /// again when there is an answer.
    pub async fn facts(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> Facts {
        driver.facts(uid_of(machine), self.bell(machine)).await
    }

    fn bell(&self, machine: &InfraMachine) -> Bell {
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        let (wake, reference) = (Arc::clone(&self.wake), ObjectRef::new(name).within(namespace));
        Box::new(move || wake(reference))
    }

    /// What has a machine tried again, whatever its wait, when there may be room for it.
    fn alarm(&self, machine: &InfraMachine) -> Bell {
        let (memory, uid) = (Arc::clone(&self.memory), uid_of(machine).to_owned());
        let bell = self.bell(machine);
        Box::new(move || {
            memory.has_capacity(&uid);
            bell();
        })
    }

    /// The outcome of a machine for which there is known to be no room; nothing when its VM may be created.
    /// Asked before anything is done for the create.
    pub fn held_back(
        &self,
        machine: &InfraMachine,
        turn: &Turn<'_>,
        class: &MachineClass,
        trial: Trial,
    ) -> Option<Outcome> {
        let has_capacity = turn.has_capacity(class, uid_of(machine), trial, self.alarm(machine));
        (!has_capacity).then(|| Self::awaiting_capacity(machine))
    }

    /// Has a machine tried again that was refused for want of capacity, when there may be room.
    pub fn await_capacity(&self, machine: &InfraMachine, turn: &Turn<'_>, class: &MachineClass) {
        turn.await_capacity(class, uid_of(machine), self.alarm(machine));
    }

    /// The outcome of a machine that is called when there may be room.
    pub fn awaiting_capacity(machine: &InfraMachine) -> Outcome {
        Outcome::HeldBack {
            again: LONG_WAIT.mul_f64(1.0 - 0.1 * jitter(uid_of(machine), 0)),
        }
    }

    /// Whether a turn may be used to make or finish a VM; else the machine waits for one that may.
    pub fn may_create(&self, machine: &InfraMachine, turn: &mut Turn<'_>) -> bool {
        if turn.may_create() {
            return true;
        }
        match self.turn(machine, turn.configured_driver(), Share::Create) {
            Some(own) => {
                *turn = own;
                true
            }
            None => false,
        }
    }

    /// Waits for a turn. That is published of a wait that will be long: a fleet that comes up at the pace of
    /// its driver would else be written twice.
    pub fn waiting_for_a_turn(&self, machine: &InfraMachine, driver: &ConfiguredDriver) -> Outcome {
        let uid = uid_of(machine);
        tracing::debug!(
            name = machine.metadata.name,
            "the driver is busy: waiting for a turn"
        );
        let again = TURN_WAIT.mul_f64(1.0 - 0.5 * jitter(uid, 0));
        if driver.is_wait_shown(uid) {
            Outcome::Queued { again }
        } else {
            Outcome::Waiting(Some(again))
        }
    }
}

fn uid_of(machine: &InfraMachine) -> &str {
    machine.metadata.uid.as_deref().unwrap_or_default()
}
