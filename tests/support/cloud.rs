//! The simulated cloud of a case: its files, console, faults and guests.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Clock, CloudConsole, Phase, Vm};
use management_cluster::eventually;
use serde_json::{Value, json};

use super::{DEADLINE, World};

/// The files of a simulated cloud. Several processes may share them.
pub struct Cloud {
    state: PathBuf,
    faults: PathBuf,
    calls: PathBuf,
    clock: Arc<dyn Clock>,
    console: OnceLock<CloudConsole>,
    log: Mutex<Log>,
}

/// The part of the call log that was read before. Waits read the log many times.
#[derive(Default)]
struct Log {
    /// The length of the whole lines that were read.
    length: u64,
    lines: Vec<CallLine>,
}

impl Cloud {
    /// A cloud without VMs and without faults.
    pub fn new(world: &World) -> Self {
        Self::named(world, "cloud")
    }

    /// Like [`Cloud::new`], for a case with several clouds.
    pub fn named(world: &World, name: &str) -> Self {
        let file = |what: &str| world.folder.join(format!("{name}{what}"));
        Self {
            state: file(".jsonl"),
            faults: file("-faults.json"),
            calls: file("-calls.jsonl"),
            clock: world.cloud_clock(),
            console: OnceLock::new(),
            log: Mutex::default(),
        }
    }

    /// A drivers file with this cloud as `simulated`. Boots and deletes take no time unless `more` sets one.
    pub fn drivers(&self, more: Value) -> String {
        self.drivers_with(json!({}), more)
    }

    /// Like [`Cloud::drivers`], with further keys of the driver's entry, such as `timeouts`.
    pub fn drivers_with(&self, entry: Value, more: Value) -> String {
        drivers_file(json!({"simulated": self.config(more)}), entry)
    }

    /// The configuration of a simulated driver with this cloud.
    pub fn config(&self, more: Value) -> Value {
        let mut config = json!({
            "stateFile": self.state, "faultsFile": self.faults, "callLog": self.calls,
            "bootSeconds": 0, "bootJitterSeconds": 0, "deleteSeconds": 0, "shutDownSeconds": 0,
        });
        merge(&mut config, more);
        config
    }

    /// Merges several drivers files into one.
    pub fn several(files: impl IntoIterator<Item = String>) -> Result<String> {
        let mut all = Vec::new();
        for file in files {
            let mut file: Value = serde_json::from_str(&file)?;
            all.extend(
                file["drivers"]
                    .as_array_mut()
                    .into_iter()
                    .flat_map(std::mem::take),
            );
        }
        Ok(json!({"drivers": all}).to_string())
    }

    /// Replaces the faults, and resets all counts.
    #[allow(clippy::needless_pass_by_value)] // a literal, which reads better without a reference
    pub fn fail(&self, faults: Value) -> Result<()> {
        let beside = self.faults.with_extension("new");
        std::fs::write(&beside, faults.to_string()).context("writing the faults")?;
        std::fs::rename(&beside, &self.faults).context("putting the faults in place")
    }

    /// The cloud's file.
    pub fn journal(&self) -> &Path {
        &self.state
    }

    /// The console, which reads and manipulates VMs.
    pub fn console(&self) -> Result<&CloudConsole> {
        if let Some(open) = self.console.get() {
            return Ok(open);
        }
        let console = CloudConsole::open_at(&self.state, Arc::clone(&self.clock));
        let console = console.context("opening the console of the cloud")?;
        Ok(self.console.get_or_init(|| console))
    }

    /// All existing VMs.
    pub fn vms(&self) -> Result<Vec<Vm>> {
        if !self.state.exists() {
            return Ok(Vec::new());
        }
        self.console()?.vms().context("reading the cloud")
    }

    /// Waits until exactly this number of VMs exists.
    pub async fn holds(&self, count: usize) -> Result<Vec<Vm>> {
        eventually(DEADLINE, &format!("{count} VMs in the cloud"), async || {
            let vms = self.vms()?;
            ensure!(vms.len() == count, "there are {}", vms.len());
            Ok(vms)
        })
        .await
    }

    /// All calls so far, with an entry for each start and end.
    pub fn calls(&self) -> Result<Vec<CallLine>> {
        self.with_calls(<[CallLine]>::to_vec)
    }

    fn with_calls<T>(&self, look: impl FnOnce(&[CallLine]) -> T) -> Result<T> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.catch_up(&self.calls).context("reading the call log")?;
        Ok(look(&log.lines))
    }

    /// The number of calls for a machine.
    pub fn count(&self, operation: Operation, machine: &str) -> Result<usize> {
        let is_one = |call: &&CallLine| is_start_for(call, machine) && call.operation == operation;
        self.with_calls(|calls| calls.iter().filter(is_one).count())
    }

    /// The starts of all calls for a machine.
    pub fn calls_for(&self, machine: &str) -> Result<Vec<CallLine>> {
        let is_one = |call: &&CallLine| is_start_for(call, machine);
        self.with_calls(|calls| calls.iter().filter(is_one).cloned().collect())
    }
}

fn is_start_for(call: &CallLine, machine: &str) -> bool {
    call.phase == Phase::Started && call.machine == machine
}

impl Log {
    /// Reads the lines that were added.
    fn catch_up(&mut self, path: &Path) -> Result<()> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut added = String::new();
        file.seek(SeekFrom::Start(self.length))?;
        file.read_to_string(&mut added)?;
        for line in added.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let call = serde_json::from_str(line).with_context(|| format!("reading {line}"))?;
            self.lines.push(call);
            self.length += u64::try_from(line.len())?;
        }
        Ok(())
    }
}

/// A drivers file with a single driver, called `simulated` unless `entry` has another name. The cloud acts
/// without a delay unless the case configures one.
pub fn drivers_file(kind: Value, entry: Value) -> String {
    let mut driver = json!({"name": "simulated", "createSettleTime": "1s"});
    merge(&mut driver, kind);
    merge(&mut driver, entry);
    json!({"drivers": [driver]}).to_string()
}

fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}
