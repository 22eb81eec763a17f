//! How long a driver's NOT_FOUND may be stale.

use std::time::Duration;

use tokio::time::Instant;

use super::Executor;
use crate::api::retry::MIN_REQUEUE;
use crate::machine::outcome::Outcome;
use cmi_driver::ProviderId;

impl Executor<'_, '_, '_> {
    /// Returns how much longer a NOT_FOUND of the driver may be stale. `window` is the driver's consistency
    /// window. Returns `None` when the answer is reliable.
    pub fn behind_for(&self, window: Duration) -> Option<Duration> {
        let absent_for = self.ctx.states.absent_for(self.object.uid(), Instant::now());
        window
            .checked_sub(absent_for)
            .filter(|left| !left.is_zero())
            .map(|left| left.max(MIN_REQUEUE))
    }

    /// Returns the outcome for a VM with a known id that the driver does not find.
    pub fn gone_or_behind(&self, id: ProviderId) -> Outcome {
        match self.behind_for(self.permit.known_capabilities().consistency_window) {
            Some(requeue_after) => Outcome::Absent { requeue_after },
            None => Outcome::Vanished(id),
        }
    }
}
