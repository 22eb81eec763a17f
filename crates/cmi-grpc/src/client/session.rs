//! A connection with the plugin's handshake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tokio::time::Instant;

use super::connection::Connection;
use super::handshake::{self, Handshake, PluginHealth};
use super::target::Fingerprint;
use cmi_driver::{Code, DeclaredCapabilities, Operation, Readiness, Result, Status};

/// A connection with the plugin's handshake.
#[derive(Debug)]
pub(super) struct Session {
    pub connection: Connection,
    pub handshake: Handshake,
    /// The number of the plugin that made the declarations, counted from 1; 0 until the session is used.
    pub connection_generation: u64,
    /// The time of the handshake.
    pub since: Instant,
    /// The fingerprint of the TLS files.
    pub fingerprint: Option<Fingerprint>,
    health: RwLock<PluginHealth>,
    /// The plugin is no longer at the other end.
    is_lost: AtomicBool,
}

impl Session {
    /// A new session that is not used yet.
    pub(super) fn new(
        connection: Connection,
        (handshake, health): (Handshake, PluginHealth),
        fingerprint: Option<Fingerprint>,
    ) -> Self {
        Self {
            connection,
            handshake,
            connection_generation: 0,
            since: Instant::now(),
            fingerprint,
            health: RwLock::new(health),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Shares the handshake and the generation of an earlier session with the same declarations.
    pub(super) fn inherit(&mut self, old: &Self) {
        self.handshake = old.handshake.clone();
        self.connection_generation = old.connection_generation;
    }

    /// The plugin's declared capabilities.
    pub(super) fn declared(&self) -> DeclaredCapabilities {
        DeclaredCapabilities {
            capabilities: Arc::clone(&self.handshake.capabilities),
            connection_generation: self.connection_generation,
        }
    }

    /// Whether no more calls can be made in it.
    pub(super) fn is_over(&self) -> bool {
        self.connection.is_closed() || self.is_lost.load(Ordering::Acquire)
    }

    /// Confirms that an answer comes from the plugin itself. A proxy that has lost its plugin answers
    /// UNIMPLEMENTED, too, and the driver would stop using calls that the plugin has. So the answer counts
    /// only while the plugin still answers with its name, as every plugin must (CMI-50).
    ///
    /// # Errors
    /// The error of the call; UNAVAILABLE if the plugin is lost, and then the session is over.
    pub(super) async fn confirmed<T>(&self, deadline: Instant, answer: Result<T>) -> Result<T> {
        match answer {
            Err(status) if status.code() == Code::Unimplemented => {
                self.confirm(deadline).await?;
                Err(status)
            }
            answer => answer,
        }
    }

    async fn confirm(&self, deadline: Instant) -> Result<()> {
        handshake::info(&self.connection, deadline)
            .await
            .map(drop)
            .map_err(|failure| {
                self.is_lost.store(true, Ordering::Release);
                let why = handshake::no_plugin(failure);
                Status::new(Code::Unavailable, why.message().to_owned())
            })
    }

    /// Checks that the call may be made: the plugin declared it, and is able to serve.
    ///
    /// The answers of an unhealthy plugin cannot be trusted: a wrong NOT_FOUND would lead to a second VM.
    pub(super) fn check_callable(&self, operation: Operation) -> Result<()> {
        self.handshake.capabilities.check_supported(operation)?;
        match &*self.health.read() {
            PluginHealth::Ready => Ok(()),
            PluginHealth::NotYet => Err(Status::new(Code::Unavailable, "the plugin is still starting")),
            PluginHealth::Unhealthy(why) => Err(Status::new(
                Code::Unavailable,
                format!("the plugin is not healthy: {why}"),
            )),
        }
    }

    /// Asks whether the plugin can serve, and remembers it (CMI-71, CMI-74).
    pub(super) async fn probe(&self, deadline: Instant) -> Result<Readiness> {
        let answer = handshake::probe(&self.connection, deadline).await;
        if handshake::is_unimplemented(&answer) {
            self.confirm(deadline).await?;
        }
        if let Some(health) = PluginHealth::from_probe(&answer) {
            *self.health.write() = health;
        }
        Ok(answer?)
    }
}
