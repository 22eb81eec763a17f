//! The connections of a server: limits their number, and chooses the connection to evict.
//!
//! An accept loop that waits for a free slot lets silent clients lock out all others. This server always
//! accepts the newest connection and evicts an old one for it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The wait after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The open connections of one server. Clones share the state.
///
/// # Guarantees
/// * Admitting a connection never waits for a client.
/// * At most `most` connections are served, and at most as many again are being closed.
/// * Connections that have made no request yet are one kind, connections that have made one are the other.
///   Within each kind, the peer address with the most connections loses its oldest. So a flood evicts itself,
///   and a client with another address stays.
/// * Each kind has half of the places to itself: idle connections do not evict working clients, and long
///   requests leave room for new connections.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Shared>);

/// The origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// This host, over a Unix socket.
    Local,
    /// An IPv4 address, or the network of an IPv6 address, since one client owns all addresses in it.
    Address(IpAddr),
}

/// A connection's place. Dropping it frees the place, so the connection has to be closed with it.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    evicted: CancellationToken,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    most: usize,
    table: Mutex<Table>,
    closed: Notify,
}

/// The table of connections. It decides which connection to evict, and does not access sockets.
#[derive(Debug, Default)]
struct Table {
    /// The connections that are served.
    served: BTreeMap<u64, Entry>,
    /// The number of served connections by kind and peer; no zeros.
    crowds: HashMap<(Kind, Peer), usize>,
    /// The number of connections that are served or being closed.
    open: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    peer: Peer,
    /// When it was opened or made its last request, in ticks of the table's clock.
    last: u64,
    evicted: CancellationToken,
}

/// Whether a connection has made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Waiting,
    Asked,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self::Address(match address.ip().to_canonical() {
            IpAddr::V4(ip) => IpAddr::V4(ip),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }
}

impl Connections {
    /// Room for `most` connections, and for two at least.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Shared {
            most: most.max(2),
            table: Mutex::default(),
            closed: Notify::new(),
        }))
    }

    /// Admits a new connection. If the server is full, evicts another connection and waits until it is
    /// closed.
    pub async fn admit(&self, peer: Peer) -> Ticket {
        let evicted = CancellationToken::new();
        let (id, is_full) = {
            let mut table = self.0.table.lock();
            let id = table.insert(peer, evicted.clone());
            let is_full = table.served.len() > self.0.most;
            if is_full {
                table.evict(self.0.most, Some(id));
            }
            (id, is_full)
        };
        let ticket = Ticket {
            id,
            evicted,
            shared: Arc::clone(&self.0),
        };
        if is_full {
            // Lets the server read earlier connections before the next connection may evict them.
            tokio::task::yield_now().await;
            while self.0.table.lock().open > 2 * self.0.most {
                self.0.closed.notified().await;
            }
        }
        ticket
    }

    /// Must be called when accepting fails, usually because file descriptors ran out. Evicts a connection,
    /// and waits a moment.
    pub async fn failed_to_accept(&self, error: &io::Error) {
        tracing::warn!(%error, "cannot accept a connection");
        self.0.table.lock().evict(self.0.most, None);
        sleep(ACCEPT_PAUSE).await;
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn insert(&mut self, peer: Peer, evicted: CancellationToken) -> u64 {
        let id = self.tick();
        let kind = Kind::Waiting;
        let entry = Entry {
            kind,
            peer,
            last: id,
            evicted,
        };
        self.served.insert(id, entry);
        self.join(kind, peer);
        self.open += 1;
        id
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.served.remove(&id)?;
        self.leave(entry.kind, entry.peer);
        Some(entry)
    }

    fn record_request(&mut self, id: u64) {
        let last = self.tick();
        let Some(entry) = self.served.get_mut(&id) else {
            return;
        };
        entry.last = last;
        let (before, peer) = (std::mem::replace(&mut entry.kind, Kind::Asked), entry.peer);
        self.leave(before, peer);
        self.join(Kind::Asked, peer);
    }

    fn join(&mut self, kind: Kind, peer: Peer) {
        *self.crowds.entry((kind, peer)).or_default() += 1;
    }

    fn leave(&mut self, kind: Kind, peer: Peer) {
        if let Some(count) = self.crowds.get_mut(&(kind, peer)) {
            *count -= 1;
            if *count == 0 {
                self.crowds.remove(&(kind, peer));
            }
        }
    }

    /// Evicts one connection of the kind that has more than half of the places. Chooses the peer with the
    /// most connections of that kind, and its connection that was silent for longest. Never evicts the
    /// newcomer.
    fn evict(&mut self, most: usize, newcomer: Option<u64>) {
        let of_kind = |kind| self.served.values().filter(|entry| entry.kind == kind).count();
        let kind = if of_kind(Kind::Asked) > most / 2 || of_kind(Kind::Waiting) == 0 {
            Kind::Asked
        } else {
            Kind::Waiting
        };
        let victim = self
            .served
            .iter()
            .filter(|(id, entry)| entry.kind == kind && newcomer != Some(**id))
            .max_by_key(|(_, entry)| {
                let crowd = self.crowds.get(&(kind, entry.peer));
                (crowd.copied(), std::cmp::Reverse(entry.last))
            })
            .map(|(id, _)| *id);
        if let Some(entry) = victim.and_then(|id| self.remove(id)) {
            entry.evicted.cancel();
        }
    }
}

