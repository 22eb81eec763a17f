//! Runs `capcmi driver serve` as a child process.

use std::process::{ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use cmi_grpc::endpoint::Endpoint;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use super::TIMEOUT;

/// A plugin that serves calls.
pub struct Plugin {
    pub endpoint: Endpoint,
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
    said: Vec<String>,
}

impl Plugin {
    /// `capcmi driver serve simulated` with nothing in its environment.
    pub fn command() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
        command
            .args(["driver", "serve", "simulated"])
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Starts it, and waits until it prints its endpoint.
    pub async fn start(command: &mut Command) -> Result<Self> {
        let mut process = command.spawn().context("starting the plugin")?;
        let stderr = process
            .stderr
            .take()
            .context("the plugin has no standard error")?;
        let mut log = BufReader::new(stderr).lines();
        let mut said = Vec::new();
        let endpoint = timeout(TIMEOUT, async {
            while let Some(line) = log.next_line().await? {
                said.push(line.clone());
                if let Some((_, rest)) = line.split_once("serving endpoint=") {
                    let endpoint = rest.split_whitespace().next().unwrap_or_default();
                    return Ok(endpoint.parse()?);
                }
            }
            bail!("the plugin ended: {}", said.join("\n"))
        })
        .await
        .context("waiting for the plugin to listen")??;
        Ok(Self {
            endpoint,
            process,
            log,
            said,
        })
    }

    /// How many files and sockets it has open.
    pub fn open_files(&self) -> Result<usize> {
        let id = self.process.id().context("the plugin has ended")?;
        Ok(std::fs::read_dir(format!("/proc/{id}/fd"))?.count())
    }

    /// Sends SIGTERM.
    pub async fn ask_to_stop(&self) -> Result<()> {
        let id = self.process.id().context("the plugin has ended")?;
        let status = Command::new("kill")
            .args(["-TERM", &id.to_string()])
            .status()
            .await?;
        ensure!(status.success(), "kill: {status}");
        Ok(())
    }

    /// Waits for the process to exit, and returns its output too.
    pub async fn ended(mut self) -> Result<(ExitStatus, String)> {
        timeout(TIMEOUT, async {
            while let Some(line) = self.log.next_line().await? {
                self.said.push(line);
            }
            Ok((self.process.wait().await?, self.said.join("\n")))
        })
        .await
        .context("waiting for the plugin to end")?
    }
}
