//! etcd, with data that is not needed after the run.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result};
use tokio::net::TcpStream;

use crate::{Programs, port::with_free_ports, process::Process, run_folder::RunFolder};

const START_DEADLINE: Duration = Duration::from_mins(4);

#[derive(Debug)]
pub(crate) struct Etcd {
    pub url: String,
    _process: Process,
}

impl Etcd {
    pub(crate) async fn start(programs: &Programs, folder: &RunFolder) -> Result<Self> {
        with_free_ports(async |[client, peer]: [u16; 2]| {
            let url = format!("http://127.0.0.1:{client}");
            let peer = format!("http://127.0.0.1:{peer}");
            let mut command = Command::new(&programs.etcd);
            command
                .arg("--data-dir")
                .arg(folder.path().join("etcd"))
                .args([
                    "--unsafe-no-fsync",
                    "--log-level=warn",
                    "--quota-backend-bytes=8589934592",
                ])
                .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
                .args([
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ])
                .args(["--initial-cluster", &format!("default={peer}")]);
            let mut process = Process::start(folder, "etcd", &command)?;
            // etcd listens for clients only when it can serve them.
            let ready = async || TcpStream::connect(("127.0.0.1", client)).await.is_ok();
            process.wait_until(START_DEADLINE, ready).await?;
            Ok(Self {
                url,
                _process: process,
            })
        })
        .await
        .context("starting etcd")
    }
}
