//! A configured driver: what `InfraMachine.spec.driver` names.
//!
//! Layer 2: knows [`cmi_driver`], [`crate::leadership`] and [`crate::metrics`], no concrete driver and no
//! reconciler. A call of a driver needs a [`Turn`], and is made through [`Turn::driver`], which holds every
//! call to the rules that are the same for all.

mod breaker;
mod bucket;
mod caller;
mod contact;
mod credentials;
mod guard;
mod limits;
mod registry;
mod standing;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::leadership::Leadership;
use crate::metrics::{Metrics, PermitCount};
use cmi_driver::{Capabilities, Driver, MachineClass, Operation, ProviderSpec, Result, Secrets, Status};

pub use breaker::{HeldBack, Trial, is_held_back};
pub use contact::{Facts, Reachability};
pub use credentials::{CredentialsDirectory, InvalidCredentials};
pub use limits::{Limits, Namespaces, Timeouts};
pub use registry::{ConfiguredDrivers, DuplicateName, ResolveError};
pub use standing::Standing;
pub use turns::{Applicant, Bell, Load, Share};

use caller::Caller;
use contact::Contact;
use guard::GuardedDriver;
use turns::Turns;

/// A waiter for a turn is called when there is one, and looks again after this time should the call get lost.
pub const TURN_WAIT: Duration = Duration::from_mins(1);
/// How often those are called for whose creates there may be room, and those that have to say that they wait.
const CALL_INTERVAL: Duration = Duration::from_secs(1);
/// How many of these are called at once.
const SHOWN_AT_ONCE: usize = 20;

/// How a driver is used: the part of its configuration that is the same for every kind of driver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What `spec.driver` says.
    pub name: String,
    /// The namespaces that may use it.
    pub namespaces: Namespaces,
    /// How much is asked of it.
    pub limits: Limits,
    /// The credentials for machines that name no Secret; nothing where the driver gets none then.
    pub credentials: Option<CredentialsDirectory>,
    /// How long after a create that was given up its VM may still come to be seen; `None`
    /// is for the driver to say.
    pub create_settle_time: Option<Duration>,
}

/// How long after a create that was given up its VM may still come to be seen, where neither the
/// configuration nor the driver says.
pub const CREATE_SETTLE_TIME: Duration = Duration::from_mins(5);

/// A configured driver, guarded.
#[derive(Debug)]
pub struct ConfiguredDriver {
    name: Arc<str>,
    namespaces: Namespaces,
    create_timeout: Duration,
    create_settle_time: Option<Duration>,
    driver: GuardedDriver,
    contact: Arc<Contact>,
    standing: watch::Sender<Standing>,
    turns: Arc<Turns>,
    credentials: Option<CredentialsDirectory>,
}

/// The right to make one call after the other on a driver. There are as many as calls that may run at the
/// same time; it is given back when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    driver: &'a ConfiguredDriver,
    namespace: Box<str>,
    share: Share,
}

impl ConfiguredDriver {
    /// A provider that has not spoken to its driver yet. The driver is called under
    /// the given leadership only.
    pub fn new(
        settings: Settings,
        driver: Arc<dyn Driver>,
        leadership: Leadership,
        metrics: Arc<Metrics>,
    ) -> Self {
        let name: Arc<str> = settings.name.into();
        let caller = Caller {
            name: Arc::clone(&name),
            driver,
            leadership,
            metrics,
            timeouts: settings.limits.timeouts.clone(),
            credentials: settings.credentials.clone(),
        };
        let contact = Arc::new(Contact::new(caller.clone()));
        let turns = Arc::new(Turns::new(
            settings.limits.max_concurrent_calls,
            settings.namespaces.are_several(),
        ));
        let counted = Arc::clone(&turns);
        caller.metrics.permits(&name, move || counted.load().map(load));
        Self {
            name,
            namespaces: settings.namespaces,
            create_timeout: settings.limits.timeouts.of(Operation::CreateMachine),
            create_settle_time: settings.create_settle_time,
            driver: GuardedDriver::new(caller, Arc::clone(&contact), &settings.limits),
            contact,
            standing: watch::Sender::new(Standing::Unsettled),
            turns,
            credentials: settings.credentials,
        }
    }

