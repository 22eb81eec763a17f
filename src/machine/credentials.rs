//! What a reconcile has seen of the Secret with a machine's credentials.

/// Whether `clusterctl move` takes the Secret with the credentials along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// They were not read.
    Unread,
    /// It does, or there is none.
    Movable,
    /// It leaves the one of this name behind.
    LeftBehind(String),
}
