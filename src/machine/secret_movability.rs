//! Whether the Secret with a machine's credentials moves with it.

/// Whether `clusterctl move` takes the Secret with the credentials along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretMovability {
    /// It was not read.
    Unread,
    /// It does, or there is none.
    Movable,
    /// It leaves the one of this name behind.
    LeftBehind(String),
}
