//! Connections within the process.

use std::io;
use std::sync::Arc;

use futures::Stream;
use parking_lot::Mutex;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The most buffered bytes in one direction.
const BUFFER: usize = 64 * 1024;

/// An address within the process. Clones are the same address.
///
/// For tests on tokio's paused clock. A runtime that waits for a socket counts as idle, so the clock would
/// jump to the next timeout before the answer arrives.
#[derive(Clone, Debug, Default)]
pub struct MemoryAddress(Arc<Mutex<Option<mpsc::UnboundedSender<DuplexStream>>>>);

impl MemoryAddress {
    /// Returns the connections to the address, and replaces any earlier listener.
    pub fn listen(&self) -> impl Stream<Item = DuplexStream> + Send + use<> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.0.lock() = Some(sender);
        UnboundedReceiverStream::new(receiver)
    }

    /// Returns a new connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] while nothing listens.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        let (here, there) = duplex(BUFFER);
        let listener = self.0.lock();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = listener.as_ref().ok_or_else(refused)?;
        listener.send(there).map_err(|_closed| refused())?;
        Ok(here)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn connections_are_refused_unless_something_listens() {
        let address = MemoryAddress::default();
        let refused = |address: &MemoryAddress| address.connect().unwrap_err().kind();
        assert_eq!(refused(&address), io::ErrorKind::ConnectionRefused);
        let mut listener = Box::pin(address.listen());
        let _connection = address.clone().connect().unwrap();
        assert!(listener.next().await.is_some());
        drop(listener);
        assert_eq!(refused(&address), io::ErrorKind::ConnectionRefused);
    }
}
