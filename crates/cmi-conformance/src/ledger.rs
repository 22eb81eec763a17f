//! Every VM that a run may have made and that is not known to be gone. If the process has to end before they
//! are deleted, these VMs are named.

use std::collections::BTreeMap;

use super::leftover::Leftover;
use super::machine_request::MachineRequest;
use cmi_driver::ProviderId;
use parking_lot::Mutex;

/// The reason why the VMs of the ledger may be left.
const ENDED_BEFORE: &str = "the run ended before it was deleted";

/// Every VM that a run may have made and that is not known to be gone. Shared by all cases.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<BTreeMap<(String, String), Option<ProviderId>>>);

impl Ledger {
    /// Records that there may be a VM, and its id when it is known.
    pub(crate) fn record(&self, request: &MachineRequest, id: Option<&ProviderId>) {
        let mut machines = self.0.lock();
        let known = machines.entry(key(request)).or_default();
        if let Some(id) = id {
            *known = Some(id.clone());
        }
    }

    /// Records that the VM is gone.
    pub(crate) fn gone(&self, request: &MachineRequest) {
        self.0.lock().remove(&key(request));
    }

    /// Returns the VMs that would be left if the process ended now.
    pub fn left(&self) -> Vec<Leftover> {
        let left = |((cluster, name), id): (&(String, String), &Option<ProviderId>)| {
            Leftover::of(cluster, name, id.as_ref(), ENDED_BEFORE)
        };
        self.0.lock().iter().map(left).collect()
    }
}

fn key(request: &MachineRequest) -> (String, String) {
    (request.cluster(), request.name.clone())
}
