//! A driver on grpc-go keeps every rule, seen from outside. grpc-go is the library of most drivers, and ends
//! calls in other ways than the one that the provider is built with.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cmi_driver::{
    Code, CreateMachineRequest, Driver as _, GetMachineStatusRequest, MachineClass, MachineRef, Operation,
    ProviderSpec, SecretValue,
};
use cmi_grpc::client::{Deadlines, GrpcConfig, GrpcDriver};
use futures::{StreamExt as _, stream};
use management_cluster::RunFolder;
use serde_json::{Value, json};
use testbed::{Go, GoDriver, go_driver};

use crate::python::{judged, rules};
use crate::restarted::{self, Restarted};

/// How often the cases about deadlines are run. Of a driver that keeps its deadlines, more than half of the
/// runs failed once.
const ROUNDS: usize = 40;
/// How many calls take longer than their caller waits.
const TIMEOUTS: usize = 200;
const DEADLINES: [&str; 5] = [
    "wire-create-deadline",
    "wire-delete-deadline",
    "wire-status-deadline",
    "wire-list-deadline",
    "wire-shut-down-deadline",
];

/// What the driver's author wrote of it, with the folder of this run.
pub fn configuration(cloud: &Path, driver: Option<&Restarted>) -> Result<Value> {
    let folder = go_driver();
    let hook = folder.join("../hook.py");
    let words = [
        ("../hook.py", &*hook.to_string_lossy()),
        ("cloud", &*cloud.to_string_lossy()),
    ];
    restarted::configuration(&folder, &words, driver)
}

#[tokio::test]
async fn the_driver_in_go_is_compliant_also_when_its_back_end_fails_and_when_it_is_killed() -> Result<()> {
    let folder = RunFolder::create()?;
    let cloud = folder.path().join("cloud");
    let driver = Restarted::start(&folder, "go", &Go::find().await?.command(&cloud)).await?;
    let config = configuration(&cloud, Some(&driver))?;
    let report = judged(&folder, &driver.endpoint, &config, &[]).await?;
    ensure!(
        rules(&report, "passed") > 250,
        "{} passed",
        rules(&report, "passed")
    );
    Ok(())
}

/// DRV-CR-04, PLG-CR-04: grpc-go resets a stream when its deadline passes, before or after its handler has
/// answered.
#[tokio::test]
async fn deadlines_that_a_driver_in_go_keeps_are_never_taken_for_broken() -> Result<()> {
    let folder = RunFolder::create()?;
    let driver = Go::find().await?.driver(&folder, "go").await?;
    let config = configuration(&driver.cloud, None)?;
    for round in 0..ROUNDS {
        let report = judged(&folder, &driver.served.endpoint, &config, &DEADLINES)
            .await
            .with_context(|| format!("round {round}"))?;
        let cases = report["cases"].as_array().context("there are cases")?;
        ensure!(cases.len() == DEADLINES.len(), "{report}");
    }
    Ok(())
}

/// The client that the provider calls plugins with; a look-up gets so much time.
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

/// grpc-go answers before it has read such a request, and resets the stream on which the client still sends.
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
async fn a_call_that_a_driver_in_go_does_not_answer_in_time_is_deadline_exceeded() -> Result<()> {
    let folder = RunFolder::create()?;
    let driver = Go::find().await?.driver(&folder, "go").await?;
    let client = client(&driver, Duration::from_millis(300))?;
    client.info().await?;
    std::fs::write(driver.cloud.join("faults/slow"), "5000")?;
    let look_up = || {
        client.get_machine_status(GetMachineStatusRequest {
            machine: machine([]),
            provider_id: None,
        })
    };
    // A few at a time, so that they do not wait for each other.
    let answers: Vec<_> = stream::iter(0..TIMEOUTS)
        .map(|_| look_up())
        .buffer_unordered(8)
        .collect()
        .await;
    for answer in answers {
        let status = answer.err().context("a slow call was answered in time")?;
        ensure!(status.code() == Code::DeadlineExceeded, "{status}");
    }
    Ok(())
}

/// A sidecar that is killed leaves its socket, and the next one finds it.
#[tokio::test]
async fn the_driver_in_go_takes_over_the_socket_of_one_that_was_killed_and_of_no_other() -> Result<()> {
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
