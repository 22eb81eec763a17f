//! The costs of processes and requests.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use cmi_driver::{
    CreateMachineRequest, Driver, GetMachineStatusRequest, MachineClass, MachineRef, ProviderSpec, Secrets,
    USER_DATA,
};
use cmi_simulated::{SimulatedConfig, SimulatedDriver};
use futures::StreamExt as _;
use kube::Client;
use management_cluster::{ManagementCluster, Process};

use super::CONCURRENCY;

/// The clock ticks in a second: Linux always reports 100.
const TICKS: u64 = 100;
/// How often the end of a process is checked.
const POLL: Duration = Duration::from_millis(200);
/// How long a start may take.
const DEADLINE: Duration = Duration::from_mins(2);

/// A process that is measured.
pub struct Measured {
    /// The process.
    pub process: Process,
    /// The process id.
    pub pid: u32,
    /// The address of its /metrics, `127.0.0.1:port`, if it is a provider.
    pub diagnostics: String,
}

impl Measured {
    /// Finds a process by a word that only its command line has.
    pub async fn find(mut process: Process, word: &str, diagnostics: String) -> Result<Self> {
        let mut found = None;
        process
            .wait_until(DEADLINE, async || {
                found = pid_of(word);
                found.is_some()
            })
            .await?;
        Ok(Self {
            process,
            pid: found.context("the process is not to be found")?,
            diagnostics,
        })
    }

    /// Waits for a result of this process. Fails if the process ends first.
    pub async fn has<T>(&mut self, done: impl Future<Output = Result<T>>) -> Result<T> {
        let ended = async {
            loop {
                match self.process.status() {
                    Ok(None) => tokio::time::sleep(POLL).await,
                    Ok(Some(status)) => {
                        let log = self.process.log().display();
                        return anyhow!("a process ended with {status}; its log is {log}");
                    }
                    Err(error) => return error,
                }
            }
        };
        tokio::select! {
            done = done => done,
            ended = ended => Err(ended),
        }
    }

    /// Returns the usage of the process.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.pid)
    }

    /// Resets the peak of the memory of the process.
    pub fn forget_peak(&self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.pid);
        std::fs::write(&path, "5").with_context(|| format!("writing {path}"))
    }

    /// Returns the number of InfraMachine reconciles that have ended.
    pub async fn reconciles(&self) -> Result<u64> {
        reconciles(&self.diagnostics).await
    }

    /// Returns the number of driver calls for a single machine, from the provider's metrics. Lists do not
    /// count, since they are periodic.
    pub async fn driver_calls(&self) -> Result<u64> {
        sum(&self.diagnostics, "capcmi_driver_calls_total{", |line| {
            line.contains("Machine") && !line.contains("ListMachines")
        })
        .await
    }
}

/// Returns the number of InfraMachine reconciles that have ended in a provider.
pub async fn reconciles(diagnostics: &str) -> Result<u64> {
    sum(diagnostics, "capcmi_reconcile_total{", |line| {
        line.contains(r#""inframachine""#)
    })
    .await
}

/// Returns the number of machines in a provider's caches that are up.
pub async fn provisioned(diagnostics: &str) -> Result<u64> {
    sum(diagnostics, "capcmi_machines{", |line| {
        line.contains(r#"phase="Provisioned""#)
    })
    .await
}

async fn sum(diagnostics: &str, prefix: &str, counts: impl Fn(&str) -> bool) -> Result<u64> {
    let (_, text) = testbed::get(diagnostics, "/metrics").await?;
    let lines = text
        .lines()
        .filter(|line| line.starts_with(prefix) && counts(line));
    Ok(lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum())
}

/// Returns the process with this word in its command line. Ignores the shell that supervises it.
fn pid_of(word: &str) -> Option<u32> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_shell = words.first().is_some_and(|program| program.ends_with(b"sh"));
        (!is_shell && words.contains(&word.as_bytes())).then_some(pid)
    })
}

/// The processes of a management cluster whose costs are measured.
#[derive(Clone, Copy, Debug)]
pub struct ControlPlane {
    api_server: u32,
    etcd: u32,
}

impl ControlPlane {
    /// Finds the processes.
    pub fn of(management: &ManagementCluster) -> Result<Self> {
        let folder = management.folder().path();
        let certificates = format!("--cert-dir={}", folder.join("management").join(".").display());
        Ok(Self {
            api_server: pid_of(&certificates).context("the API server is not to be found")?,
            etcd: pid_of(&folder.join("etcd").display().to_string()).context("etcd is not to be found")?,
        })
    }

    /// Returns the usage of the API server, then that of etcd.
    pub fn usage(self) -> Result<[Usage; 2]> {
        Ok([Usage::of(self.api_server)?, Usage::of(self.etcd)?])
    }
}

/// The usage of a process since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time, user and system.
    pub cpu: Duration,
    /// Resident memory, MiB.
    pub resident_mib: u64,
    /// Peak resident memory, MiB.
    pub peak_mib: u64,
}

impl Usage {
    /// Returns the sum of two usages. The sum of the peaks is an upper bound: two processes need not peak at
    /// the same time.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            resident_mib: self.resident_mib + other.resident_mib,
            peak_mib: self.peak_mib + other.peak_mib,
        }
    }

    /// Returns the usage without the CPU time of `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            ..self
        }
    }

    /// Reads the counters of the kernel.
    pub fn of(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        let stat = read("stat")?;
        // The name in parentheses may have any characters, so the fields are counted after it.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Successful patches of InfraMachines and their status.
    pub patches: u64,
    /// Successful creations of Events.
    pub events: u64,
    /// Answers 409 about InfraMachines and Events.
    pub conflicts: u64,
    /// Reads of Secrets by name.
    pub secrets: u64,
    /// Lists of InfraMachines and Machines.
    pub lists: u64,
}

impl Requests {
    /// Reads the counters of the API server.
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
            let is_ours = is("resource", "inframachines") || is("resource", "events");
            if is("code", "409") && is_ours {
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

    /// Returns the requests since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            patches: self.patches - before.patches,
            events: self.events - before.events,
            conflicts: self.conflicts - before.conflicts,
            secrets: self.secrets - before.secrets,
            lists: self.lists - before.lists,
        }
    }

    /// Returns the number of patches and Events.
    pub fn writes(&self) -> u64 {
        self.patches + self.events
    }
}

/// The environment variable that makes a process the simulated cloud without a provider. Its value is a
/// number of machines.
pub const CLOUD: &str = "CAPCMI_BENCH_CLOUD";

/// Returns the costs of the simulated cloud, measured in a separate process with fresh memory.
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

/// Makes the same calls without a provider. Returns their cost as text.
pub async fn be_simulated_cloud(size: usize) -> Result<String> {
    let folder = tempfile::tempdir().context("making a folder")?;
    let config = SimulatedConfig {
        boot_seconds: 0.0,
        boot_jitter_seconds: 0.0,
        pools: serde_json::from_value(serde_json::json!({"default": {"subnet": "10.0.0.0/8"}}))?,
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
    // The driver lives until its memory is measured.
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
    // The answer is NOT_FOUND, as for the provider's look-up.
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
