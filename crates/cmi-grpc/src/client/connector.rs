//! Bare connections to a plugin, for the conformance suite and for the author of a driver: the client of the
//! provider would hide some answers from them.

use std::time::Duration;

use http::Uri;
use hyper::client::conn::http2::SendRequest;
use tokio::time::{Instant, timeout};
use tonic::body::Body;

use super::config::{ConfigError, ENDPOINT_VARIABLE, GrpcConfig, Timeouts};
use super::connection::Connection;
use super::first_bytes::FirstBytes;
use super::handshake;
use super::target::{DialError, Target};
use crate::memory::MemoryAddress;
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
    #[error("cannot reach the plugin: {0}")]
    Dial(String),
    /// It speaks another protocol.
    #[error("HTTP/2 error")]
    Http2(#[source] hyper::Error),
    /// The call failed.
    #[error("{0}")]
    Call(Status),
    /// It takes longer than a connection may: to connect, to agree on TLS, or to answer.
    #[error("the plugin did not answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
}

impl From<DialError> for ConnectError {
    fn from(error: DialError) -> Self {
        Self::Dial(ErrorChain(&error).to_string())
    }
}

impl GrpcConfig {
    /// Returns a connector. Its connections do not check the plugin's answers.
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
    /// Returns a connector to an address within the process.
    pub fn in_memory(address: MemoryAddress) -> Self {
        Self {
            target: Target::Memory(address),
            timeouts: GrpcConfig::default().timeouts(),
        }
    }

    /// Opens a connection. Also returns the URI for its requests.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(&self) -> Result<(SendRequest<Body>, Uri), ConnectError> {
        Ok(self.in_time(self.open()).await?.into_parts())
    }

    /// Returns the calls of the extension that the plugin declares, by the names of `capcmi.v1`; `None` if it
    /// does not serve the extension. Includes GetMachine and ListMachinesPaged, which replace other calls in
    /// the provider's driver.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn extension_calls(&self) -> Result<Option<Vec<String>>, ConnectError> {
        let deadline = Instant::now() + self.timeouts.connect;
        let declared = self.in_time(async {
            let answer = handshake::extension(&self.open().await?, deadline).await;
            answer.map_err(|error| ConnectError::Call(error.into()))
        });
        let declared = declared.await?;
        Ok(declared.map(|declared| {
            let names = declared.calls.into_iter().map(|number| {
                Call::try_from(number).map_or_else(
                    |_| format!("{number} (unknown to this version)"),
                    |call| call.as_str_name().to_owned(),
                )
            });
            names.collect()
        }))
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, ConnectError> {
        let longest = self.timeouts.connect;
        timeout(longest, work)
            .await
            .unwrap_or(Err(ConnectError::TimedOut(longest)))
    }

    async fn open(&self) -> Result<Connection, ConnectError> {
        let dialled = self.target.dial(&FirstBytes::default()).await?;
        Connection::open(dialled.stream, self.target.origin(), self.timeouts)
            .await
            .map_err(ConnectError::Http2)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    fn connector(target: Target) -> Connector {
        let second = Duration::from_secs(1);
        let timeouts = Timeouts {
            connect: second,
            keepalive: 60 * second,
            keepalive_answer: 60 * second,
        };
        Connector { target, timeouts }
    }

    #[tokio::test]
    async fn a_silent_plugin_times_out() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("silent.sock");
        let _silent = UnixListener::bind(&socket).unwrap();
        let connector = connector(Target::Unix(socket));
        let error = timeout(Duration::from_secs(30), connector.extension_calls())
            .await
            .unwrap()
            .unwrap_err();
        assert_eq!(error.to_string(), "the plugin did not answer within 1 s");
    }
}
