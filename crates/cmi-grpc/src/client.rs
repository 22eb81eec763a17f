//! The driver that calls a plugin: a separate process, in any language, that serves the Common Machine
//! Interface.
//!
//! A call needs a session: a connection on which the plugin has declared its name and capabilities. A call
//! without a session opens a new session. Undeclared calls are not sent.
//!
//! The meaning of a failed call depends on how it ended: see `exchange` and `call_error`.

mod call_error;
mod calls;
mod channel;
mod config;
mod connection;
mod connector;
mod exchange;
mod first_bytes;
mod handshake;
mod metadata_observer;
mod session;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

pub use config::{ConfigError, ENDPOINT_VARIABLE, GrpcConfig, TlsConfig};
pub use connector::{ConnectError, Connector};
pub use metadata_observer::MetadataObserver;

use crate::memory::MemoryAddress;
use calls::Rpc;
use channel::Channel;
use cmi_driver::{Code, Operation, Result, Status};
use session::Session;
use target::Target;

/// The maximum age of a session before a new handshake: behind a proxy, the plugin may have been replaced
/// without notice.
const MAX_SESSION_AGE: Duration = Duration::from_mins(5);

/// The driver that calls a plugin.
#[derive(Debug)]
pub struct GrpcDriver {
    channel: Channel,
    deadlines: Deadlines,
    max_session_age: Duration,
}

/// A call that the plugin declared.
struct SessionCall {
    operation: Operation,
    session: Arc<Session>,
    deadline: Instant,
}

/// How long the caller waits for each call.
#[derive(Clone, Debug)]
pub struct Deadlines(BTreeMap<Operation, Duration>);

impl Deadlines {
    /// For a call that is not named.
    const OTHERS: Duration = Duration::from_mins(1);

    /// Creates the timeouts, by call. A call without an entry has a minute.
    pub fn new(timeouts: impl IntoIterator<Item = (Operation, Duration)>) -> Self {
        Self(timeouts.into_iter().collect())
    }

    /// Returns the plugin's timeout: a little shorter, so that its answer arrives while the caller still
    /// waits.
    fn of(&self, operation: Operation) -> Duration {
        let timeout = self.0.get(&operation).copied().unwrap_or(Self::OTHERS);
        timeout.saturating_sub((timeout / 10).min(Duration::from_secs(1)))
    }
}

impl GrpcDriver {
    /// A driver that has not connected yet.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration leads to no plugin.
    pub fn new(config: &GrpcConfig, deadlines: Deadlines) -> std::result::Result<Self, ConfigError> {
        let variable = std::env::var(ENDPOINT_VARIABLE).ok();
        Ok(Self {
            channel: Channel::new(config.target(variable)?, config.timeouts()),
            deadlines,
            max_session_age: MAX_SESSION_AGE,
        })
    }

    /// Returns a driver that calls a plugin at an address within the process.
    pub fn in_memory(address: MemoryAddress, deadlines: Deadlines) -> Self {
        Self {
            channel: Channel::new(Target::Memory(address), GrpcConfig::default().timeouts()),
            deadlines,
            max_session_age: MAX_SESSION_AGE,
        }
    }

    /// Adds an observer of the metadata of answers.
    #[must_use]
    pub fn with_metadata_observer(mut self, observer: Arc<dyn MetadataObserver>) -> Self {
        self.channel.observe_metadata(observer);
        self
    }

    /// Returns a declaration from the plugin's handshake, without asking the plugin again.
    async fn of_session<T>(
        &self,
        operation: Operation,
        read: impl FnOnce(&Session) -> T + Send,
    ) -> Result<T> {
        let given = self.deadlines.of(operation);
        let session = timeout_at(Instant::now() + given, self.channel.session())
            .await
            .unwrap_or_else(|_elapsed| Err(too_late(operation, given)))?;
        Ok(read(&session))
    }

    /// Makes a declared call, before its deadline.
    async fn call<Q: Rpc>(&self, request: Q) -> Result<Q::Response> {
        let operation = Q::OPERATION;
        let given = self.deadlines.of(operation);
        let deadline = Instant::now() + given;
        let session = self.ready_session(operation, deadline, given).await?;
        let call = SessionCall {
            operation,
            session,
            deadline,
        };
        let answered = async {
            let answer = request.invoke(&call).await;
            call.session.confirmed(deadline, answer).await
        };
        timeout_at(deadline, answered)
            .await
            .unwrap_or_else(|_elapsed| Err(too_late(operation, given)))
    }

    /// Returns a session that allows the call. Until there is one, nothing is sent.
    async fn ready_session(
        &self,
        operation: Operation,
        deadline: Instant,
        given: Duration,
    ) -> Result<Arc<Session>> {
        let session = timeout_at(deadline, self.channel.session())
            .await
            .unwrap_or_else(|_elapsed| Err(too_late(operation, given)))
            .map_err(Status::with_never_sent)?;
        session
            .check_callable(operation)
            .map_err(Status::with_never_sent)?;
        Ok(session)
    }
}

fn too_late(operation: Operation, given: Duration) -> Status {
    Status::new(
        Code::DeadlineExceeded,
        format!(
            "the plugin did not answer {operation} within {} s",
            given.as_secs_f32()
        ),
    )
}
