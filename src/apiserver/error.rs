//! The errors of a reconcile, besides a driver's answer, which is an outcome and no error.

use std::time::Duration;

use crate::api::retry::Backoff;

/// A reconcile that could not be finished. The object stays as it is and is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object changed since it was read, or a cache is behind. Nothing is lost: the next reconcile reads
    /// anew.
    #[error("{action} conflicts with a newer version of the object")]
    Conflict {
        /// What was being written.
        action: &'static str,
    },
    /// The object is gone.
    #[error("{action} failed: the object does not exist")]
    Gone {
        /// What was being done.
        action: &'static str,
    },
    /// The API server refused or could not be reached.
    #[error("{action} failed")]
    Api {
        /// What was being done.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// A value could not be written as JSON.
    #[error("{action} failed")]
    Encode {
        /// What was being written.
        action: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// An error of a request, in the API server's words where it has answered: kube's own text has the answer
/// once more, as a value of Rust.
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

    /// Whether the API server has refused this object alone, rather than been unreachable, or taken no
    /// request: an expired token and too many requests concern all objects.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api { source, .. } => matches!(
                &**source,
                kube::Error::Api(status) if !matches!(status.code, 401 | 429 | 500..600)
            ),
            Self::Conflict { .. } | Self::Gone { .. } | Self::Encode { .. } => true,
        }
    }

    /// How long to wait before the next try, after this many failures in a row (from 1).
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
