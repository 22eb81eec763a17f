//! The simulated cloud of a run, and the place where its driver runs.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use cmi_simulated::{CallLine, CloudConsole, Phase};
use management_cluster::{ManagementCluster, Process};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::CONCURRENCY;
use super::measure::Measured;

/// The longest time that a start may take.
const DEADLINE: Duration = Duration::from_mins(2);

/// Where the driver runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// In the provider's process.
    InProcess,
    /// In a plugin, which is called over gRPC.
    Grpc,
}

impl Place {
    /// Returns the name of a provider with such a driver in the table.
    pub const fn provider(self) -> &'static str {
        match self {
            Self::InProcess => "capcmi",
            Self::Grpc => "capcmi, plugin over gRPC",
        }
    }
}

/// A simulated cloud.
pub struct Cloud {
    /// The drivers file, which configures its driver.
    pub drivers: PathBuf,
    /// The process of the driver, if it is not the provider's.
    pub plugin: Option<Measured>,
    state: PathBuf,
    faults: PathBuf,
    calls: Option<PathBuf>,
}

impl Cloud {
    /// Starts an empty cloud whose driver takes calls.
    pub async fn start(management: &ManagementCluster, place: Place, log_calls: bool) -> Result<Self> {
        let file = |name: &str| management.folder().path().join(name);
        let calls = log_calls.then(|| file("calls.jsonl"));
        let config = config(&file("cloud.jsonl"), &file("faults.json"), calls.as_deref());
        let (driver, plugin) = match place {
            Place::InProcess => (json!({"simulated": config}), None),
            Place::Grpc => {
                let (endpoint, plugin) = plugin(management, &config).await?;
                (json!({"grpc": {"endpoint": endpoint}}), Some(plugin))
            }
        };
        let mut entry = json!({
            "name": "simulated", "maxConcurrentCalls": CONCURRENCY, "callsPerSecond": 10000, "burst": 10000,
        });
        if let (Some(entry), Value::Object(driver)) = (entry.as_object_mut(), driver) {
            entry.extend(driver);
        }
        let drivers = file("drivers.yaml");
        std::fs::write(&drivers, json!({"drivers": [entry]}).to_string())
            .context("writing the drivers file")?;
        Ok(Self {
            drivers,
            plugin,
            state: file("cloud.jsonl"),
            faults: file("faults.json"),
            calls,
        })
    }

    /// The console of the cloud.
    pub fn console(&self) -> Result<CloudConsole> {
        CloudConsole::open(&self.state).context("opening the console of the cloud")
    }

    /// Makes every create take so long from now on. Zero removes the delay.
    pub fn slow_down_creates(&self, latency: Duration) -> Result<()> {
        let millis = u64::try_from(latency.as_millis())?;
        let slow = json!({"operation": "CreateMachine", "latencyMs": millis});
        // The driver refuses a fault that does nothing.
        let faults: Vec<Value> = (millis > 0).then_some(slow).into_iter().collect();
        let beside = self.faults.with_extension("new");
        std::fs::write(&beside, json!(faults).to_string()).context("writing the faults")?;
        std::fs::rename(&beside, &self.faults).context("putting the faults in place")
    }

    /// Returns the length of the call log, in bytes: calls that begin later are logged behind it.
    pub fn calls_end(&self) -> Result<u64> {
        let metadata = std::fs::metadata(self.call_log()?).context("looking at the call log")?;
        Ok(metadata.len())
    }

    /// Returns the calls that have begun, from the lines of the log that begin at this byte or later.
    ///
    /// A fleet of a hundred thousand has a log of a hundred megabytes: reading all of it again and again
    /// would take a core from the measurement.
    pub fn calls_from(&self, start: u64) -> Result<Vec<CallLine>> {
        let mut file = File::open(self.call_log()?).context("opening the call log")?;
        // The line that ends just before the byte, or behind it, is an earlier one.
        file.seek(SeekFrom::Start(start.saturating_sub(1)))
            .context("seeking in the call log")?;
        let mut text = String::new();
        file.read_to_string(&mut text).context("reading the call log")?;
        let begin = if start == 0 {
            0
        } else {
            text.find('\n').map_or(text.len(), |end| end + 1)
        };
        // The last line may be half written.
        let whole = &text[begin..text.rfind('\n').map_or(begin, |end| end + 1)];
        let lines = whole.lines().filter(|line| line.contains(r#""started""#));
        let lines = lines.map(|line| serde_json::from_str(line).with_context(|| format!("reading {line}")));
        let lines: Result<Vec<CallLine>> = lines.collect();
        Ok(lines?
            .into_iter()
            .filter(|line| line.phase == Phase::Started)
            .collect())
    }

    fn call_log(&self) -> Result<&Path> {
        self.calls.as_deref().context("calls are not logged")
    }
}

/// Returns the configuration of the driver. Its subnet has room for more machines than any fleet has.
fn config(state: &Path, faults: &Path, calls: Option<&Path>) -> Value {
    let mut config = json!({
        "bootSeconds": 0, "bootJitterSeconds": 0, "deleteSeconds": 0, "shutDownSeconds": 0,
        "pools": {"default": {"subnet": "10.0.0.0/8"}}, "stateFile": state, "faultsFile": faults,
    });
    if let Some(calls) = calls {
        config["callLog"] = json!(calls);
    }
    config
}

async fn plugin(management: &ManagementCluster, config: &Value) -> Result<(String, Measured)> {
    let folder = management.folder().path();
    let (file, socket) = (folder.join("plugin.yaml"), folder.join("plugin.sock"));
    std::fs::write(&file, config.to_string()).context("writing the plugin's configuration")?;
    let endpoint = format!("unix://{}", socket.display());
    let word = format!("--endpoint={endpoint}");
    let mut command = Command::new(testbed::program("capcmi")?);
    command
        .args(["driver", "serve", "simulated", &word])
        .arg(format!("--config={}", file.display()));
    let mut process = Process::start(management.folder(), "plugin", &command)?;
    process
        .wait_until(DEADLINE, async || UnixStream::connect(&socket).await.is_ok())
        .await?;
    Ok((endpoint, Measured::find(process, &word, String::new()).await?))
}
