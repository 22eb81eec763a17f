//! Locks that let one call at a time change an existing VM, whichever controller makes the call.
//!
//! A reconcile of an InfraMachine makes its calls one after another. A remediation restarts the same VM from
//! another work queue. During an update, a driver that locks its VM would refuse the restart, and the Machine
//! would be replaced.

use std::collections::HashSet;

use parking_lot::Mutex;

/// The machines whose VMs are locked, by their UIDs.
#[derive(Debug, Default)]
pub struct VmLocks(Mutex<HashSet<String>>);

/// The exclusive right to change the VM of a machine, until the lock is dropped.
#[derive(Debug)]
pub struct VmLock<'a> {
    locks: &'a VmLocks,
    uid: &'a str,
}

impl VmLocks {
    /// Locks the VM of the machine of this UID, unless it is locked.
    pub fn try_lock<'a>(&'a self, uid: &'a str) -> Option<VmLock<'a>> {
        let is_free = self.0.lock().insert(uid.to_owned());
        // The lock is created only where it is held: dropping a lock unlocks the VM.
        is_free.then(|| VmLock { locks: self, uid })
    }
}

impl Drop for VmLock<'_> {
    fn drop(&mut self) {
        self.locks.0.lock().remove(self.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_changed_by_one_at_a_time_and_others_beside_it() {
        let locks = VmLocks::default();
        let first = locks.try_lock("u-1");
        assert!(first.is_some());
        for asked in 1..3 {
            assert!(locks.try_lock("u-1").is_none(), "asked {asked} times");
        }
        assert!(locks.try_lock("u-2").is_some());
        drop(first);
        assert!(locks.try_lock("u-1").is_some());
    }
}