impl Ticket {
    /// Must be called when the connection makes a request.
    pub fn record_request(&self) {
        self.shared.table.lock().record_request(self.id);
    }

    /// Resolves when the connection has to be closed, since there are too many.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.remove(self.id);
        table.open -= 1;
        drop(table);
        self.shared.closed.notify_one();
    }
}

/// A connection with its place, for servers that close a connection when reading fails.
///
/// Reading and writing fail once it is evicted, and reading also when the client's preface takes too long.
#[derive(Debug)]
pub struct Admitted<IO> {
    io: IO,
    preface: Option<Preface>,
    eviction: Pin<Box<WaitForCancellationFutureOwned>>,
    ticket: Arc<Ticket>,
}

/// The rest of the HTTP/2 preface, and its deadline.
#[derive(Debug)]
struct Preface {
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

/// Records that a connection makes a request. Does not keep the connection open.
#[derive(Clone, Debug)]
pub struct RequestRecorder(Weak<Ticket>);

impl RequestRecorder {
    /// Must be called when the connection makes a request.
    pub fn record_request(&self) {
        if let Some(ticket) = self.0.upgrade() {
            ticket.record_request();
        }
    }
}

impl<IO> Admitted<IO> {
    /// Wraps a connection whose preface (a number of bytes) has to arrive within the given time.
    pub fn new(io: IO, ticket: Ticket, preface: (usize, Duration)) -> Self {
        let (bytes, within) = preface;
        Self {
            io,
            preface: Some(Preface {
                bytes,
                deadline: Box::pin(sleep(within)),
            }),
            eviction: Box::pin(ticket.evicted.clone().cancelled_owned()),
            ticket: Arc::new(ticket),
        }
    }

    /// The recorder to be notified of requests.
    pub fn request_recorder(&self) -> RequestRecorder {
        RequestRecorder(Arc::downgrade(&self.ticket))
    }

