//! A driver on grpc-go keeps every rule, seen from outside. grpc-go is the library of most drivers, and ends
//! calls in other ways than the one that the provider is built with.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use management_cluster::RunFolder;
use serde_json::{Value, json};
use testbed::{Go, GoDriver, go_driver};

use crate::python::{judged, rules};

/// How often the cases about deadlines are run. Of a driver that keeps its deadlines, more than half of the
/// runs failed once.
const ROUNDS: usize = 5;
const DEADLINES: [&str; 5] = [
    "wire-create-deadline",
    "wire-delete-deadline",
    "wire-status-deadline",
    "wire-list-deadline",
    "wire-shut-down-deadline",
];

/// What the driver's author wrote of it, with the folder of this run.
fn configuration(cloud: &Path) -> Result<Value> {
    let folder = go_driver();
    let path = folder.join("conformance.yaml");
    let yaml = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut config: Value = serde_saphyr::from_str(&yaml).with_context(|| path.display().to_string())?;
    let hooks = config["hooks"].as_object_mut().context("there are hooks")?;
    for command in hooks.values_mut() {
        let command = command.as_array_mut().context("a hook is a list")?;
        ensure!(
            command[..2] == [json!("./hook.py"), json!("cloud")],
            "{command:?}"
        );
        command[0] = json!(folder.join("hook.py"));
        command[1] = json!(cloud);
    }
    Ok(config)
}

#[tokio::test]
async fn the_driver_in_go_is_compliant_also_when_its_back_end_fails() -> Result<()> {
    let folder = RunFolder::create()?;
    let driver = Go::find().await?.driver(&folder, "go").await?;
    let mut config = configuration(&driver.cloud)?;
    config["logs"] = json!([driver.process.log()]);
    let report = judged(&folder, &driver.endpoint, &config, &[]).await?;
    ensure!(report["compliant"] == true, "{report}");
    ensure!(
        rules(&report, "passed") > 180,
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
    let config = configuration(&driver.cloud)?;
    for round in 0..ROUNDS {
        let report = judged(&folder, &driver.endpoint, &config, &DEADLINES)
            .await
            .with_context(|| format!("round {round}"))?;
        let cases = report["cases"].as_array().context("there are cases")?;
        ensure!(cases.len() == DEADLINES.len(), "{report}");
    }
    Ok(())
}

/// A sidecar that is killed leaves its socket, and the next one finds it.
#[tokio::test]
async fn the_driver_in_go_takes_over_the_socket_of_one_that_was_killed_and_of_no_other() -> Result<()> {
    let folder = RunFolder::create()?;
    let go = Go::find().await?;
    let GoDriver {
        endpoint,
        cloud,
        process,
    } = go.driver(&folder, "go").await?;
    let refused = tokio::process::Command::from(go.command(&endpoint, &cloud))
        .output()
        .await?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1) && said.contains("another process listens"),
        "{}: {said}",
        refused.status
    );
    drop(process);
    go.driver(&folder, "go").await?;
    Ok(())
}
