//! The current connections, and their replacement.
//!
//! A server whose storage hangs still answers pings. Behind one address there may be others that are well,
//! but HTTP/2 leads every request over the connection that there is. Over HTTP/1.1, a request that is given
//! up ends its connection, and the next one gets another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;

use super::{Connector, Http, http};

/// The connections in use.
pub(super) struct Connections {
    connector: Connector,
    current: RwLock<Arc<Generation>>,
    /// The least wait of a request after which it counts that the request was given up.
    stalled_after: Duration,
}

/// The connections of a time. Watches have one of their own: they take streams for as long as they last, of
/// which a server allows a connection so many, and what is not read of them must not take room from answers.
struct Generation {
    requests: Connection,
    watches: Connection,
}

struct Connection {
    http: Http,
    /// How many answers have begun.
    answers: AtomicU64,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The request is answered as soon as it is done.
    Request,
    /// The answer of the request lasts.
    Watch,
}

/// A request whose answer has not begun. If it is dropped in this state, after long enough, and no other
/// request of its connection was answered meanwhile, the next request gets a new connection. Requests under
/// way go on over the old one, which is closed after them.
pub(super) struct Unanswered {
    connections: Arc<Connections>,
    generation: Arc<Generation>,
    purpose: Purpose,
    sent: Instant,
    /// The number of answers when the request was sent; none once it is answered.
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

    /// Returns the connection for a request that is sent now.
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

    /// Replaces these connections, unless they have been replaced.
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

    /// Records that the answer has begun.
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
