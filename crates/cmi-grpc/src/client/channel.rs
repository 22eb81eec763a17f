//! The channel to a plugin. Holds the session, or the back-off without a session.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::Timeouts;
use super::connection::Connection;
use super::first_bytes::FirstBytes;
use super::handshake::Handshake;
use super::metadata_observer::{MetadataObserver, Observing};
use super::session::Session;
use super::target::{DialError, Target};
use cmi_driver::{Code, ErrorChain, Result, Status};

/// The wait after the first failure; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait. No caller tries a plugin that is down more often than its probe does, and an attempt to
/// connect is cheap for a plugin.
const MAX_WAIT: Duration = Duration::from_secs(8);

/// The channel to a plugin. The first call opens a missing connection; all others wait for it.
#[derive(Debug)]
pub(super) struct Channel {
    target: Target,
    timeouts: Timeouts,
    latest: RwLock<Latest>,
    opening: Mutex<ConnectBackoff>,
    observing: Observing,
}

/// The current session, and the plugin that it is with or was with: both change together.
#[derive(Debug, Default)]
struct Latest {
    session: Option<Arc<Session>>,
    connection_generation: u64,
}

/// The back-off between attempts to connect. The back-off of calls is in the provider, which this crate does
/// not depend on.
#[derive(Debug, Default)]
struct ConnectBackoff {
    failures: u32,
    last: Option<(Instant, String)>,
}

/// The error for a server that requires a client certificate where none is configured, with the remedy.
const NO_CERTIFICATE: &str = "the server requires a client certificate: set --cert-file and --key-file, or \
    `tls.certFile` and `tls.keyFile` in the drivers file";

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("HTTP/2 error")]
    Http2(#[source] hyper::Error),
    #[error("the handshake with the plugin failed: {0}")]
    Handshake(String),
    #[error("no answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The attempt failed, and the first bytes from the endpoint show why.
    #[error("{0}")]
    Found(String),
}

impl OpenError {
    /// Whether the server may have ended the connection. In TLS 1.3 a client only learns that it was refused
    /// after its own part of the handshake.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Dial(error) => error.is_refusal(),
            Self::Http2(_) | Self::Handshake(_) => true,
            Self::TimedOut(_) | Self::Found(_) => false,
        }
    }
}

impl Channel {
    pub(super) fn new(target: Target, timeouts: Timeouts) -> Self {
        Self {
            target,
            timeouts,
            latest: RwLock::default(),
            opening: Mutex::default(),
            observing: None,
        }
    }

    /// Adds the observer to all later connections.
    pub(super) fn observe_metadata(&mut self, observer: Arc<dyn MetadataObserver>) {
        self.observing = Some(observer);
    }

    /// Counts the plugins that this channel has connected to: after an outage, the plugin may be another.
    pub(super) fn connection_generation(&self) -> u64 {
        self.latest.read().connection_generation
    }

