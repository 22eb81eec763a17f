//! The container driver as a plugin, with a folder and a bridge that `container.sh` makes.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use management_cluster::{Process, RunFolder};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use crate::backend::program;
use crate::screen::Screen;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/quickstart/container.sh");
/// Its name in the provider's drivers file, which the flavor has as a default.
const NAME: &str = "container";
const DEADLINE: Duration = Duration::from_secs(30);

/// The driver, its folder and its bridge. They end when this is dropped: the driver first.
pub struct Containers {
    _driver: Process,
    host: Host,
    socket: PathBuf,
}

/// The parameters of a Cluster on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The address of its control plane.
    pub endpoint: String,
    /// Its Kubernetes version.
    pub version: String,
    /// The driver's name of the node image of this version.
    pub image: String,
}

impl Containers {
    /// Makes the folder, and starts the driver.
    pub async fn start(screen: &Screen, folder: &RunFolder) -> Result<Self> {
        let driver = program("capcmi-driver-container")?;
        screen.doing("starting the container driver");
        let host = Host::up().await?;
        let socket = folder.path().join("container.sock");
        let mut command = Command::new(driver);
        command
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--config={}", host.folder.join("driver.yaml").display()));
        let mut driver = Process::start(folder, "driver", &command)?;
        driver
            .wait_until(DEADLINE, async || UnixStream::connect(&socket).await.is_ok())
            .await?;
        Ok(Self {
            _driver: driver,
            host,
            socket,
        })
    }

    /// The provider's drivers file.
    pub fn drivers(&self) -> Value {
        let endpoint = format!("unix://{}", self.socket.display());
        json!({"drivers": [{"name": NAME, "grpc": {"endpoint": endpoint}}]})
    }

    /// The parameters of the Cluster.
    pub fn parameters(&self) -> &Parameters {
        &self.host.parameters
    }

    /// The folder for the user: it has the same path in every run.
    pub fn folder(&self) -> &Path {
        &self.host.folder
    }
}

/// The folder and the bridge from the script. Both are removed when this is dropped, also half-made.
struct Host {
    folder: PathBuf,
    parameters: Parameters,
}

impl Host {
    async fn up() -> Result<Self> {
        let mut host = Self {
            folder: cache()?.join("capcmi/quickstart"),
            parameters: Parameters {
                endpoint: String::new(),
                version: String::new(),
                image: String::new(),
            },
        };
        let output = tokio::process::Command::new(SCRIPT)
            .arg("up")
            .arg(&host.folder)
            .kill_on_drop(true)
            .output()
            .await
            .context("starting container.sh")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "container.sh up: {}", problem.trim());
        host.parameters = parameters(&String::from_utf8_lossy(&output.stdout))?;
        Ok(host)
    }
}

/// Reads the last line of the script.
fn parameters(said: &str) -> Result<Parameters> {
    let words: Vec<_> = said.lines().last().unwrap_or_default().split(' ').collect();
    let [endpoint, version, image] = words[..] else {
        bail!("container.sh up prints no parameters: {said}");
    };
    Ok(Parameters {
        endpoint: endpoint.to_owned(),
        version: version.to_owned(),
        image: image.to_owned(),
    })
}

/// The folder of the user's caches, where the node images are: machines have links to them.
fn cache() -> Result<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = || set("HOME").map(|home| home.join(".cache"));
    set("XDG_CACHE_HOME")
        .or_else(home)
        .context("neither XDG_CACHE_HOME nor HOME is set")
}

impl Drop for Host {
    fn drop(&mut self) {
        // In a separate process group, so that a second Ctrl-C does not interrupt it.
        let down = Command::new(SCRIPT)
            .arg("down")
            .arg(&self.folder)
            .process_group(0)
            .output();
        let problem = match down {
            Ok(output) if output.status.success() => return,
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(
            std::io::stderr(),
            "quickstart: some of it is left, run {SCRIPT} down {}: {problem}",
            self.folder.display()
        );
    }
}
