//! What processes and requests cost.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cmi_driver::{
    CreateMachineRequest, Driver, GetMachineStatusRequest, MachineClass, MachineRef, ProviderSpec, Secrets,
    USER_DATA,
};
use cmi_simulated::{SimulatedConfig, SimulatedDriver};
use futures::StreamExt as _;
use kube::Client;

use super::CONCURRENCY;

/// Clock ticks a second: fixed at 100 for what Linux shows to processes.
const TICKS: u64 = 100;

/// What a process has used since it began.
pub struct Usage {
    /// CPU time, user and system.
    pub cpu: Duration,
    /// Resident memory, MiB.
    pub resident_mib: u64,
    /// Peak resident memory, MiB.
    pub peak_mib: u64,
}

impl Usage {
    /// Reads what the kernel has counted.
    pub fn of(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        let stat = read("stat")?;
        // The name in parentheses may hold anything; fields are counted behind it.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = |index: usize| {
            fields
                .get(index)
                .and_then(|field| field.parse::<u64>().ok())
                .unwrap_or_default()
        };
        let status = read("status")?;
        let mib = |field: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let kib = line.with_context(|| format!("no {field}"))?.trim();
            let kib: u64 = kib.trim_end_matches(" kB").parse().context("reading memory")?;
            Ok(kib / 1024)
        };
        Ok(Self {
            cpu: Duration::from_millis((ticks(11) + ticks(12)) * 1000 / TICKS),
            resident_mib: mib("VmRSS:")?,
            peak_mib: mib("VmHWM:")?,
        })
    }
}

/// The requests that the API server has answered.
#[derive(Debug, Default)]
pub struct Requests {
    /// Successful patches of InfraMachines and their status.
    pub patches: u64,
    /// Successful creations of Events.
    pub events: u64,
    /// Answers 409.
    pub conflicts: u64,
    /// Reads of Secrets by name.
    pub secrets: u64,
    /// Lists of InfraMachines and Machines.
    pub lists: u64,
}

impl Requests {
    /// Reads the API server's own count.
    pub async fn read(admin: &Client) -> Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = admin
            .request_text(request)
            .await
            .context("reading the API server's metrics")?;
        let mut requests = Self::default();
        for line in text
            .lines()
            .filter_map(|line| line.strip_prefix("apiserver_request_total{"))
        {
            let (labels, count) = line.split_once("} ").context("reading a metric")?;
            let labels: BTreeMap<&str, &str> = labels
                .split(',')
                .filter_map(|label| {
                    Some((
                        label.split_once('=')?.0,
                        label.split_once('=')?.1.trim_matches('"'),
                    ))
                })
                .collect();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a counter
            let count = count.parse::<f64>().context("reading a count")? as u64;
            let is = |label: &str, value: &str| labels.get(label).copied() == Some(value);
            let ok = labels.get("code").is_some_and(|code| code.starts_with('2'));
            if is("code", "409") {
                requests.conflicts += count;
            } else if ok && is("resource", "inframachines") && is("verb", "PATCH") {
                requests.patches += count;
            } else if ok && is("resource", "events") && is("verb", "POST") {
                requests.events += count;
            } else if ok && is("resource", "secrets") && is("verb", "GET") {
                requests.secrets += count;
            } else if ok
                && is("verb", "LIST")
                && (is("resource", "inframachines") || is("resource", "machines"))
            {
                requests.lists += count;
            }
        }
        Ok(requests)
    }

    /// What came since.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            patches: self.patches - before.patches,
            events: self.events - before.events,
            conflicts: self.conflicts - before.conflicts,
            secrets: self.secrets - before.secrets,
            lists: self.lists - before.lists,
        }
    }

    /// Patches and Events.
    pub fn writes(&self) -> u64 {
        self.patches + self.events
    }
}

/// Set, to a number of machines, for the process that is the simulated cloud without a provider.
pub const CLOUD: &str = "CAPCMI_BENCH_CLOUD";

/// The simulated cloud's own share, measured in a process of its own, with fresh memory.
pub fn simulated_cloud(size: usize) -> Result<String> {
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new(program)
        .env(CLOUD, size.to_string())
        .output()
        .context("running the simulated cloud")?;
    ensure!(
        output.status.success(),
        "the simulated cloud failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// The same calls without a provider; says what they cost.
pub async fn be_simulated_cloud(size: usize) -> Result<String> {
    let folder = tempfile::tempdir().context("making a folder")?;
    let config = SimulatedConfig {
        boot_seconds: 0.0,
        boot_jitter_seconds: 0.0,
        state_file: Some(folder.path().join("cloud.jsonl")),
        ..SimulatedConfig::default()
    };
    let driver = Arc::new(SimulatedDriver::new(config)?);
    let (before, started) = (Usage::of(std::process::id())?, Instant::now());
    futures::stream::iter(0..size)
        .map(|index| call(Arc::clone(&driver), index))
        .buffer_unordered(CONCURRENCY)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<Result<Vec<()>>>()?;
    let (after, took) = (Usage::of(std::process::id())?, started.elapsed());
    let used = after.cpu.saturating_sub(before.cpu);
    #[allow(clippy::cast_precision_loss)] // thousands
    let each = used.as_secs_f64() * 1000.0 / size as f64;
    // Until here: what is measured is what it holds.
    drop(driver);
    Ok(format!(
        "  simulated cloud alone: {each:.3} ms CPU a machine, {} MiB, {:.1} s in all",
        after.resident_mib.saturating_sub(before.resident_mib),
        took.as_secs_f64()
    ))
}

async fn call(driver: Arc<SimulatedDriver>, index: usize) -> Result<()> {
    let name = format!("m-{index}");
    let spec = serde_json::json!({"vmPool": "default", "size": "small", "tags": {
        "kubernetes.io/cluster": "bench", "kubernetes.io/role": "node", "capcmi.io/machine": name,
    }});
    let provider_spec = ProviderSpec(spec.as_object().cloned().unwrap_or_default());
    let class = MachineClass {
        provider_spec: provider_spec.clone(),
        secrets: Secrets::default(),
    };
    let status = GetMachineStatusRequest {
        machine: MachineRef::new(name.clone(), class),
        provider_id: None,
    };
    // NOT_FOUND, as the provider's look-up gets it.
    let _ = driver.get_machine_status(status).await;
    let secrets: Secrets = [(
        USER_DATA.to_owned(),
        super::machines::BOOTSTRAP.as_bytes().to_vec().into(),
    )]
    .into_iter()
    .collect();
    let class = MachineClass {
        provider_spec,
        secrets,
    };
    driver
        .create_machine(CreateMachineRequest {
            machine: MachineRef::new(name, class),
            last_known_state: None,
        })
        .await?;
    Ok(())
}
