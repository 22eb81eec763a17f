//! Every VM that a case may have made, so that nothing stays behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ledger::Ledger;
use super::machine_request::MachineRequest;
use cmi_driver::{Code, LastKnownState, Machine, ProviderId};

/// The machines of one case, in the order in which they were asked for.
#[derive(Debug, Default)]
pub struct Tracker {
    noted: Mutex<Vec<Noted>>,
    /// What the whole run may have made.
    ledger: Arc<Ledger>,
}

/// A machine that may have a VM.
#[derive(Clone, Debug)]
pub struct Noted {
    /// As it was asked for.
    pub request: MachineRequest,
    /// A create was answered with the VM: there was one for sure.
    pub was_made: bool,
    /// How many creates have no answer yet: they may still make it.
    pub in_flight: usize,
    /// The id of the VM that was heard of last.
    pub id: Option<ProviderId>,
    /// The state that the driver gave last.
    pub state: Option<LastKnownState>,
}

impl Noted {
    fn new(request: &MachineRequest) -> Self {
        Self {
            request: request.clone(),
            was_made: false,
            in_flight: 0,
            id: None,
            state: None,
        }
    }

    fn is(&self, request: &MachineRequest) -> bool {
        (&self.request.name, &self.request.class.provider_spec)
            == (&request.name, &request.class.provider_spec)
    }

    /// There is a VM. What is not said this time stays as it was.
    fn exists(&mut self, id: Option<ProviderId>, state: Option<LastKnownState>) {
        self.was_made = true;
        self.id = id.or(self.id.take());
        self.state = state.or(self.state.take());
    }
}

impl Tracker {
    /// For a case of the run that this ledger is of.
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            noted: Mutex::default(),
            ledger,
        }
    }

    /// Notes a machine; has to be done before the call that may make it.
    pub fn note(&self, request: &MachineRequest) {
        self.last(request, |_| ());
    }

    /// Notes a create; has to be done before it.
    pub fn asked(&self, request: &MachineRequest) {
        self.last(request, |noted| noted.in_flight += 1);
    }

    /// Notes how a create ended.
    pub fn answered(&self, request: &MachineRequest, answer: &cmi_driver::Result<Machine>) {
        self.update(request, |noted| match answer {
            Ok(machine) => {
                noted.in_flight = 0;
                noted.exists(
                    Some(machine.provider_id.clone()),
                    machine.last_known_state.clone(),
                );
            }
            Err(status) => {
                // A create that failed in passing may still be carried out.
                if !status.code().is_transient() {
                    noted.in_flight = noted.in_flight.saturating_sub(1);
                }
                let state = status.last_known_state().cloned();
                match status.machine().filter(|_| status.code() == Code::Uninitialized) {
                    Some(machine) => noted.exists(Some(machine.provider_id.clone()), state),
                    None => noted.state = state.or(noted.state.take()),
                }
            }
        });
    }

    /// Notes that there is a VM for sure, and what is known of it.
    pub fn made(&self, request: &MachineRequest, id: Option<ProviderId>, state: Option<LastKnownState>) {
        self.last(request, |noted| noted.exists(id, state));
    }

    /// What was noted. From now on, the caller has to delete it.
    pub fn take(&self) -> Vec<Noted> {
        std::mem::take(&mut *self.noted())
    }

    /// Changes what is noted of a machine, which comes first to be deleted.
    fn last(&self, request: &MachineRequest, change: impl FnOnce(&mut Noted)) {
        let mut all = self.noted();
        let before = all.iter().position(|noted| noted.is(request));
        let mut noted = before.map_or_else(|| Noted::new(request), |at| all.remove(at));
        change(&mut noted);
        self.ledger.note(&noted.request, noted.id.as_ref());
        all.push(noted);
    }

    fn update(&self, request: &MachineRequest, change: impl FnOnce(&mut Noted)) {
        if let Some(noted) = self.noted().iter_mut().find(|noted| noted.is(request)) {
            change(noted);
            self.ledger.note(&noted.request, noted.id.as_ref());
        }
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
