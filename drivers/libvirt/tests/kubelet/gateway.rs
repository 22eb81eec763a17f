//! The way of guests to the API server: a port of their host, in the network namespace that the host has of
//! its own, behind which the loopback interface of this computer is.

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

/// A port that leads to a server, until this is dropped.
pub struct Gateway(JoinHandle<()>);

impl Gateway {
    /// Opens the port of a network namespace, named by its file.
    pub fn open(network: &Path, port: SocketAddr, server: SocketAddr) -> Result<Self> {
        let namespace = File::open(network).with_context(|| format!("opening {}", network.display()))?;
        let listener = listen_in(namespace, port)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Self(tokio::spawn(async move {
            // Dropped with this task, which ends the connections.
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

/// A socket belongs to the namespace that it was made in. Only the thread that makes it moves there.
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
        // Common where one of both ends its side at once.
        tracing::debug!(%error, "a connection of a guest ended");
    }
}
