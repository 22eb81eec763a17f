//! How a drain ends. Pure.

use std::time::Duration;

/// The longest that the whole drain may take; Cluster API then goes on as if there had been none.
pub const MAX_DRAIN: Duration = Duration::from_hours(2);
/// How long the workload cluster may be unreachable meanwhile.
pub const MAX_OUTAGE: Duration = Duration::from_mins(10);

/// Why the hook is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// No pod with volumes is left.
    Drained,
    /// The machine no longer asks for the drain, or the provider runs without the feature.
    NotAskedFor,
    /// The InfraMachine is gone or deleted: nothing is left to protect.
    NoInfraMachine,
    /// Cluster API does not drain this Node: why.
    Skipped(&'static str),
    /// The time for the whole drain is over.
    TimedOut(Duration),
    /// The workload cluster was unreachable for too long.
    Outage,
    /// The Node belongs to another machine: its providerID.
    ForeignNode(Option<String>),
}
