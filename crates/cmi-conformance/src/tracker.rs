//! Every VM that a case may have made, so that nothing stays behind.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::order::Order;
use cmi_driver::{Code, LastKnownState, Machine, ProviderId};

/// The machines of one case, in the order in which they were asked for.
#[derive(Debug, Default)]
pub struct Tracker(Mutex<Vec<Noted>>);

/// A machine that may have a VM.
#[derive(Clone, Debug)]
pub struct Noted {
    /// As it was asked for.
    pub order: Order,
    /// A create was answered with the VM: there was one for sure.
    pub was_made: bool,
    /// How many creates nobody has heard the end of: they may still make it.
    pub under_way: usize,
    /// The id of the VM that was heard of last.
    pub id: Option<ProviderId>,
    /// The state that the driver gave last.
    pub state: Option<LastKnownState>,
}

impl Noted {
    fn new(order: &Order) -> Self {
        Self {
            order: order.clone(),
            was_made: false,
            under_way: 0,
            id: None,
            state: None,
        }
    }

    fn is(&self, order: &Order) -> bool {
        (&self.order.name, &self.order.class.provider_spec) == (&order.name, &order.class.provider_spec)
    }

    /// There is a VM. What is not said this time stays as it was.
    fn exists(&mut self, id: Option<ProviderId>, state: Option<LastKnownState>) {
        self.was_made = true;
        self.id = id.or(self.id.take());
        self.state = state.or(self.state.take());
    }
}

impl Tracker {
    /// Notes a machine; has to be done before the call that may make it.
    pub fn note(&self, order: &Order) {
        self.last(order, |_| ());
    }

    /// Notes a create; has to be done before it.
    pub fn asked(&self, order: &Order) {
        self.last(order, |noted| noted.under_way += 1);
    }

    /// Notes how a create ended.
    pub fn answered(&self, order: &Order, answer: &cmi_driver::Result<Machine>) {
        self.update(order, |noted| match answer {
            Ok(machine) => {
                noted.under_way = 0;
                noted.exists(
                    Some(machine.provider_id.clone()),
                    machine.last_known_state.clone(),
                );
            }
            Err(status) => {
                if is_definite(status.code()) {
                    noted.under_way = noted.under_way.saturating_sub(1);
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
    pub fn made(&self, order: &Order, id: Option<ProviderId>, state: Option<LastKnownState>) {
        self.last(order, |noted| noted.exists(id, state));
    }

    /// What was noted, and is somebody else's to delete from now on.
    pub fn take(&self) -> Vec<Noted> {
        std::mem::take(&mut *self.noted())
    }

    /// Changes what is noted of a machine, which comes first to be deleted.
    fn last(&self, order: &Order, change: impl FnOnce(&mut Noted)) {
        let mut all = self.noted();
        let before = all.iter().position(|noted| noted.is(order));
        let mut noted = before.map_or_else(|| Noted::new(order), |at| all.remove(at));
        change(&mut noted);
        all.push(noted);
    }

    fn update(&self, order: &Order, change: impl FnOnce(&mut Noted)) {
        if let Some(noted) = self.noted().iter_mut().find(|noted| noted.is(order)) {
            change(noted);
        }
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a create that was answered so does nothing any more.
const fn is_definite(code: Code) -> bool {
    match code {
        Code::Canceled | Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => false,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated
        | Code::Uninitialized => true,
    }
}
