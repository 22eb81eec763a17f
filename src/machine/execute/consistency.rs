//! How long a driver may be wrong about a VM that it does not see.

use std::time::Duration;

use tokio::time::Instant;

use super::Executor;
use crate::api::retry::MIN_REQUEUE;
use crate::machine::outcome::Outcome;
use cmi_driver::ProviderId;

impl Executor<'_, '_, '_> {
    /// Returns how much longer a driver that does not see the VM now may be behind, given its consistency
    /// window `window`; `None` when it can't be behind any more.
    pub fn behind_for(&self, window: Duration) -> Option<Duration> {
        let absent_for = self.ctx.states.absent_for(self.object.uid(), Instant::now());
        window
            .checked_sub(absent_for)
            .filter(|left| !left.is_zero())
            .map(|left| left.max(MIN_REQUEUE))
    }

    /// Returns the outcome of a VM whose id is known and that the driver does not see.
    pub fn gone_or_behind(&self, id: ProviderId) -> Outcome {
        match self.behind_for(self.permit.known_capabilities().consistency_window) {
            Some(requeue_after) => Outcome::Absent { requeue_after },
            None => Outcome::Vanished(id),
        }
    }
}
