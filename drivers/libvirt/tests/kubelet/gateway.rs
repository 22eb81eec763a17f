//! Connects guests to the API server. Each host has a network namespace, and a port in it leads to the
//! loopback interface of this computer.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

/// A port that leads to a server. Dropping this closes it.
pub struct Gateway(JoinHandle<()>);

impl Gateway {
    /// Opens the port in a network namespace, given by its file.
    pub fn open(network: &Path, port: SocketAddr, server: SocketAddr) -> Result<Self> {
        let namespace = File::open(network).with_context(|| format!("opening {}", network.display()))?;
        let listener = listen_in(namespace, port)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Self(tokio::spawn(async move {
            // Dropping this task ends the connections.
            let mut connections = JoinSet::new();
            while let Ok((guest, _)) = listener.accept().await {
                connections.spawn(relay(guest, server));
                while connections.try_join_next().is_some() {}
            }
        })))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a socket in a network namespace. Only the thread that opens it enters the namespace.
fn listen_in(namespace: File, port: SocketAddr) -> Result<TcpListener> {
    let made = thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .context("entering the network of a host")?;
        TcpListener::bind(port).with_context(|| format!("listening on {port} of a host"))
    });
    made.join()
        .map_err(|_| anyhow!("the thread that listens panicked"))?
}

async fn relay(mut guest: TcpStream, server: SocketAddr) {
    let relayed = async {
        let mut connection = TcpStream::connect(server).await?;
        copy_bidirectional(&mut guest, &mut connection).await
    };
    if let Err(error) = relayed.await {
        // Common when both ends close the connection at the same time.
        tracing::debug!(%error, "a connection of a guest ended");
    }
}
