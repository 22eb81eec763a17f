//! Bare connections to a plugin, for the conformance suite: the driver would hide some answers from it.

use http::Uri;
use hyper::client::conn::http2::SendRequest;
use tonic::body::Body;

use super::config::{ConfigError, ENDPOINT_VARIABLE, GrpcConfig, Timeouts};
use super::connection::Connection;
use super::first_bytes::FirstBytes;
use super::target::{DialError, Target};

/// Makes bare connections to a plugin.
#[derive(Debug)]
pub struct Connector {
    target: Target,
    timeouts: Timeouts,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The plugin can't be reached.
    #[error("the plugin can't be reached: {0}")]
    Dial(String),
    /// It speaks another protocol.
    #[error("HTTP/2 failed")]
    Http2(#[source] hyper::Error),
}

impl From<DialError> for ConnectError {
    fn from(error: DialError) -> Self {
        Self::Dial(super::in_words(&error))
    }
}

impl GrpcConfig {
    /// What makes connections on which nothing is checked.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration leads to no plugin.
    pub fn connector(&self) -> Result<Connector, ConfigError> {
        Ok(Connector {
            target: self.target(std::env::var(ENDPOINT_VARIABLE).ok())?,
            timeouts: self.timeouts(),
        })
    }
}

impl Connector {
    /// A new connection, and what requests on it are for.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(&self) -> Result<(SendRequest<Body>, Uri), ConnectError> {
        let dialled = self.target.dial(&FirstBytes::default()).await?;
        let connection = Connection::open(dialled.stream, self.target.origin(), self.timeouts)
            .await
            .map_err(ConnectError::Http2)?;
        Ok(connection.into_parts())
    }
}
