//! Tracks every VM that a case may have made, so that none is left behind.

use std::sync::Arc;

use super::ledger::Ledger;
use super::machine_request::MachineRequest;
use cmi_driver::{Code, LastKnownState, Machine, ProviderId};
use parking_lot::Mutex;

/// The machines of one case, in the order of their requests.
#[derive(Debug, Default)]
pub struct Tracker {
    tracked: Mutex<Vec<Tracked>>,
    /// The VMs that the whole run may have made.
    ledger: Arc<Ledger>,
}

/// A machine that may have a VM.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// The request for the machine.
    pub request: MachineRequest,
    /// Whether a create returned the VM, so that a VM certainly existed.
    pub was_made: bool,
    /// The number of creates without an answer, which may still create the VM.
    pub in_flight: usize,
    /// The last known id of the VM.
    pub id: Option<ProviderId>,
    /// The last state that the driver gave.
    pub state: Option<LastKnownState>,
}

impl Tracked {
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

    /// Records that a VM exists. An id or a state that is not given stays as it was.
    fn exists(&mut self, id: Option<ProviderId>, state: Option<LastKnownState>) {
        self.was_made = true;
        self.id = id.or(self.id.take());
        self.state = state.or(self.state.take());
    }
}

impl Tracker {
    /// Returns the tracker of a case in the run that has this ledger.
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            tracked: Mutex::default(),
            ledger,
        }
    }

    /// Records a machine. Must be called before the call that may create it.
    pub fn record(&self, request: &MachineRequest) {
        self.last(request, |_| ());
    }

    /// Records a create. The caller does so before the call.
    pub fn record_request(&self, request: &MachineRequest) {
        self.last(request, |tracked| tracked.in_flight += 1);
    }

    /// Records how a create ended.
    pub fn answered(&self, request: &MachineRequest, answer: &cmi_driver::Result<Machine>) {
        self.update(request, |tracked| match answer {
            Ok(machine) => {
                tracked.in_flight = 0;
                tracked.exists(
                    Some(machine.provider_id.clone()),
                    machine.last_known_state.clone(),
                );
            }
            Err(status) => {
                // A create with a transient error may still be carried out.
                if !status.code().is_transient() {
                    tracked.in_flight = tracked.in_flight.saturating_sub(1);
                }
                let state = status.last_known_state().cloned();
                match status.machine().filter(|_| status.code() == Code::Uninitialized) {
                    Some(machine) => tracked.exists(Some(machine.provider_id.clone()), state),
                    None => tracked.state = state.or(tracked.state.take()),
                }
            }
        });
    }

    /// Records that a VM certainly exists, with its known attributes.
    pub fn made(&self, request: &MachineRequest, id: Option<ProviderId>, state: Option<LastKnownState>) {
        self.last(request, |tracked| tracked.exists(id, state));
    }

    /// Takes the tracked machines. The caller then has to delete them.
    pub fn take(&self) -> Vec<Tracked> {
        std::mem::take(&mut *self.tracked.lock())
    }

    /// Changes the record of a machine, and moves the machine to the end: it is deleted first.
    fn last(&self, request: &MachineRequest, change: impl FnOnce(&mut Tracked)) {
        let mut all = self.tracked.lock();
        let before = all.iter().position(|tracked| tracked.is(request));
        let mut tracked = before.map_or_else(|| Tracked::new(request), |at| all.remove(at));
        change(&mut tracked);
        self.ledger.record(&tracked.request, tracked.id.as_ref());
        all.push(tracked);
    }

    fn update(&self, request: &MachineRequest, change: impl FnOnce(&mut Tracked)) {
        if let Some(tracked) = self.tracked.lock().iter_mut().find(|tracked| tracked.is(request)) {
            change(tracked);
            self.ledger.record(&tracked.request, tracked.id.as_ref());
        }
    }
}
