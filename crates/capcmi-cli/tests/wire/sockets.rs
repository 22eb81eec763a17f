//! The files of Unix sockets, and ports.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use anyhow::{Context as _, Result, ensure};
use cmi_grpc::endpoint::Endpoint;
use cmi_grpc::server::{ListenError, Listener};

async fn refused(endpoint: &Endpoint) -> Result<ListenError> {
    Listener::bind(endpoint, None)
        .await
        .err()
        .with_context(|| format!("{endpoint} can't be listened on"))
}

/// CMI-171, CMI-162
#[tokio::test]
async fn a_plugin_makes_nothing_but_its_socket_and_takes_it_away_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.sock");
    let listener = Listener::bind(&Endpoint::Unix(path.clone()), None).await?;
    let names: Vec<_> = fs::read_dir(folder.path())?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()?;
    ensure!(names == ["p.sock"], "{names:?}");
    let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "{mode:o}");
    drop(listener);
    ensure!(!path.exists());
    Ok(())
}

#[tokio::test]
async fn a_socket_without_a_listener_is_replaced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.sock");
    drop(UnixListener::bind(&path)?);
    ensure!(path.exists(), "a plugin that was killed leaves its socket");
    let listener = Listener::bind(&Endpoint::Unix(path.clone()), None).await?;
    tokio::net::UnixStream::connect(&path).await?;
    drop(listener);
    Ok(())
}

#[tokio::test]
async fn a_socket_with_a_listener_stays() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.sock");
    let _other = UnixListener::bind(&path)?;
    let error = refused(&Endpoint::Unix(path.clone())).await?;
    ensure!(matches!(error, ListenError::Taken(_)), "{error}");
    ensure!(path.exists());
    Ok(())
}

#[tokio::test]
async fn a_file_that_is_no_socket_stays_as_it_is() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.sock");
    fs::write(&path, "precious")?;
    let error = refused(&Endpoint::Unix(path.clone())).await?;
    ensure!(matches!(error, ListenError::NoSocket(_)), "{error}");
    ensure!(fs::read_to_string(&path)? == "precious");
    Ok(())
}

/// A plugin that was slow to stop must not take away the socket of the next.
#[tokio::test]
async fn only_its_own_socket_is_taken_away() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.sock");
    let listener = Listener::bind(&Endpoint::Unix(path.clone()), None).await?;
    fs::rename(&path, folder.path().join("old.sock"))?;
    let _next = UnixListener::bind(&path)?;
    drop(listener);
    ensure!(path.exists());
    Ok(())
}

/// OPS-13
#[tokio::test]
async fn an_endpoint_that_can_not_be_bound_is_named() -> Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let long = format!("unix:///tmp/{}/p.sock", "long".repeat(40));
    for text in [
        format!("tcp://{}", taken.local_addr()?),
        "tcp://192.0.2.1:1".to_owned(),
        "unix:///no/such/folder/p.sock".to_owned(),
        long,
    ] {
        let error = refused(&text.parse()?).await?.to_string();
        ensure!(error.contains(&text), "{error}");
    }
    Ok(())
}
