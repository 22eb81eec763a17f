//! The result of a reconcile.

use std::time::Duration;

/// When to reconcile an object again. kube's own type can be read only by kube's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    requeue_after: Option<Duration>,
}

impl Action {
    /// Requeues the object after this delay, unless it changes before.
    pub const fn requeue(after: Duration) -> Self {
        Self {
            requeue_after: Some(after),
        }
    }

    /// Reconciles the object only after a change.
    pub const fn await_change() -> Self {
        Self { requeue_after: None }
    }

    /// The delay of the requeue; `None` if the object waits for a change.
    pub const fn requeue_after(self) -> Option<Duration> {
        self.requeue_after
    }
}
