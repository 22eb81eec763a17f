//! A driver on grpc-go keeps every rule, tested from outside. Most drivers use grpc-go, which ends calls in
//! other ways than tonic.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use capcmi_cli::commands::conformance::connect;
use cmi_conformance::{Config, ConnectionWire, Hook, HookCall, Hooks, Selection, Target, Verdict, run};
use cmi_driver::{
    Code, CreateMachineRequest, Driver as _, GetMachineStatusRequest, MachineClass, MachineRef, Operation,
    ProviderSpec, SecretValue,
};
use cmi_grpc::client::{Deadlines, GrpcConfig, GrpcDriver};
use futures::future::try_join_all;
use futures::{StreamExt as _, stream};
use management_cluster::RunFolder;
use serde_json::{Value, json};
use testbed::{Go, GoDriver, go_driver, skips_only};
use tokio_util::sync::CancellationToken;

use crate::python::{EVERY_CALL, NOT_OF_A_FOLDER, SKIPS_OF_A_FOLDER, tested};
use crate::restarted::{self, Restarted};

/// How often the cases about deadlines run: a driver that keeps its deadlines once failed more than half of
/// the runs. Most of a round waits for slow calls, so several drivers run concurrently.
const ROUNDS: usize = 200;
const DRIVERS: usize = 8;
/// Milliseconds. The slow calls take forty times as long.
const SHORT_DEADLINE: u64 = 20;
/// How many calls take longer than their caller waits.
const TIMEOUTS: usize = 200;
const DEADLINES: [&str; 5] = [
    "wire-create-deadline",
    "wire-delete-deadline",
    "wire-status-deadline",
    "wire-list-deadline",
    "wire-shut-down-deadline",
];

/// Returns the author's configuration with the folder of this run.
pub fn configuration(cloud: &Path, driver: Option<&Restarted>) -> Result<Value> {
    let folder = go_driver();
    let hook = folder.join("../hook.py");
    let words = [
        ("../hook.py", &*hook.to_string_lossy()),
        ("cloud", &*cloud.to_string_lossy()),
    ];
    restarted::configuration(&folder, &words, driver)
}

async fn tested_go(only: &[&str]) -> Result<Value> {
    let folder = RunFolder::create()?;
    let cloud = folder.path().join("cloud");
    let driver = Restarted::start(&folder, "go", &Go::find().await?.command(&cloud)).await?;
    let config = configuration(&cloud, Some(&driver))?;
    tested(&folder, &driver.endpoint, &config, only).await
}

#[tokio::test]
async fn the_driver_in_go_keeps_the_rules_of_every_call() -> Result<()> {
    skips_only(&tested_go(&EVERY_CALL).await?, &[], &[])
}

#[tokio::test]
#[ignore = "long: a whole run, with a process for each hook"]
async fn the_go_driver_complies_also_during_outages_and_after_kills() -> Result<()> {
    skips_only(&tested_go(&[]).await?, &NOT_OF_A_FOLDER, &SKIPS_OF_A_FOLDER)
}

/// DRV-CR-04, PLG-CR-04: grpc-go resets a stream when its deadline passes, before or after its handler has
/// answered.
#[tokio::test]
#[ignore = "long: 200 rounds"]
async fn deadlines_that_a_driver_in_go_keeps_are_never_taken_for_broken() -> Result<()> {
    let go = Go::find().await?;
    let drivers = (0..DRIVERS).map(|number| keeps_its_deadlines(&go, number));
    try_join_all(drivers).await.map(drop)
}

/// Runs the rounds of one of the drivers.
async fn keeps_its_deadlines(go: &Go, number: usize) -> Result<()> {
    let folder = RunFolder::create()?;
    let driver = go.driver(&folder, "go").await?;
    let mut settings = configuration(&driver.cloud, None)?;
    settings["shortDeadlineMs"] = json!(SHORT_DEADLINE);
    let config = Config::read(&settings.to_string())?;
    let grpc = GrpcConfig {
        endpoint: Some(driver.served.endpoint.clone()),
        ..GrpcConfig::default()
    };
    let wire = Arc::new(ConnectionWire::new(connect(grpc.connector()?)));
    let client: Arc<GrpcDriver> = Arc::new(client(&driver, Duration::from_mins(1))?);
    let hooks = Arc::new(Slow(driver.cloud.join("faults/slow")));
    for round in 0..ROUNDS / DRIVERS {
        let target = Target::plugin("go", client.clone(), wire.clone(), Arc::default());
        let (only, stop) = (Selection::only(DEADLINES), CancellationToken::new());
        let report = run(target, config.clone(), hooks.clone(), &only, &(), stop).await?;
        let passed = report.cases.iter().filter(|case| case.verdict == Verdict::Passed);
        ensure!(
            report.passed && passed.count() == DEADLINES.len(),
            "driver {number}, round {round}: {:#?}",
            report.cases
        );
    }
    Ok(())
}

