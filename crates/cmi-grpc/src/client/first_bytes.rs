//! Detects, from the first bytes of an endpoint, a server that is not a plugin.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes are kept: the first line of HTTP/1, or the head of a frame or of a record.
const KEPT: usize = 48;
/// The head of an HTTP/2 frame, and the type of the SETTINGS frame that a server sends first.
const FRAME_HEAD: usize = 9;
const SETTINGS: u8 = 4;

/// The first bytes from a connection, as they were on the network, and the facts that TLS hides. Clones share
/// the state.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstBytes(Arc<Received>);

#[derive(Debug, Default)]
struct Received {
    bytes: Mutex<Vec<u8>>,
    missed_certificate: AtomicBool,
}

impl FirstBytes {
    /// Returns a description of the server and the advice for the operator. `None` without any bytes, or if
    /// they fit the expected protocol.
    pub(super) fn found(&self, expects_tls: bool) -> Option<String> {
        let bytes = self.0.bytes.lock().clone();
        let bytes = bytes.as_slice();
        if bytes.is_empty() {
            return None;
        }
        if let Some(line) = http1(bytes) {
            return Some(if expects_tls {
                format!("the endpoint is an HTTP/1 server without TLS (`{line}`): check the endpoint")
            } else {
                format!(
                    "the endpoint is an HTTP/1 server (`{line}`): check the endpoint, and that a proxy in \
                        front of the plugin forwards HTTP/2"
                )
            });
        }
        match (is_tls(bytes), is_http2(bytes), expects_tls) {
            (true, _, true) | (_, true, false) => None,
            (true, _, false) => {
                Some("the endpoint requires TLS: use a tls:// endpoint, or check the port".to_owned())
            }
            (_, true, true) => Some(
                "the endpoint is an HTTP/2 server without TLS: configure its certificates, or check the port"
                    .to_owned(),
            ),
            (false, false, _) => Some("the endpoint is not an HTTP/2 server: check the endpoint".to_owned()),
        }
    }

    /// Whether nothing came.
    pub(super) fn is_none(&self) -> bool {
        self.0.bytes.lock().is_empty()
    }

    /// Records that the server requests a client certificate, and none is configured.
    pub(super) fn miss_certificate(&self) {
        self.0.missed_certificate.store(true, Ordering::Release);
    }

    /// Whether the server requested a certificate that the client lacks. The server may do without, so this
    /// is the reason only if the server ended the connection.
    pub(super) fn misses_certificate(&self) -> bool {
        self.0.missed_certificate.load(Ordering::Acquire)
    }

    fn add(&self, bytes: &[u8]) -> usize {
        let mut first = self.0.bytes.lock();
        let room = KEPT.saturating_sub(first.len()).min(bytes.len());
        first.extend(bytes.iter().take(room));
        KEPT.saturating_sub(first.len())
    }
}

/// Returns the first line of an HTTP/1 answer, as far as it is printable.
fn http1(bytes: &[u8]) -> Option<String> {
    bytes.starts_with(b"HTTP/1.").then(|| {
        let line = bytes.split(|byte| *byte == b'\r' || *byte == b'\n').next();
        line.unwrap_or_default()
            .iter()
            .map(|byte| char::from(*byte))
            .filter(|c| c.is_ascii_graphic() || *c == ' ')
            .collect()
    })
}

/// A record of TLS 1.0 to 1.3.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x14..=0x17, 3, ..])
}

fn is_http2(bytes: &[u8]) -> bool {
    bytes
        .get(..FRAME_HEAD)
        .is_some_and(|head| head[0] == 0 && head[3] == SETTINGS && head[5..] == [0; 4])
}

/// A connection that keeps its first bytes.
#[derive(Debug)]
pub(super) struct Watched<IO> {
    io: IO,
    first: FirstBytes,
    is_full: bool,
    /// The error of a write, until the bytes that came before it are read.
    write_error: Option<io::Error>,
}

impl<IO> Watched<IO> {
    pub(super) fn new(io: IO, first: &FirstBytes) -> Self {
        Self {
            io,
            first: first.clone(),
            is_full: false,
            write_error: None,
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Watched<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if !self.is_full {
            let bytes = buffer.filled().get(before..).unwrap_or_default();
            self.is_full = self.first.add(bytes) == 0;
        }
        read
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Watched<IO> {
    /// Reads the bytes that came before a write failed, and then fails. A server that answers and closes
    /// without reading the request resets the connection: the protocol above would read no more.
    fn after_what_came(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let error = match written {
            Poll::Ready(Err(error)) if self.first.is_none() => error,
            written => return written,
        };
        let mut bytes = [0; KEPT];
        match Pin::new(&mut *self).poll_read(cx, &mut ReadBuf::new(&mut bytes)) {
            // The error of the write says how the connection ended.
            Poll::Ready(_) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.write_error = Some(error);
                Poll::Pending
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match self.write_error.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut self.io).poll_write(cx, bytes),
        };
        self.after_what_came(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match self.write_error.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut self.io).poll_write_vectored(cx, bytes),
        };
        self.after_what_came(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// The server answers early and closes with unread bytes: its kernel resets the connection.
    #[tokio::test]
    async fn an_answer_before_a_reset_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let first = FirstBytes::default();
        let mut client = Watched::new(client, &first);
        server.write_all(b"HTTP/1.1 400 Bad Request\r\n").await.unwrap();
        client.write_all(b"PRI").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
        drop(server);
        while client.write_all(b" * HTTP/2.0").await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(first.found(false).unwrap().contains("`HTTP/1.1 400 Bad Request`"));
    }

    fn found(bytes: &[u8], expects_tls: bool) -> Option<String> {
        let first = FirstBytes::default();
        for byte in bytes {
            first.add(&[*byte]);
        }
        first.found(expects_tls)
    }

    #[test]
    fn the_first_bytes_say_what_is_there_instead_of_a_plugin() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5];
        let alert = [0x15, 3, 1, 0, 2, 2, 70];
        let page = b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n";
        for (bytes, expects_tls, expected) in [
            (&settings[..], false, None),
            (&alert, true, None),
            (b"", false, None),
            (&settings, true, Some("HTTP/2 server without TLS")),
            (&alert, false, Some("use a tls:// endpoint")),
            (page, false, Some("(`HTTP/1.1 400 Bad Request`)")),
            (page, true, Some("an HTTP/1 server without TLS")),
            (b"SSH-2.0-OpenSSH_9.6\r\n", false, Some("not an HTTP/2 server")),
        ] {
            let found = found(bytes, expects_tls);
            match (&found, expected) {
                (Some(found), Some(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => assert_eq!(found.as_deref(), expected),
            }
        }
    }
}
