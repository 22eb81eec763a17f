//! Locks that limit a process to one change of a machine at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::{Code, Result, Status};

/// How long a call waits for the lock that another call on the same machine holds.
const WAIT: Duration = Duration::from_secs(20);

/// A lock for each name that is held or waited for. A driver holds the lock of a machine during every call
/// that changes it. The locks know nothing of other processes.
#[derive(Debug, Default)]
pub struct Locks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

/// Keeps other calls away until it is dropped. A job that outlives a dropped call takes it along.
#[derive(Debug)]
#[must_use = "the lock ends when this is dropped"]
pub struct HeldLock {
    _guard: OwnedMutexGuard<()>,
}

impl Locks {
    /// Waits for the lock of a name. The name must be the same for all machine objects that cannot exist
    /// beside each other, such as [`MachineKey::lock_name`](super::MachineKey::lock_name).
    ///
    /// # Errors
    /// ABORTED when another call holds the lock for too long.
    pub async fn hold(&self, name: &str) -> Result<HeldLock> {
        let lock = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, lock| lock.strong_count() > 0);
            all.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
                let lock = Arc::default();
                all.insert(name.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        match timeout(WAIT, lock.lock_owned()).await {
            Ok(guard) => Ok(HeldLock { _guard: guard }),
            Err(_elapsed) => {
                let what = "another call for the machine is in progress";
                Err(Status::new(Code::Aborted, what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_name_is_held_once_and_others_are_free() {
        let locks = Locks::default();
        let first = locks.hold("a").await.unwrap();
        assert!(locks.hold("a").now_or_never().is_none());
        assert!(locks.hold("b").now_or_never().is_some());
        drop(first);
        assert!(locks.hold("a").now_or_never().is_some());
        let _last = locks.hold("c").await.unwrap();
        assert_eq!(
            locks.0.lock().unwrap().len(),
            1,
            "a lock without a holder is forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_aborts_others_in_time() {
        let locks = Locks::default();
        let _hangs = locks.hold("a").await.unwrap();
        assert_eq!(locks.hold("a").await.unwrap_err().code(), Code::Aborted);
    }
}