    /// Returns the current session, or connects.
    ///
    /// # Errors
    /// UNAVAILABLE, without a new attempt during the back-off.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        if let Some(session) = self.living() {
            return Ok(session);
        }
        let mut backoff = self.opening.lock().await;
        if let Some(session) = self.living() {
            return Ok(session);
        }
        if let Some(why) = backoff.why_not_yet() {
            return Err(self.unavailable(why));
        }
        match self.open().await {
            Ok(session) => {
                *backoff = ConnectBackoff::default();
                Ok(self.install(session))
            }
            Err(error) => Err(self.unavailable(backoff.failed(ErrorChain(&error).to_string()))),
        }
    }

    /// Opens a new connection beside the old one when the TLS files have changed, or the plugin's handshake
    /// is old. The old connection ends with its last call. If no new connection is ready within `time`, the
    /// old one stays.
    pub(super) async fn renew(&self, longest: Duration, time: Duration) {
        if timeout(time, self.renew_in_time(longest)).await.is_err() {
            let (target, error) = (&self.target, OpenError::TimedOut(time));
            tracing::warn!(%target, %error, "cannot reconnect; keeping the old connection");
        }
    }

    async fn renew_in_time(&self, longest: Duration) {
        let Some(session) = self.living() else { return };
        let target = &self.target;
        let files_changed = match target.fingerprint().await {
            Ok(now) => now != session.fingerprint,
            Err(error) => {
                let error = ErrorChain(&error).to_string();
                tracing::warn!(%target, error, "cannot read the TLS files; keeping the old connection");
                return;
            }
        };
        if !files_changed && session.since.elapsed() < longest {
            return;
        }
        let _opening = self.opening.lock().await;
        match self.open().await {
            Ok(session) => {
                self.install(session);
                if files_changed {
                    tracing::info!(%target, "reconnected with changed TLS files");
                }
            }
            Err(error) => {
                let error = ErrorChain(&error).to_string();
                tracing::warn!(%target, error, "cannot reconnect; keeping the old connection");
            }
        }
    }

    /// Stops using the silent connection of this session. A session that has replaced it stays.
    pub(super) fn give_up(&self, silent: &Arc<Session>) {
        let mut latest = self.latest.write();
        latest.session.take_if(|used| Arc::ptr_eq(used, silent));
    }

    fn living(&self) -> Option<Arc<Session>> {
        self.latest().filter(|session| !session.is_over())
    }

    fn latest(&self) -> Option<Arc<Session>> {
        self.latest.read().session.clone()
    }

    async fn open(&self) -> std::result::Result<Session, OpenError> {
        let deadline = Instant::now() + self.timeouts.connect;
        let first = FirstBytes::default();
        let opening = async {
            let dialled = self.target.dial(&first).await?;
            let connection = Connection::open(dialled.stream, self.target.origin(), self.timeouts)
                .await
                .map_err(OpenError::Http2)?
                .observed_by(self.observing.clone());
            let handshake = Handshake::receive(&connection, deadline)
                .await
                .map_err(|status| OpenError::Handshake(status.message().to_owned()))?;
            Ok(Session::new(connection, handshake, dialled.fingerprint))
        };
        timeout_at(deadline, opening)
            .await
            .unwrap_or(Err(OpenError::TimedOut(self.timeouts.connect)))
            .map_err(|error| self.found(&first, error))
    }

    /// The reason for a missing session, from the bytes that came from the endpoint.
    fn found(&self, first: &FirstBytes, error: OpenError) -> OpenError {
        match (first.found(self.target.is_secure()), error) {
            (Some(found), _) => OpenError::Found(found),
            (None, error) if first.misses_certificate() && error.is_refusal() => {
                OpenError::Found(format!("{NO_CERTIFICATE}: {}", ErrorChain(&error)))
            }
            (None, OpenError::Http2(_) | OpenError::Handshake(_)) if first.is_none() => {
                OpenError::Found(format!(
                    "the server closed the connection without an answer: {}",
                    self.target.what_to_check()
                ))
            }
            (None, error) => error,
        }
    }

    /// Makes this session the current one.
    fn install(&self, mut session: Session) -> Arc<Session> {
        let same = self.living().filter(|old| old.handshake == session.handshake);
        let mut latest = self.latest.write();
        if let Some(old) = same {
            session.inherit(&old);
        } else {
            latest.connection_generation += 1;
            session.connection_generation = latest.connection_generation;
            let info = &session.handshake.info;
            tracing::debug!(target = %self.target, name = info.name, version = info.version,
                "connected to the plugin");
        }
        Arc::clone(latest.session.insert(Arc::new(session)))
    }

    fn unavailable(&self, why: &str) -> Status {
        Status::new(
            Code::Unavailable,
            format!("cannot reach the plugin at {}: {why}", self.target),
        )
    }
}

impl ConnectBackoff {
    /// Returns why no attempt may be made now; `None` if an attempt may be made.
    fn why_not_yet(&self) -> Option<&str> {
        let (not_before, why) = self.last.as_ref()?;
        (Instant::now() < *not_before).then_some(why)
    }

    fn failed(&mut self, why: String) -> &str {
        let wait = wait(self.failures, random());
        self.failures = self.failures.saturating_add(1);
        &self.last.insert((Instant::now() + wait, why)).1
    }
}

/// Returns the wait after one more failure than `failures`. `jitter` (0 to 1, exclusive) reduces it by up to
/// half, so that providers that share a plugin do not reconnect at the same moment.
fn wait(failures: u32, jitter: f64) -> Duration {
    let full = FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(MAX_WAIT);
    full.mul_f64(1.0 - 0.5 * jitter)
}

/// Returns a random number from 0 to 1, good enough for jitter.
fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish() & 0xffff;
    f64::from(u16::try_from(bits).unwrap_or_default()) / 65536.0
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_longest_and_jitter_only_shortens_it() {
        let millis: Vec<_> = (0..7).map(|n| wait(n, 0.0).as_millis()).collect();
        assert_eq!(millis, [250, 500, 1000, 2000, 4000, 8000, 8000]);
        assert_eq!(wait(u32::MAX, 0.0), MAX_WAIT);
        assert!(wait(0, 0.999) >= FIRST_WAIT / 2);
        assert!((0.0..1.0).contains(&random()));
    }

    #[test]
    fn providers_that_lose_a_plugin_together_do_not_come_back_together() {
        let waits: HashSet<_> = (0..16).map(|_| wait(0, random())).collect();
        assert!(waits.len() > 1, "{waits:?}");
    }
}
