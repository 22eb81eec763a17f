//! The common part of the drivers in `examples/drivers`, in any language: a script that prepares the driver's
//! files, and a Unix socket.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use management_cluster::{Process, RunFolder};
use tokio::net::UnixStream;

/// Fetching packages, generating code and building takes a minute on a computer that does nothing else.
const PREPARE_DEADLINE: Duration = Duration::from_mins(10);
const START_DEADLINE: Duration = Duration::from_mins(2);

/// A driver that serves.
#[derive(Debug)]
pub struct ExampleDriver {
    /// `CMI_ENDPOINT`.
    pub endpoint: String,
    /// The process.
    pub process: Process,
}

/// Runs a script that prepares a folder with a driver's files. Returns the path, which the script prints.
pub(crate) async fn prepare(script: &Path) -> Result<PathBuf> {
    let mut command = tokio::process::Command::new(script);
    let output = tokio::time::timeout(PREPARE_DEADLINE, command.kill_on_drop(true).output());
    let output = output
        .await
        .with_context(|| format!("{} takes too long", script.display()))?
        .with_context(|| format!("starting {}", script.display()))?;
    ensure!(
        output.status.success(),
        "{}: {}",
        script.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let folder = String::from_utf8(output.stdout);
    let folder = folder.with_context(|| format!("{} prints no text", script.display()))?;
    Ok(folder.trim_end().into())
}

/// Starts a driver at a socket in the folder, and waits until it serves.
pub(crate) async fn serve(folder: &RunFolder, name: &str, mut command: Command) -> Result<ExampleDriver> {
    let socket = folder.path().join(format!("{name}.sock"));
    let endpoint = format!("unix://{}", socket.display());
    command.env("CMI_ENDPOINT", &endpoint);
    let mut process = Process::start(folder, name, &command)?;
    process
        .wait_until(START_DEADLINE, async || {
            UnixStream::connect(&socket).await.is_ok()
        })
        .await?;
    Ok(ExampleDriver { endpoint, process })
}