    /// What `spec.driver` says.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether calls about machines that name no Secret have credentials all the same.
    pub fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// The credentials for calls about what names no Secret, as they are now; none where
    /// the drivers file gives none.
    ///
    /// # Errors
    /// They can't be read, and a call without them would say nothing about a VM.
    pub async fn credentials(&self) -> std::result::Result<Secrets, InvalidCredentials> {
        match &self.credentials {
            Some(directory) => directory.get().await,
            None => Ok(Secrets::default()),
        }
    }

    /// The right to call the driver now; `None` when it is busy. Nothing waits here, so that no worker is
    /// held up: the applicant gets a place in the queue, the same one however often it asks, and `bell` rings
    /// when it is worth to ask again, or to say that it waits: see [`Provider::is_wait_shown`].
    ///
    /// An applicant that wants no turn any more says so by [`Provider::withdraw`]. A bell may get lost when
    /// one does not: ask again now and then.
    pub fn try_turn(&self, share: Share, applicant: Applicant<'_>, bell: Bell) -> Option<Turn<'_>> {
        self.turns.take_or_wait(share, applicant, bell).then(|| Turn {
            driver: self,
            namespace: applicant.namespace.into(),
            share,
        })
    }

    /// The same for a task of the provider's own, which can wait.
    pub async fn turn(&self, share: Share, who: &str) -> Turn<'_> {
        let namespace = "";
        loop {
            let (call, called) = oneshot::channel();
            let bell = Box::new(move || {
                // The receiver may be gone.
                let _ = call.send(());
            });
            if let Some(turn) = self.try_turn(share, Applicant { who, namespace }, bell) {
                return turn;
            }
            let _ = timeout(TURN_WAIT, called).await;
        }
    }

    /// Whether `who` waits for a turn and should say so: it has waited for some seconds, in a queue that is
    /// not served within minutes.
    pub fn is_wait_shown(&self, who: &str) -> bool {
        self.turns.is_shown(who)
    }

    /// How many turns there are.
    pub fn turns(&self) -> u32 {
        self.turns.all()
    }

    /// Forgets `who`, which is no more: it stands in no line, and waits for no capacity.
    pub fn forget(&self, who: &str) {
        self.withdraw(who);
        self.driver.breakers().withdraw(who);
    }

    /// Takes `who` out of the line: it wants no turn any more. One that may stand there and does not come has
    /// to be taken out, or a turn is kept for it that others wait for.
    pub fn withdraw(&self, who: &str) {
        self.turns.withdraw(who);
    }

    /// What the driver says of itself. That is asked once for all, and besides the turns:
    /// where another caller is asking already, `bell` rings for `who` when it is worth to come
    /// again, and nothing waits here.
    pub async fn facts(&self, who: &str, bell: Bell) -> Facts {
        self.contact.facts(who, bell).await
    }

