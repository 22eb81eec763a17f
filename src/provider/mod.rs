//! A configured driver: what `InfraMachine.spec.provider` names.
//!
//! Layer 2: knows [`crate::driver`], [`crate::leadership`] and [`crate::metrics`], no concrete driver and no
//! reconciler. Whoever calls a driver does it through [`Provider::driver`], which holds every call to the rules that
//! are the same for all.

mod bucket;
mod caller;
mod contact;
mod gate;
mod guard;
mod limits;
mod registry;
mod spec_schema;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::driver::{Capabilities, Driver, MachineClass, ProviderSpec, Result, Status};
use crate::leadership::Leadership;
use crate::metrics::Metrics;

pub use caller::NOT_LEADER;
pub use contact::Reachability;
pub use limits::{Limits, Namespaces, Timeouts};
pub use registry::{DuplicateName, Providers, ResolveError};

use caller::Caller;
use contact::Contact;
use gate::CapacityGate;
use guard::GuardedDriver;

/// How a driver is used: the part of its configuration that is the same for every kind of driver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What `spec.provider` says.
    pub name: String,
    /// Who may use it.
    pub namespaces: Namespaces,
    /// How much is asked of it.
    pub limits: Limits,
}

/// A configured driver, guarded.
#[derive(Debug)]
pub struct Provider {
    name: Arc<str>,
    namespaces: Namespaces,
    driver: GuardedDriver,
    contact: Arc<Contact>,
    gate: Arc<CapacityGate>,
}

impl Provider {
    /// A provider that has not spoken to its driver yet. The driver is called under the given leadership only.
    pub fn new(
        settings: Settings,
        driver: Arc<dyn Driver>,
        leadership: Leadership,
        metrics: Arc<Metrics>,
    ) -> Self {
        let name: Arc<str> = settings.name.into();
        let caller = Caller {
            provider: Arc::clone(&name),
            driver,
            leadership,
            metrics,
            timeouts: settings.limits.timeouts.clone(),
        };
        let contact = Arc::new(Contact::new(caller.clone()));
        let gate = Arc::new(CapacityGate::default());
        Self {
            name,
            namespaces: settings.namespaces,
            driver: GuardedDriver::new(caller, Arc::clone(&contact), Arc::clone(&gate), &settings.limits),
            contact,
            gate,
        }
    }

    /// What `spec.provider` says.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver, guarded: every call is checked against leadership, capabilities and the capacity gate, waits for
    /// its turn, has a deadline, is counted, survives a panic, and answers no secrets.
    pub fn driver(&self) -> &dyn Driver {
        &self.driver
    }

    /// What the driver is known to implement, without asking it: [`Capabilities::minimal`] before the first contact.
    /// Where a decision hangs on it, use [`Provider::contact`].
    pub fn capabilities(&self) -> Arc<Capabilities> {
        self.contact.last_known()
    }

    /// What the driver implements; asks it when nobody has yet. Callers that wait at the same time share one answer.
    ///
    /// # Errors
    /// The driver's, when it can't be asked. Nothing is known of its capabilities then, and nothing may be assumed.
    pub async fn contact(&self) -> Result<Arc<Capabilities>> {
        self.contact.capabilities().await
    }

    /// Whether machines of this namespace may use it.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.contain(namespace)
    }

    /// Checks a provider spec against the schema that the driver publishes, if it does. Makes no call.
    ///
    /// # Errors
    /// INVALID_ARGUMENT that names each field that is wrong and why.
    pub fn check_spec(&self, spec: &ProviderSpec) -> std::result::Result<(), Status> {
        self.contact.check_spec(spec)
    }

    /// How long creates of this class are held back, because driver or pool were exhausted; nothing when they are not.
    pub fn capacity_gate_closed_for(&self, class: &MachineClass) -> Option<Duration> {
        self.gate
            .closed_for(&gate::Key::of(class, &self.contact.last_known().tag_path))
    }

    /// Whether the driver answers, and news of it. That it became another is news too: see [`Provider::incarnation`].
    pub fn reachable(&self) -> watch::Receiver<Reachability> {
        self.contact.reachability()
    }

    /// Which driver was met, counted from 1 for one outside of this process; see [`Driver::incarnation`].
    pub fn incarnation(&self) -> u64 {
        self.driver.incarnation()
    }

    /// Probes the driver for ever, from when this replica is the leader, and asks for its capabilities anew when it
    /// comes back. Somebody has to poll this for [`Provider::reachable`] to tell news.
    pub async fn keep_in_contact(&self) {
        self.contact.keep().await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
