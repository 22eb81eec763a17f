//! Every VM that a run may have made and has not seen gone yet: what is named when the process has to end
//! before it is deleted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::leftover::Leftover;
use super::machine_request::MachineRequest;
use cmi_driver::ProviderId;

/// Why what is in here may be left.
const ENDED_BEFORE: &str = "the run ended before it was deleted";

/// Every VM that a run may have made and has not seen gone yet. Shared by all cases.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<BTreeMap<(String, String), Option<ProviderId>>>);

impl Ledger {
    /// There may be a VM; its id, when it is known.
    pub(crate) fn record(&self, request: &MachineRequest, id: Option<&ProviderId>) {
        let mut machines = self.machines();
        let known = machines.entry(key(request)).or_default();
        if let Some(id) = id {
            *known = Some(id.clone());
        }
    }

    /// There is none any more.
    pub(crate) fn gone(&self, request: &MachineRequest) {
        self.machines().remove(&key(request));
    }

    /// What would be left if the process ended now.
    pub fn left(&self) -> Vec<Leftover> {
        let left = |((cluster, name), id): (&(String, String), &Option<ProviderId>)| {
            Leftover::of(cluster, name, id.as_ref(), ENDED_BEFORE)
        };
        self.machines().iter().map(left).collect()
    }

    fn machines(&self) -> MutexGuard<'_, BTreeMap<(String, String), Option<ProviderId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(request: &MachineRequest) -> (String, String) {
    (request.cluster(), request.name.clone())
}
