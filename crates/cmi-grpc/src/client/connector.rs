//! Bare connections to a plugin, for the conformance suite and for the author of a driver: the client of the
//! provider would hide some answers from them.

use http::Uri;
use hyper::client::conn::http2::SendRequest;
use tokio::time::Instant;
use tonic::body::Body;

use super::config::{ConfigError, ENDPOINT_VARIABLE, GrpcConfig, Timeouts};
use super::connection::Connection;
use super::first_bytes::FirstBytes;
use super::handshake;
use super::target::{DialError, Target};
use crate::proto::capcmi::v1::get_extension_capabilities_response::Call;
use cmi_driver::{ErrorChain, Status};

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
    /// It does not answer what was asked.
    #[error("{0}")]
    Call(Status),
}

impl From<DialError> for ConnectError {
    fn from(error: DialError) -> Self {
        Self::Dial(ErrorChain(&error).to_string())
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
        Ok(self.open().await?.into_parts())
    }

    /// The calls of the extension that the plugin declares, by the names of `capcmi.v1`; nothing when it does
    /// not serve the extension. GetMachine and ListMachinesPaged are among them, which the driver of the
    /// provider makes in the place of other calls.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn extension_calls(&self) -> Result<Option<Vec<String>>, ConnectError> {
        let connection = self.open().await?;
        let deadline = Instant::now() + self.timeouts.connect;
        let declared = handshake::extension(&connection, deadline)
            .await
            .map_err(|error| ConnectError::Call(error.into()))?;
        Ok(declared.map(|declared| {
            let names = declared.calls.into_iter().map(|number| {
                Call::try_from(number).map_or_else(
                    |_| format!("{number} (not known to this version)"),
                    |call| call.as_str_name().to_owned(),
                )
            });
            names.collect()
        }))
    }

    async fn open(&self) -> Result<Connection, ConnectError> {
        let dialled = self.target.dial(&FirstBytes::default()).await?;
        Connection::open(dialled.stream, self.target.origin(), self.timeouts)
            .await
            .map_err(ConnectError::Http2)
    }
}
