//! The simulated cloud of a case: its files, its console, its faults, and the guests that boot in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Clock, CloudConsole, Phase, Vm};
use management_cluster::eventually;
use serde_json::{Value, json};

use super::{DEADLINE, World};

/// The files of a simulated cloud that several processes share.
pub struct Cloud {
    state: PathBuf,
    faults: PathBuf,
    calls: PathBuf,
    clock: Arc<dyn Clock>,
}

impl Cloud {
    /// A cloud without VMs and without faults.
    pub fn new(world: &World) -> Self {
        Self::named(world, "cloud")
    }

    /// As [`Cloud::new`], for a case that has several.
    pub fn named(world: &World, name: &str) -> Self {
        let file = |what: &str| world.folder.join(format!("{name}{what}"));
        Self {
            state: file(".jsonl"),
            faults: file("-faults.json"),
            calls: file("-calls.jsonl"),
            clock: world.cloud_clock(),
        }
    }

    /// A drivers file with this cloud as `simulated`; boots and deletes take no time
    /// unless `more` says otherwise.
    pub fn drivers(&self, more: Value) -> String {
        self.drivers_with(json!({}), more)
    }

    /// As [`Cloud::drivers`], with further keys of the driver's entry, such as `timeouts`.
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

    /// One drivers file of several.
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

    /// Replaces the faults; all counts start anew.
    #[allow(clippy::needless_pass_by_value)] // a literal, which reads better without a reference
    pub fn fail(&self, faults: Value) -> Result<()> {
        let beside = self.faults.with_extension("new");
        std::fs::write(&beside, faults.to_string()).context("writing the faults")?;
        std::fs::rename(&beside, &self.faults).context("putting the faults in place")
    }

    /// The file that the cloud lives in.
    pub fn journal(&self) -> &Path {
        &self.state
    }

    /// The way to look at VMs and to meddle with them.
    pub fn console(&self) -> Result<CloudConsole> {
        CloudConsole::open_at(&self.state, Arc::clone(&self.clock))
            .context("opening the console of the cloud")
    }

    /// All VMs there are.
    pub fn vms(&self) -> Result<Vec<Vm>> {
        if !self.state.exists() {
            return Ok(Vec::new());
        }
        self.console()?.vms().context("reading the cloud")
    }

    /// Waits until there are exactly so many VMs.
    pub async fn holds(&self, count: usize) -> Result<Vec<Vm>> {
        eventually(DEADLINE, &format!("{count} VMs in the cloud"), async || {
            let vms = self.vms()?;
            ensure!(vms.len() == count, "there are {}", vms.len());
            Ok(vms)
        })
        .await
    }

    /// Every call so far, as it started and ended.
    pub fn calls(&self) -> Result<Vec<CallLine>> {
        let text = match std::fs::read_to_string(&self.calls) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context("reading the call log"),
        };
        text.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("reading {line}")))
            .collect()
    }

    /// How often a call was made for a machine.
    pub fn count(&self, operation: Operation, machine: &str) -> Result<usize> {
        Ok(self
            .calls_for(machine)?
            .iter()
            .filter(|call| call.operation == operation)
            .count())
    }

    /// The calls that were made for a machine, as they started.
    pub fn calls_for(&self, machine: &str) -> Result<Vec<CallLine>> {
        let started = |line: &CallLine| line.phase == Phase::Started && line.machine == machine;
        Ok(self.calls()?.into_iter().filter(started).collect())
    }
}

/// A drivers file of one driver, called `simulated` unless `entry` says otherwise. The cloud carries out what
/// it was asked for at once, unless the case wants it later.
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
