//! The driver in `examples/drivers/go`, as the process that it is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use management_cluster::{Process, RunFolder};
use tokio::net::UnixStream;

/// Fetching modules, generating code and building gRPC takes a minute on a computer that does nothing else.
const BUILD_DEADLINE: Duration = Duration::from_mins(10);
const START_DEADLINE: Duration = Duration::from_mins(1);

/// The program of the driver. It is generated and built at the first request.
#[derive(Clone, Debug)]
pub struct Go {
    program: PathBuf,
}

/// A driver that serves, and the folder that is its back end.
#[derive(Debug)]
pub struct GoDriver {
    /// `CMI_ENDPOINT`.
    pub endpoint: String,
    /// Where its VMs are.
    pub cloud: PathBuf,
    /// The process.
    pub process: Process,
}

/// `examples/drivers/go`.
pub fn go_driver() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/drivers/go")
}

impl Go {
    /// Finds or builds the program.
    ///
    /// # Errors
    /// When there is no `go`, or modules can't be had, or the code that protoc makes does not compile.
    pub async fn find() -> Result<Self> {
        let mut script = tokio::process::Command::new(go_driver().join("build.sh"));
        let output = tokio::time::timeout(BUILD_DEADLINE, script.kill_on_drop(true).output());
        let output = output
            .await
            .context("building the driver in Go takes too long")?
            .context("starting build.sh")?;
        ensure!(
            output.status.success(),
            "build.sh: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let folder = String::from_utf8(output.stdout).context("build.sh prints no text")?;
        Ok(Self {
            program: Path::new(folder.trim_end()).join("driver"),
        })
    }

    /// The command that starts the driver with a folder for its back end; it lacks `CMI_ENDPOINT`.
    pub fn command(&self, cloud: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.env("GO_DRIVER_CLOUD", cloud);
        command
    }

    /// Starts the driver at a socket in the folder, and waits until it serves.
    ///
    /// # Errors
    /// When it ends instead, or takes too long.
    pub async fn driver(&self, folder: &RunFolder, name: &str) -> Result<GoDriver> {
        let socket = folder.path().join(format!("{name}.sock"));
        let endpoint = format!("unix://{}", socket.display());
        let cloud = folder.path().join(format!("{name}-cloud"));
        let mut command = self.command(&cloud);
        command.env("CMI_ENDPOINT", &endpoint);
        let mut process = Process::start(folder, name, &command)?;
        process
            .wait_until(START_DEADLINE, async || {
                UnixStream::connect(&socket).await.is_ok()
            })
            .await?;
        Ok(GoDriver {
            endpoint,
            cloud,
            process,
        })
    }
}
