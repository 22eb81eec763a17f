//! The drivers in Python keep every rule, tested from outside: with the command, on separate processes.

use std::process::Command;

use anyhow::{Result, ensure};
use management_cluster::RunFolder;
use serde_json::{Value, json};
use testbed::{
    NO_ADDRESS_PATH, NO_CREDENTIALS, NO_LIST_STATE, NO_MACHINE_TAG, NO_QUOTA, Python, python_drivers,
    skips_only,
};

use crate::restarted::{self, Restarted};

/// Cases with every required or common call, a fault of the back end and a restart. A whole run starts a
/// process for each of several hundred hooks.
pub const EVERY_CALL: [&str; 18] = [
    "capabilities-stay",
    "create-again",
    "create-invalid-specs",
    "create-unavailable",
    "create-user-data",
    "delete-again",
    "delete-just-its-vm",
    "list-keys",
    "restart-finds-the-vm",
    "secrets-are-not-logged",
    "secrets-do-not-come-back",
    "shut-down-keeps-the-vm",
    "status-like-create",
    "status-never-made",
    "volumes-offered",
    "wire-create-deadline",
    "wire-services",
    "wire-status",
];

/// The calls that a driver of files in a folder has no use for.
pub const NOT_OF_A_FOLDER: [&str; 8] = [
    "InitializeMachine",
    "UpdateMachine",
    "RestartMachine",
    "GetConsole",
    "ListZones",
    "DescribeClass",
    "GetVolumeIDs",
    "GenerateMachineClassForMigration",
];
/// Why a whole run against such a driver skips other cases.
pub const SKIPS_OF_A_FOLDER: [&str; 5] = [
    NO_ADDRESS_PATH,
    NO_CREDENTIALS,
    NO_MACHINE_TAG,
    NO_LIST_STATE,
    NO_QUOTA,
];

/// Runs the suite as an author does, and returns its report. A run of all cases must try every rule.
pub async fn tested(folder: &RunFolder, endpoint: &str, config: &Value, only: &[&str]) -> Result<Value> {
    tested_at(folder, &[format!("--endpoint={endpoint}")], config, only).await
}

/// The same for a driver with these arguments.
pub async fn tested_at(
    folder: &RunFolder,
    plugin: &[String],
    config: &Value,
    only: &[&str],
) -> Result<Value> {
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("suite.yaml"), config.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
    command
        .arg("conformance")
        .args(plugin)
        .arg("--config")
        .arg(path("suite.yaml"))
        .arg(match only {
            [] => "--require=full".to_owned(),
            only => format!("--only={}", only.join(",")),
        })
        .arg("--json")
        .arg(path("report.json"));
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(
        output.status.code() == Some(0),
        "{}: {}{}",
        output.status,
        what_failed(&String::from_utf8_lossy(&output.stdout)),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_str(&std::fs::read_to_string(path(
        "report.json",
    ))?)?)
}

/// Returns the failures and the verdict, without hundreds of cases and rules: CI cuts long output. Returns
/// the whole output if it has no summary.
fn what_failed(printed: &str) -> &str {
    printed
        .rfind("\ncases: ")
        .map_or(printed, |start| &printed[start..])
}

async fn tested_minimal(only: &[&str]) -> Result<Value> {
    let folder = RunFolder::create()?;
    let cloud = folder.path().join("cloud");
    let command = Python::find().await?.minimal_command(&cloud);
    let driver = Restarted::start(&folder, "minimal", &command).await?;
    let hook = python_drivers().join("../hook.py");
    let words = [
        ("../../hook.py", &*hook.to_string_lossy()),
        ("cloud", &*cloud.to_string_lossy()),
    ];
    let config = restarted::configuration(&python_drivers().join("minimal"), &words, Some(&driver))?;
    tested(&folder, &driver.endpoint, &config, only).await
}

#[tokio::test]
async fn the_minimal_driver_in_python_keeps_the_rules_of_every_call() -> Result<()> {
    skips_only(&tested_minimal(&EVERY_CALL).await?, &["ShutDownMachine"], &[])
}

#[tokio::test]
#[ignore = "long: a whole run, with a process for each hook"]
async fn the_minimal_python_driver_complies_in_outages_and_after_kills() -> Result<()> {
    let calls = [&NOT_OF_A_FOLDER[..], &["ShutDownMachine"]].concat();
    skips_only(&tested_minimal(&[]).await?, &calls, &SKIPS_OF_A_FOLDER)
}

async fn tested_ec2(only: &[&str]) -> Result<Value> {
    let folder = RunFolder::create()?;
    let python = Python::find().await?;
    let ec2 = python.ec2(&folder, "ec2").await?;
    let driver = Restarted::start(&folder, "driver", &python.ec2_driver_command(&ec2)).await?;
    let (here, console) = (python_drivers().join("ec2"), format!("http://{}", ec2.address));
    let hook = here.join("tests/hook.py");
    let words = [
        ("tests/hook.py", &*hook.to_string_lossy()),
        ("http://127.0.0.1:5000", &*console),
    ];
    let mut config = restarted::configuration(&here, &words, Some(&driver))?;
    config["providerSpec"]["subnets"] = ec2.console("subnets").await?;
    // The driver's page has 1,000 entries, and moto needs an hour for them. The driver's own tests have pages
    // of five.
    config["manyMachines"] = json!(6);
    tested(&folder, &driver.endpoint, &config, only).await
}

#[tokio::test]
async fn the_ec2_driver_in_python_keeps_the_rules_of_every_call() -> Result<()> {
    skips_only(&tested_ec2(&EVERY_CALL).await?, &[], &[])
}

#[tokio::test]
#[ignore = "long: a whole run, with a process for each hook"]
async fn the_python_ec2_driver_complies_also_in_outages_and_after_kills() -> Result<()> {
    let calls = ["RestartMachine", "GetConsole", "GenerateMachineClassForMigration"];
    let reasons = [
        NO_ADDRESS_PATH,
        NO_LIST_STATE,
        NO_QUOTA,
        // A full zone ends a create, and its repeat tries the next zone. The driver's own tests have one.
        "the configuration has no `fullFailureDomain`",
        // The id is in the PersistentVolume.
        "GetVolumeIDs needs no back end here",
    ];
    skips_only(&tested_ec2(&[]).await?, &calls, &reasons)
}
