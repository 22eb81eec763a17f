//! The libvirt driver as a plugin, with the storage and network from `libvirt.sh` on this computer.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use management_cluster::{Process, RunFolder};
use tokio::net::UnixStream;

use crate::backend::program;
use crate::screen::Screen;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/quickstart/libvirt.sh");
/// The folder for consoles. The script has the same path.
const FOLDER: &str = "/var/lib/libvirt/capcmi-quickstart";
const DEADLINE: Duration = Duration::from_secs(30);

/// The running driver and its host. Dropping this ends the driver first.
pub struct Libvirt {
    _driver: Process,
    _host: Host,
    socket: PathBuf,
}

impl Libvirt {
    /// Creates a storage pool and a network, and starts the driver.
    pub async fn start(screen: &Screen, folder: &RunFolder) -> Result<Self> {
        let driver = program("capcmi-driver-libvirt")?;
        screen.doing(
            "making a storage pool and a network of libvirt, and looking whether guests boot with KVM",
        );
        let host = Host;
        let said = host.up(folder.path()).await?;
        screen.doing(&format!("starting the libvirt driver; {said}"));
        let socket = folder.path().join("libvirt.sock");
        let mut command = Command::new(driver);
        command
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!(
                "--config={}",
                folder.path().join("driver.yaml").display()
            ));
        let mut driver = Process::start(folder, "libvirt", &command)?;
        driver
            .wait_until(DEADLINE, async || UnixStream::connect(&socket).await.is_ok())
            .await?;
        Ok(Self {
            _driver: driver,
            _host: host,
            socket,
        })
    }

    /// The address of the driver.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

/// The file with the serial console of a VM's guest.
pub fn console(provider_id: &str) -> String {
    let uuid = provider_id.rsplit('/').next().unwrap_or_default();
    format!("{FOLDER}/capcmi-{uuid}-console.log")
}

/// The storage pool and network from the script. Dropping this removes them, even if they are incomplete.
struct Host;

impl Host {
    /// Runs the script, and returns how guests run.
    async fn up(&self, folder: &Path) -> Result<String> {
        let output = tokio::process::Command::new(SCRIPT)
            .arg("up")
            .arg(folder)
            .kill_on_drop(true)
            .output()
            .await
            .context("starting libvirt.sh")?;
        ensure!(
            output.status.success(),
            "libvirt.sh up: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // In a separate process group, because a second Ctrl-C must not interrupt the removal.
        let down = Command::new(SCRIPT).arg("down").process_group(0).output();
        let problem = match down {
            Ok(output) if output.status.success() => return,
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(
            std::io::stderr(),
            "quickstart: some of it is left on libvirt, run {SCRIPT} down: {problem}"
        );
    }
}
