//! A plugin whose process is stopped (SIGSTOP) during a run: it accepts connections, but does not answer.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use cmi_conformance::cases;
use cmi_simulated::{SimulatedConfig, SimulatedDriver, Vm};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// The number of concurrent cases.
const PARALLEL: usize = 4;
/// How many cases have ended when the plugin is stopped.
const ENDED: usize = 40;
/// The timeout for any step on a busy computer.
const LONG: Duration = Duration::from_mins(2);

/// A plugin process and the suite that tests it.
struct Run {
    folder: TempDir,
    plugin: Child,
    suite: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

fn signal(process: &Child, name: &str) {
    let pid = process.id().unwrap().to_string();
    let sent = std::process::Command::new("kill").args([name, &pid]).status();
    assert!(sent.unwrap().success());
}

impl Run {
    /// Begins, and stops the plugin in the middle of it.
    async fn stopped(call_seconds: f64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let cloud = json!({"stateFile": path("cloud"), "deleteSeconds": 0.02, "bootSeconds": 0});
        std::fs::write(path("driver.yaml"), cloud.to_string()).unwrap();
        let config = json!({
            "providerSpec": {"vmPool": "default", "size": "small"},
            "parallel": PARALLEL,
            "callSeconds": call_seconds,
        });
        std::fs::write(path("suite.yaml"), config.to_string()).unwrap();
        let endpoint = format!("unix://{}", path("driver.sock").display());
        let plugin = Command::new(env!("CARGO_BIN_EXE_capcmi"))
            .args([
                "driver",
                "serve",
                "simulated",
                "--endpoint",
                &endpoint,
                "--config",
            ])
            .arg(path("driver.yaml"))
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut suite = Command::new(env!("CARGO_BIN_EXE_capcmi"))
            .args([
                "conformance",
                "--wait",
                "60s",
                "--endpoint",
                &endpoint,
                "--config",
            ])
            .arg(path("suite.yaml"))
            .arg("--json")
            .arg(path("report.json"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(suite.stdout.take().unwrap()).lines();
        let mut run = Self {
            folder,
            plugin,
            suite,
            lines,
        };
        for _ in 0..ENDED {
            run.line_with("] passed").await;
        }
        signal(&run.plugin, "-STOP");
        run
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The next line of the suite that has these words.
    async fn line_with(&mut self, words: &str) -> String {
        let wanted = async {
            loop {
                let line = self.lines.next_line().await.unwrap();
                let line = line.unwrap_or_else(|| panic!("the suite ended before it said `{words}`"));
                if line.contains(words) {
                    return line;
                }
            }
        };
        tokio::time::timeout(LONG, wanted).await.unwrap()
    }

    /// The VMs that are really there: the cloud of the plugin is in a file.
    fn vms(&self) -> Vec<Vm> {
        let config = SimulatedConfig {
            state_file: Some(self.path("cloud")),
            ..SimulatedConfig::default()
        };
        SimulatedDriver::new(config).unwrap().console().vms().unwrap()
    }

    /// Returns the suite's exit code and its standard error.
    async fn end(&mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        let ended = async {
            // A full pipe would keep it from ending.
            while self.lines.next_line().await.unwrap().is_some() {}
            let mut pipe = self.suite.stderr.take().unwrap();
            pipe.read_to_string(&mut errors).await.unwrap();
            self.suite.wait().await.unwrap()
        };
        let status = tokio::time::timeout(LONG, ended).await.unwrap();
        (status.code(), errors)
    }
}

/// Returns the cases of these clusters: `cf01234567-create-again-other` belongs to `create-again`.
fn cases_of<'a>(clusters: impl Iterator<Item = &'a str>) -> BTreeSet<&'static str> {
    let case = |cluster: &str| {
        let (_, rest) = cluster.split_once('-').unwrap();
        let all = cases::all().map(|case| case.name);
        all.filter(|name| rest.starts_with(name))
            .max_by_key(|name| name.len())
    };
    clusters.filter_map(case).collect()
}

/// The report names the calls in flight. Only VMs of cases that ran when the plugin stopped are left.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_plugin_is_reported_with_the_pending_calls() {
    let mut run = Run::stopped(2.0).await;
    let (code, errors) = run.end().await;
    assert_eq!(code, Some(1), "{errors}");
    let report = std::fs::read_to_string(run.path("report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let cases = report["cases"].as_array().unwrap();
    let failed: Vec<_> = cases.iter().filter(|case| case["verdict"] == "failed").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let reasons = cases.iter().filter_map(|case| case["reason"].as_str());
    let of_driver: Vec<_> = reasons
        .filter(|reason| !reason.contains("configuration") && !reason.starts_with("there is no hook "))
        .collect();
    let is_gone = |reason: &&&str| {
        [
            "the driver is gone since ",
            "the driver can't be reached any more, since ",
        ]
        .iter()
        .any(|gone| reason.starts_with(gone))
    };
    let others: Vec<_> = of_driver.iter().filter(|reason| !is_gone(reason)).collect();
    assert!(!of_driver.is_empty() && others.is_empty(), "{others:#?}");
    let outage = &report["outages"][0];
    assert!(outage["requests"].as_array().unwrap().len() > 1, "{outage:#?}");
    assert!(
        outage["reason"].as_str().unwrap().contains("the driver hangs"),
        "{outage:#?}"
    );
    let left = report["leftovers"].as_array().unwrap();
    for vm in run.vms() {
        let is_named = left
            .iter()
            .any(|left| left["cluster"] == vm.cluster() && left["machine"] == *vm.name);
        assert!(is_named, "{} of {} is left: {left:#?}", vm.name, vm.cluster());
    }
    let clusters = left.iter().filter_map(|left| left["cluster"].as_str());
    let of = cases_of(clusters);
    // A new case may start after each stopped case, before the first call counts as hung. Its VM may be
    // created when the plugin continues.
    assert!(of.len() <= 2 * PARALLEL, "{of:?}: {left:#?}");
}

/// Before a call counts as hung.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: a call is named after 10 s"]
async fn a_wait_for_a_frozen_plugin_is_shown_and_two_signals_end_it() {
    let mut run = Run::stopped(300.0).await;
    let line = run.line_with(" waits for ").await;
    assert!(
        line.contains(" of machine `") && line.contains("the limit is 300 s"),
        "{line}"
    );
    let is_of = |case: &str| line.contains(&format!("`{case}` waits for "));
    assert!(cases::all().any(|case| is_of(case.name)), "{line}");
    signal(&run.suite, "-INT");
    let mut pipe = BufReader::new(run.suite.stderr.take().unwrap());
    let mut first = String::new();
    let said = tokio::time::timeout(LONG, pipe.read_line(&mut first)).await;
    said.unwrap().unwrap();
    assert!(first.contains("stopping early"), "{first}");
    signal(&run.suite, "-INT");
    let mut named = String::new();
    let rest = tokio::time::timeout(LONG, pipe.read_to_string(&mut named)).await;
    rest.unwrap().unwrap();
    let ended = tokio::time::timeout(LONG, run.suite.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(130), "{named}");
    for vm in run.vms() {
        let subject = format!("`{}` of cluster `{}`", vm.name, vm.cluster());
        assert!(named.contains(&subject), "{subject} is left: {named}");
    }
    let clusters = named.split("of cluster `").skip(1);
    let of = cases_of(clusters.filter_map(|rest| rest.split('`').next()));
    assert!(!of.is_empty() && of.len() <= PARALLEL, "{of:?}: {named}");
}
