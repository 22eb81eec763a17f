//! The errors of a reconcile. A driver's answer is an outcome instead.

use std::time::Duration;

use crate::api::retry::Backoff;

/// A reconcile that could not be finished. The object stays as it is and is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object changed since it was read, or a cache is behind. The next reconcile reads the object again.
    #[error("{action} conflicts with a newer version of the object")]
    Conflict {
        /// The action that failed.
        action: &'static str,
    },
    /// The object does not exist.
    #[error("{action} failed: the object does not exist")]
    Gone {
        /// The action that failed.
        action: &'static str,
    },
    /// The API server refused or could not be reached.
    #[error("{action} failed")]
    Api {
        /// The action that failed.
        action: &'static str,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// A value could not be written as JSON.
    #[error("{action} failed")]
    Encode {
        /// The action that failed.
        action: &'static str,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// Returns the message of a request's error. An answer of the API server is reported by its message alone:
/// kube's text would repeat it in Debug format.
pub fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

impl Error {
    /// Classifies an error of the API server.
    pub fn api(action: &'static str, error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict { action },
            kube::Error::Api(status) if status.code == 404 => Self::Gone { action },
            _ => Self::Api {
                action,
                source: Box::new(error),
            },
        }
    }

    /// Whether the API server refused this object alone. An unreachable server, an expired token and too many
    /// requests concern all objects.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api { source, .. } => matches!(
                &**source,
                kube::Error::Api(status) if !matches!(status.code, 401 | 429 | 500..600)
            ),
            Self::Conflict { .. } | Self::Gone { .. } | Self::Encode { .. } => true,
        }
    }

    /// Returns how long to wait before the next attempt, after this many failures in a row (from 1).
    pub fn wait(&self, attempt: u32) -> Duration {
        const CONFLICT: Backoff = Backoff {
            first: Duration::from_millis(100),
            longest: Duration::from_millis(51_200),
        };
        const OTHERS: Backoff = Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_mins(5),
        };
        match self {
            Self::Conflict { .. } => CONFLICT.wait(attempt),
            Self::Gone { .. } | Self::Api { .. } | Self::Encode { .. } => OTHERS.wait(attempt),
        }
    }
}
