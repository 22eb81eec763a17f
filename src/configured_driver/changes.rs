//! One call at a time changes a VM that is up, whichever controller makes it.
//!
//! A reconcile of an InfraMachine makes one call after the other. A remediation restarts the same VM from a
//! work queue of its own: beside an update, a driver that locks its VM would refuse the restart, and the
//! Machine be replaced for it.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The machines whose VMs are being changed, by their UIDs.
#[derive(Debug, Default)]
pub struct Changes(Mutex<HashSet<String>>);

/// The right to change the VM of a machine. It is given back when it is dropped.
#[derive(Debug)]
pub struct Change<'a> {
    changes: &'a Changes,
    uid: &'a str,
}

impl Changes {
    /// The right to change the VM of the machine of this UID, unless another has it.
    pub fn try_begin<'a>(&'a self, uid: &'a str) -> Option<Change<'a>> {
        let is_free = self.of().insert(uid.to_owned());
        is_free.then_some(Change { changes: self, uid })
    }

    fn of(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.changes.of().remove(self.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_changed_by_one_at_a_time_and_others_beside_it() {
        let changes = Changes::default();
        let first = changes.try_begin("u-1");
        assert!(first.is_some() && changes.try_begin("u-1").is_none());
        assert!(changes.try_begin("u-2").is_some());
        drop(first);
        assert!(changes.try_begin("u-1").is_some());
    }
}
