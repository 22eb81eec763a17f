//! How a drain ends. Pure.

use std::time::Duration;

/// The maximum duration of the whole drain. After it, Cluster API continues as without a drain.
pub const MAX_DRAIN: Duration = Duration::from_hours(2);
/// How long the workload cluster may be unreachable during a drain.
pub const MAX_OUTAGE: Duration = Duration::from_mins(10);

/// Why the hook is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// No pod with volumes is left.
    Drained,
    /// The machine no longer requests the drain, or the provider runs without the feature.
    NotAskedFor,
    /// The InfraMachine is deleted or being deleted, so nothing is left to protect.
    NoInfraMachine,
    /// Cluster API does not drain this Node, for this reason.
    Skipped(&'static str),
    /// The drain took longer than its limit.
    TimedOut(Duration),
    /// The workload cluster was unreachable for too long.
    Outage,
    /// The Node belongs to another machine, with this providerID.
    ForeignNode(Option<String>),
}
