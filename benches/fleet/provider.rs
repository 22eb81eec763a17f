//! The management cluster and the provider of a run.

use std::time::Duration;

use anyhow::{Context, Result};
use management_cluster::{ManagementCluster, Process};
use serde_json::json;
use testbed::{Launch, Launched};

use super::CONCURRENCY;

/// How long a start may take.
const DEADLINE: Duration = Duration::from_mins(2);

/// A process that is measured.
pub struct Measured {
    /// The process.
    pub process: Process,
    /// Its id.
    pub pid: u32,
    diagnostics: String,
}

impl Measured {
    /// Finds a process by a word of its command line that no other has.
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

    /// Calls on the driver about machines, as the provider counts them.
    pub async fn driver_calls(&self) -> Result<u64> {
        let (_, text) = testbed::get(&self.diagnostics, "/metrics").await?;
        let calls = text
            .lines()
            .filter(|line| line.starts_with("capcmi_driver_calls_total{") && line.contains("Machine"));
        Ok(calls
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum())
    }
}

/// A management cluster without core, with what is shipped installed.
pub async fn management_cluster() -> Result<ManagementCluster> {
    let manifests = capcmi::manifests::stream(&capcmi::manifests::Part::ALL)?;
    ManagementCluster::builder()
        .core(false)
        .manifests(&manifests)
        .start()
        .await
}

/// Starts the provider as its ServiceAccount, and waits until it runs.
pub async fn start(management: &ManagementCluster, namespace: &str) -> Result<Measured> {
    let drivers = management.folder().path().join("drivers.yaml");
    let driver = json!({
        "name": "simulated", "maxConcurrentCalls": CONCURRENCY, "callsPerSecond": 10000, "burst": 10000,
        "simulated": {
            "bootSeconds": 0, "bootJitterSeconds": 0,
            "stateFile": management.folder().path().join("cloud.jsonl"),
        },
    });
    std::fs::write(&drivers, json!({"drivers": [driver]}).to_string()).context("writing the drivers file")?;
    let launch = Launch {
        binary: env!("CARGO_BIN_EXE_capcmi").into(),
        name: "capcmi".to_owned(),
        drivers,
        kubeconfig: testbed::service_account(management).await?,
        flags: vec![
            format!("--namespace={namespace}"),
            format!("--inframachine-concurrency={CONCURRENCY}"),
            "--insecure-diagnostics".to_owned(),
        ],
    };
    let Launched {
        process,
        health,
        diagnostics,
    } = launch.start(management)?;
    Measured::find(process, &format!("--health-addr={health}"), diagnostics).await
}

/// The process, not the shell that supervises it, whose command line has this word.
fn pid_of(word: &str) -> Option<u32> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_shell = words.first().is_some_and(|program| program.ends_with(b"sh"));
        (!is_shell && words.contains(&word.as_bytes())).then_some(pid)
    })
}
