//! How a drain ends. Pure.

use std::time::Duration;

/// The longest that the whole drain may take; Cluster API goes on as if there had been none.
pub const MAX_DRAIN: Duration = Duration::from_hours(2);
/// For how long the workload cluster may be away meanwhile.
pub const MAX_OUTAGE: Duration = Duration::from_mins(10);

/// Why the hook is taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// No pod with volumes is left.
    Drained,
    /// The machine does not ask for it any more, or the provider runs without the feature.
    NotAskedFor,
    /// There is no InfraMachine any more, or it is deleted: there is nothing to be protected.
    NoInfraMachine,
    /// Cluster API does not drain this Node: why.
    Skipped(&'static str),
    /// The time for the whole drain is over.
    TimedOut(Duration),
    /// The workload cluster was away for too long.
    Outage,
    /// The Node is another machine's: its providerID.
    ForeignNode(Option<String>),
}