    /// Whether machines of this namespace may use it.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.contain(namespace)
    }

    /// Checks a provider spec against the schema that the driver publishes, if it does, and has since
    /// it was met. Makes no call.
    ///
    /// # Errors
    /// INVALID_ARGUMENT that names each field that is wrong and why.
    pub fn check_spec(&self, spec: &ProviderSpec) -> std::result::Result<(), Status> {
        self.contact.check_spec(spec)
    }

    /// Whether the driver answers, and news of it. That it became another is news too, or that it says
    /// something else of itself: see [`Provider::incarnation`] and [`Provider::revision`].
    pub fn reachable(&self) -> watch::Receiver<Reachability> {
        self.contact.reachability()
    }

    /// How long a create may be under way before it is given up.
    pub fn create_timeout(&self) -> Duration {
        self.create_timeout
    }

    /// How long after a create that was given up its VM may still come to be seen: what is
    /// configured, but never less than the driver's consistency window; without that, the window,
    /// where the driver declares one.
    pub fn create_settle_time(&self, capabilities: &Capabilities) -> Duration {
        let window = capabilities.consistency_window;
        match self.create_settle_time {
            Some(configured) => configured.max(window),
            None if window.is_zero() => CREATE_SETTLE_TIME,
            None => window,
        }
    }

    /// Whether the driver can be reached, for those that are only to hear of an outage
    /// that lasts, and news of it.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Keeps [`Provider::standing`] up to date for ever; what the probes say has to last for the whole grace.
    pub async fn keep_standing(&self, grace: Duration) {
        standing::debounce(self.reachable(), &self.standing, grace).await;
    }

    /// Which driver was met, counted from 1 for one outside of this process; see [`Driver::incarnation`].
    pub fn incarnation(&self) -> u64 {
        self.driver.incarnation()
    }

    /// Counts what the driver said of itself, from 1; the same said again is not counted.
    pub fn revision(&self) -> u64 {
        self.contact.revision()
    }

    /// Probes the driver for ever, from when this replica is the leader, and asks for its capabilities anew
    /// when it comes back. This has to be polled for [`Provider::reachable`] to tell news.
    pub async fn keep_in_contact(&self) {
        tokio::join!(self.contact.keep(), self.keep_calling());
    }

    /// Calls those for whose creates there may be room, and has those say so, at a pace that the API server
    /// can bear, that wait long for a turn.
    async fn keep_calling(&self) {
        loop {
            sleep(CALL_INTERVAL).await;
            self.driver.breakers().call_waiting();
            self.turns.have_waits_shown(SHOWN_AT_ONCE);
        }
    }
}

impl<'a> Turn<'a> {
    /// Whose turn it is.
    pub fn configured_driver(&self) -> &'a ConfiguredDriver {
        self.driver
    }

    /// The driver, guarded: every call is checked against leadership, capabilities and the circuit breaker,
    /// waits for the driver's rate, has a deadline, is counted, survives a panic, and answers no secrets.
    pub fn driver(&self) -> &dyn Driver {
        &self.driver.driver
    }

    /// What the driver is known to implement, without asking it: [`Capabilities::minimal`]
    /// before the first contact.
    pub fn known_capabilities(&self) -> Arc<Capabilities> {
        self.driver
            .contact
            .last_known()
            .unwrap_or_else(|| Arc::new(Capabilities::minimal()))
    }

    /// What the driver implements; asks it unless that is known. Callers that wait at the
    /// same time share one answer.
    ///
    /// # Errors
    /// The driver's, when it can't be asked. Nothing is known of its capabilities then,
    /// and nothing may be assumed.
    pub async fn ask_capabilities(&self) -> Result<Arc<Capabilities>> {
        self.driver.contact.capabilities().await
    }

    /// Whether `who` may go on to a create of this class, as far as capacity goes; else `bell` rings
    /// when there may be room. To be asked before anything is done for the create, which is then
    /// expected soon. Makes no call.
    pub fn has_capacity(&self, class: &MachineClass, who: &str, trial: Trial, bell: Bell) -> bool {
        self.driver.driver.admits(class, who, trial, bell)
    }

    /// Has `bell` ring when there may be room for a create of this class that was refused.
    pub fn await_capacity(&self, class: &MachineClass, who: &str, bell: Bell) {
        self.driver.driver.await_capacity(class, who, bell);
    }

    /// Takes note that a VM that was made with these credentials is gone: there may be room for others.
    pub fn note_gone(&self, secrets: &Secrets) {
        self.driver.driver.note_gone(secrets);
    }

    /// Whether this turn may be used to make a VM: it was taken for that, or there is still a
    /// turn besides the reserve.
    pub fn may_create(&mut self) -> bool {
        if self.share == Share::Upkeep && self.driver.turns.lend_to_create(&self.namespace) {
            self.share = Share::Create;
        }
        self.share == Share::Create
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.driver.turns.give_back(&self.namespace, self.share);
    }
}

/// As metrics name it.
fn load(load: Load) -> PermitCount {
    PermitCount {
        share: load.share.name(),
        in_use: u64::from(load.in_use),
        waiting: u64::try_from(load.waiting).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
pub(crate) mod tests;
