//! What may end the wait after a failure before its time.

/// What may have a failed call made again before its wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryTrigger {
    /// Something that passes by itself, such as an outage of the driver: it is over when the driver is back.
    Transient,
    /// Capacity was exhausted: there may be room when another machine is made or deleted.
    Capacity,
    /// Anything else.
    Other,
}