    /// The error that ends an evicted connection; wakes the task when it is evicted later.
    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.eviction.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "closed to make room for other connections",
            )),
            Poll::Pending => Ok(()),
        }
    }

    fn poll_preface(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(preface) = &mut self.preface else {
            return Ok(());
        };
        match preface.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client sent no connection preface in time",
            )),
            Poll::Pending => Ok(()),
        }
    }

    fn count(&mut self, read: usize) {
        self.preface = self.preface.take().and_then(|preface| {
            let bytes = preface.bytes.saturating_sub(read);
            (bytes > 0).then_some(Preface { bytes, ..preface })
        });
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Admitted<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_evicted(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        self.count(buffer.filled().len().saturating_sub(before));
        if read.is_pending() {
            self.poll_preface(cx)?;
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Admitted<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_evicted(cx)?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_evicted(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_evicted(cx)?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_evicted(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn peer(number: u8) -> Peer {
        SocketAddr::from(([192, 0, 2, number], 1)).into()
    }

    fn is_evicted(ticket: &Ticket) -> bool {
        ticket.evicted.is_cancelled()
    }

    async fn admit_all(connections: &Connections, peer: Peer, count: usize) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        for _ in 0..count {
            tickets.push(connections.admit(peer).await);
        }
        tickets
    }

    #[tokio::test]
    async fn the_oldest_connection_makes_room_for_the_newest() {
        let connections = Connections::new(4);
        let tickets = admit_all(&connections, peer(1), 6).await;
        let evicted: Vec<_> = tickets.iter().map(is_evicted).collect();
        assert_eq!(evicted, [true, true, false, false, false, false]);
    }

    #[tokio::test]
    async fn a_flood_from_one_address_evicts_none_of_another() {
        let connections = Connections::new(8);
        let (first, second) = (connections.admit(peer(1)).await, connections.admit(peer(2)).await);
        for _ in 0..100 {
            connections.admit(peer(3)).await;
        }
        let flood = admit_all(&connections, peer(3), 12).await;
        assert!(!is_evicted(&first) && !is_evicted(&second));
        assert_eq!(flood.iter().filter(|ticket| is_evicted(ticket)).count(), 6);
    }

    #[tokio::test]
    async fn silent_connections_do_not_evict_those_that_have_asked() {
        let connections = Connections::new(8);
        let working = admit_all(&connections, peer(1), 4).await;
        working.iter().for_each(Ticket::record_request);
        let _silent = admit_all(&connections, peer(1), 12).await;
        assert!(!working.iter().any(is_evicted));
    }

    #[tokio::test]
    async fn connections_that_have_asked_leave_half_of_the_room_to_new_ones() {
        let connections = Connections::new(8);
        let working = admit_all(&connections, peer(1), 8).await;
        working.iter().for_each(Ticket::record_request);
        // The first makes another request, so the second is idle for longest.
        working[0].record_request();
        let new = admit_all(&connections, peer(2), 4).await;
        assert!(!new.iter().any(is_evicted));
        let evicted: Vec<_> = working.iter().map(is_evicted).collect();
        assert_eq!(evicted, [false, true, true, true, true, false, false, false]);
    }

    /// The newcomer is always served, and the limit holds, for any sequence of connects, requests and
    /// disconnects.
    #[tokio::test]
    async fn the_bound_is_kept_whatever_clients_do() {
        let connections = Connections::new(5);
        let mut tickets = Vec::new();
        for step in 0..2000_usize {
            let ticket = connections.admit(peer(u8::try_from(step * 7 % 4).unwrap())).await;
            assert!(!is_evicted(&ticket));
            tickets.push(ticket);
            if step % 3 == 0 {
                tickets[step * 5 % tickets.len()].record_request();
            }
            if step % 11 == 0 {
                tickets.swap_remove(step % tickets.len());
            }
            tickets.retain(|ticket| !is_evicted(ticket));
            let table = connections.0.table.lock();
            assert!(table.served.len() <= 5 && table.open == tickets.len());
            assert_eq!(table.crowds.values().sum::<usize>(), table.served.len());
        }
        drop(tickets);
        assert_eq!(connections.0.table.lock().open, 0);
    }

    /// The number of file descriptors stays limited while evicted connections are being closed.
    #[tokio::test(start_paused = true)]
    async fn a_new_connection_waits_while_too_many_are_being_closed() {
        let connections = Connections::new(2);
        let mut tickets = admit_all(&connections, peer(1), 4).await;
        let fifth = connections.admit(peer(1));
        tokio::pin!(fifth);
        let early = tokio::time::timeout(Duration::from_secs(1), &mut fifth).await;
        assert!(early.is_err(), "more than twice the bound are open");
        tickets.remove(0);
        assert!(!is_evicted(&fifth.await));
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let of = |text: &str| Peer::from(text.parse::<SocketAddr>().unwrap());
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:2"));
        assert_ne!(of("[2001:db8:0:1::1]:1"), of("[2001:db8::1]:1"));
        assert_eq!(of("[::ffff:192.0.2.1]:1"), of("192.0.2.1:9"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_to_send_its_preface_in_time_and_may_then_be_silent() {
        let connections = Connections::new(2);
        let preface = (4, Duration::from_secs(5));
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = Admitted::new(server, connections.admit(Peer::Local).await, preface);
        client.write_all(b"abc").await.unwrap();
        let error = server.read_exact(&mut [0; 4]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (mut client, server) = tokio::io::duplex(64);
        let mut server = Admitted::new(server, connections.admit(Peer::Local).await, preface);
        client.write_all(b"abcd").await.unwrap();
        server.read_exact(&mut [0; 4]).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_hours(1), server.read_u8()).await;
        assert!(silent.is_err(), "{silent:?}");
    }

    #[tokio::test]
    async fn an_evicted_connection_can_neither_be_read_nor_written() {
        let connections = Connections::new(2);
        let (_client, server) = tokio::io::duplex(1);
        let preface = (4, Duration::from_hours(1));
        let server = Admitted::new(server, connections.admit(Peer::Local).await, preface);
        let (mut reading, mut writing) = tokio::io::split(server);
        let reading = tokio::spawn(async move { reading.read_u8().await.map(drop) });
        let writing = tokio::spawn(async move { writing.write_all(b"more than fits").await });
        let _newer = admit_all(&connections, Peer::Local, 2).await;
        for task in [reading, writing] {
            let error = task.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        }
    }
}
