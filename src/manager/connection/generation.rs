//! The current connections, and their replacement.
//!
//! A server whose storage hangs still answers pings. Other servers behind the same address may be healthy,
//! but HTTP/2 sends every request over the existing connection. Over HTTP/1.1, an abandoned request ends its
//! connection, and the next request gets another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;

use super::{Connector, Http, http};

pub(super) struct Connections {
    connector: Connector,
    current: RwLock<Arc<Generation>>,
    /// How long a request must have waited for its cancellation to count as a stall.
    stalled_after: Duration,
}

/// The connections of one generation. Watches have a separate connection: their streams last long, and a
/// server limits the streams of a connection. Their unread data must not take room from answers.
struct Generation {
    requests: Connection,
    watches: Connection,
}

struct Connection {
    http: Http,
    /// The number of answers that have begun.
    answers: AtomicU64,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A request with one answer.
    Request,
    /// A watch, whose answer lasts.
    Watch,
}

/// A request whose answer has not begun. The next request gets a new connection if this request is dropped in
/// this state after long enough, and its connection has answered no other request since. Requests in flight
/// continue over the old connection, which is closed after them.
pub(super) struct Unanswered {
    connections: Arc<Connections>,
    generation: Arc<Generation>,
    purpose: Purpose,
    sent: Instant,
    /// The number of answers when the request was sent; `None` once it is answered.
    answers: Option<u64>,
}

impl Connections {
    pub(super) fn new(connector: Connector, stalled_after: Duration) -> Self {
        let current = RwLock::new(Arc::new(Generation::new(&connector)));
        Self {
            connector,
            current,
            stalled_after,
        }
    }

    pub(super) fn send(self: &Arc<Self>, purpose: Purpose) -> Unanswered {
        let generation = Arc::clone(&self.current.read());
        let answers = generation.of(purpose).answers.load(Ordering::Relaxed);
        Unanswered {
            connections: Arc::clone(self),
            generation,
            purpose,
            sent: Instant::now(),
            answers: Some(answers),
        }
    }

    /// Replaces these connections, unless they are replaced already.
    fn replace(&self, stalled: &Arc<Generation>) {
        let mut current = self.current.write();
        if Arc::ptr_eq(&current, stalled) {
            *current = Arc::new(Generation::new(&self.connector));
            tracing::warn!("the API server does not answer on this connection; reconnecting");
        }
    }
}

impl Generation {
    fn new(connector: &Connector) -> Self {
        let connection = || Connection {
            http: http(connector.clone()),
            answers: AtomicU64::new(0),
        };
        Self {
            requests: connection(),
            watches: connection(),
        }
    }

    fn of(&self, purpose: Purpose) -> &Connection {
        match purpose {
            Purpose::Request => &self.requests,
            Purpose::Watch => &self.watches,
        }
    }
}

impl Unanswered {
    pub(super) fn http(&self) -> &Http {
        &self.generation.of(self.purpose).http
    }

    pub(super) fn answered(mut self) {
        self.answers = None;
        let connection = self.generation.of(self.purpose);
        connection.answers.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Some(answers) = self.answers else {
            return;
        };
        let connection = self.generation.of(self.purpose);
        if self.sent.elapsed() >= self.connections.stalled_after
            && connection.answers.load(Ordering::Relaxed) == answers
        {
            self.connections.replace(&self.generation);
        }
    }
}
