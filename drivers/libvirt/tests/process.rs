//! The driver as a process.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

/// How long the test waits for a process.
const PATIENCE: Duration = Duration::from_mins(1);

/// A process. Dropping this ends it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("a process could not be ended: {error}");
        }
    }
}

fn eventually(what: &str, mut probe: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !probe()? {
        ensure!(Instant::now() < deadline, "{what} was awaited for {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The daemon is stopped: the kernel accepts connections, and nothing answers. An attempt to connect fails
/// after 10 s, and its thread hangs forever.
#[test]
fn a_driver_that_is_asked_to_stop_ends_although_a_call_of_libvirt_hangs() -> Result<()> {
    let driver = Path::new(env!("CARGO_BIN_EXE_capcmi-driver-libvirt"));
    let capcmi = testbed::program("capcmi")?;
    let folder = tempfile::Builder::new().prefix("capcmi-lv").tempdir_in("/tmp")?;
    let at = |name: &str| folder.path().join(name);
    let silent = UnixListener::bind(at("libvirt-sock"))?;
    silent.set_nonblocking(true)?;
    let uri = format!("qemu+unix:///system?socket={}", at("libvirt-sock").display());
    let config = json!({
        "virtType": "qemu",
        "hosts": {"host-a": {"uri": uri}},
        "vmPools": {"default": {"storagePool": "machines", "network": "default", "image": "none"}},
        "networks": {"default": {"network": "default"}},
        "sizes": {"small": {"cpus": 1, "memoryMib": 128}},
        "images": {"none": {"storagePool": "images", "volume": "none", "format": "raw",
        "sha256": "0".repeat(64)}},
    });
    fs::write(at("driver.yaml"), config.to_string())?;
    let endpoint = format!("unix://{}", at("driver.sock").display());
    let mut plugin = Process(
        Command::new(driver)
            .args([
                "--graceful-shutdown-timeout",
                "1s",
                "--endpoint",
                &endpoint,
                "--config",
            ])
            .arg(at("driver.yaml"))
            .spawn()?,
    );
    eventually("the driver", || Ok(at("driver.sock").exists()))?;
    let _asks = Process(
        Command::new(capcmi)
            .args(["driver", "info", "--endpoint", &endpoint])
            .spawn()?,
    );
    let mut connection = None;
    eventually("the driver's connection to libvirt", || {
        connection = silent.accept().ok();
        Ok(connection.is_some())
    })?;

    let pid = plugin.0.id().to_string();
    ensure!(Command::new("kill").arg(&pid).status()?.success());
    let mut ended = None;
    eventually("the driver's end", || {
        ended = plugin.0.try_wait()?;
        Ok(ended.is_some())
    })?;
    let ended = ended.context("no status")?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}