/// The hooks of hook.py that the rounds need, without a process for each of a thousand faults.
struct Slow(PathBuf);

#[async_trait]
impl Hooks for Slow {
    fn supports(&self, hook: Hook) -> bool {
        matches!(hook, Hook::Slow | Hook::Restore)
    }

    async fn run(&self, call: &HookCall) -> Result<Vec<u8>> {
        if call.hook == Hook::Slow {
            std::fs::write(&self.0, call.amount.to_string())?;
        } else if self.0.exists() {
            std::fs::remove_file(&self.0)?;
        }
        Ok(Vec::new())
    }
}

/// Returns the provider's client for plugins, with this timeout for a look-up.
fn client(driver: &GoDriver, look_up: Duration) -> Result<GrpcDriver> {
    let config = GrpcConfig {
        endpoint: Some(driver.served.endpoint.clone()),
        ..GrpcConfig::default()
    };
    let deadlines = Deadlines::new([(Operation::GetMachineStatus, look_up)]);
    Ok(GrpcDriver::new(&config, deadlines)?)
}

/// A machine with these secrets.
fn machine(secrets: impl IntoIterator<Item = (String, SecretValue)>) -> MachineRef {
    let spec = json!({
        "vmPool": "default",
        "size": "small",
        "tags": {"kubernetes.io/cluster": "a", "capcmi.io/machine": "b"},
    });
    let class = MachineClass {
        provider_spec: ProviderSpec(spec.as_object().cloned().unwrap_or_default()),
        secrets: secrets.into_iter().collect(),
    };
    MachineRef::new("a", class)
}

/// grpc-go answers before it has read such a request, and resets the stream while the client is still
/// sending.
#[tokio::test]
async fn what_grpc_go_says_of_a_message_that_is_too_long_for_it_arrives() -> Result<()> {
    let folder = RunFolder::create()?;
    let driver = Go::find().await?.driver(&folder, "go").await?;
    let client = client(&driver, Duration::from_mins(1))?;
    for mebibytes in [3, 6, 16] {
        let secret = ("userData".to_owned(), vec![b'x'; mebibytes << 20].into());
        let created = client
            .create_machine(CreateMachineRequest {
                machine: machine([secret]),
                last_known_state: None,
            })
            .await;
        match (mebibytes, created) {
            (3, created) => drop(created?),
            (_, Ok(machine)) => anyhow::bail!("{mebibytes} MiB were taken: {machine:?}"),
            (_, Err(status)) => ensure!(
                status.code() == Code::ResourceExhausted && status.message().contains("larger than max"),
                "{mebibytes} MiB: {status}"
            ),
        }
    }
    Ok(())
}

/// The reset of grpc-go may overtake the client's own clock: 1 of 40 calls was taken for a lost connection
/// once.
#[tokio::test]
async fn a_late_answer_of_the_go_driver_is_deadline_exceeded() -> Result<()> {
    let folder = RunFolder::create()?;
    let driver = Go::find().await?.driver(&folder, "go").await?;
    let client = client(&driver, Duration::from_millis(300))?;
    client.get_plugin_info().await?;
    std::fs::write(driver.cloud.join("faults/slow"), "5000")?;
    let look_up = || {
        client.get_machine_status(GetMachineStatusRequest {
            machine: machine([]),
            provider_id: None,
        })
    };
    // Not all concurrently, so that they do not wait for each other.
    let answers: Vec<_> = stream::iter(0..TIMEOUTS)
        .map(|_| look_up())
        .buffer_unordered(40)
        .collect()
        .await;
    for answer in answers {
        let status = answer.err().context("a slow call was answered in time")?;
        ensure!(status.code() == Code::DeadlineExceeded, "{status}");
    }
    Ok(())
}

/// A killed sidecar leaves its socket, and its successor finds it.
#[tokio::test]
async fn the_go_driver_takes_over_only_the_socket_of_a_killed_process() -> Result<()> {
    let folder = RunFolder::create()?;
    let go = Go::find().await?;
    let GoDriver { served, cloud } = go.driver(&folder, "go").await?;
    let mut second = go.command(&cloud);
    second.env("CMI_ENDPOINT", &served.endpoint);
    let refused = tokio::process::Command::from(second).output().await?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1) && said.contains("another process listens"),
        "{}: {said}",
        refused.status
    );
    drop(served);
    go.driver(&folder, "go").await?;
    Ok(())
}
