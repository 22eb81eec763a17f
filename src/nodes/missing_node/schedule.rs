//! When the next look at each machine is due, in memory.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The next looks, by the UID of the InfraMachine. Machines that have a Node have no entry.
#[derive(Debug, Default)]
pub struct Schedule(Mutex<HashMap<String, Instant>>);

impl Schedule {
    /// Returns the wait until the next look. `first` is the wait for a machine without an entry.
    pub(super) fn wait(&self, uid: &str, first: impl FnOnce() -> Duration) -> Duration {
        let now = Instant::now();
        let mut due = self.0.lock();
        let due = due.entry(uid.to_owned()).or_insert_with(|| now + first());
        due.saturating_duration_since(now)
    }

    /// Schedules the next look after this pause.
    pub(super) fn set(&self, uid: &str, pause: Duration) {
        self.0.lock().insert(uid.to_owned(), Instant::now() + pause);
    }

    /// Forgets a machine that is deleted, or that has a Node.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
