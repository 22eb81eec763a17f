//! The kit for drivers in Go, `sdk/go`, and the vSphere driver on it, under the whole suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::RunFolder;
use testbed::{NO_ADDRESS_PATH, NO_LIST_STATE, NO_MACHINE_TAG, UNIQUE_NAMES, go_driver, skips_only};
use tokio::process::Command;

use crate::python::{NOT_OF_A_FOLDER, SKIPS_OF_A_FOLDER};
use crate::recorder::Recorder;

/// The most lines of the driver in the quickstart, with its tests.
const MOST_LINES: usize = 120;
/// The first run fetches modules and compiles gRPC.
const DEADLINE: Duration = Duration::from_mins(10);
/// The calls that `driver.Driver` of machine-controller-manager lacks.
const NOT_OF_MCM: [&str; 6] = [
    "ShutDownMachine",
    "UpdateMachine",
    "RestartMachine",
    "GetConsole",
    "ListZones",
    "DescribeClass",
];
const MODULE: &str = "github.com/capcmi/cluster-api-provider-cmi/sdk/go";

fn repository() -> PathBuf {
    go_driver().join("../../..")
}

/// Runs `go` in a folder, and returns its output. Tests run the suite with this program.
async fn go(folder: &Path, arguments: &[&str], capcmi: &Path) -> Result<String> {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(folder)
        .env("CAPCMI", capcmi)
        .kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output());
    let output = output
        .await
        .with_context(|| format!("go {arguments:?} takes too long"))??;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "go {arguments:?}: {text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// Returns the file with this name from a page, which shows it in parts.
fn shown(page: &str, file: &str) -> Result<String> {
    let mark = format!("<!-- file: {file} -->\n\n```go\n");
    let parts = page.split(&mark).skip(1);
    let parts: Option<Vec<_>> = parts.map(|part| Some(part.split_once("```")?.0)).collect();
    let file = parts.context("a part has no end")?.join("\n");
    ensure!(!file.is_empty(), "the page shows no such file");
    Ok(file)
}

/// Runs the test of a package with this name. The suite must reach `full`. It skips cases for want of these
/// calls and for these reasons alone.
async fn reaches_full(
    folder: &Path,
    package: &str,
    test: &str,
    calls: &[&str],
    skips: &[&str],
) -> Result<()> {
    let recorder = Recorder::create()?;
    let pattern = format!("-run=^{test}$");
    let arguments = ["test", "-count=1", "-v", &pattern, package];
    let output = go(folder, &arguments, &recorder.program()).await?;
    ensure!(
        output.contains("cmi.v1: yes") && output.contains("capcmi: full"),
        "{output}"
    );
    skips_only(&recorder.report()?, calls, skips)
}

/// An author who copies the page, or begins with the skeleton, gets the verdict that the page promises.
#[tokio::test]
async fn the_go_quickstart_reaches_the_verdict_full() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/drivers/quickstart-go.md"))?;
    let folder = RunFolder::create()?;
    let folder = folder.path().join("acme");
    let mut skeleton = Command::new(env!("CARGO_BIN_EXE_capcmi"));
    skeleton.args(["driver", "new", "--lang=go", "acme", "--folder"]);
    ensure!(skeleton.arg(&folder).status().await?.success(), "no skeleton");
    let mut lines = 0;
    for file in ["main.go", "main_test.go"] {
        let text = shown(&page, file).context(file)?;
        lines += text.lines().count();
        ensure!(text == fs::read_to_string(folder.join(file))?, "{file} differs");
    }
    ensure!(lines <= MOST_LINES, "the author writes {lines} lines");
    let kit = fs::canonicalize(repository().join("sdk/go"))?;
    let replacement = format!("-replace={MODULE}={}", kit.display());
    let requirement = format!("-require={MODULE}@v0.0.0");
    let capcmi = Path::new(env!("CARGO_BIN_EXE_capcmi"));
    go(&folder, &["mod", "edit", &replacement, &requirement], capcmi).await?;
    go(&folder, &["mod", "tidy"], capcmi).await?;
    go(&folder, &["vet", "./..."], capcmi).await?;
    let calls = [&NOT_OF_A_FOLDER[..], &["ShutDownMachine"]].concat();
    reaches_full(&folder, ".", "TestConformance", &calls, &SKIPS_OF_A_FOLDER).await
}

/// The bridge keeps the contract for a driver that knows a machine by its name.
#[tokio::test]
async fn the_fake_driver_of_mcm_reaches_the_verdict_full() -> Result<()> {
    let bridge = repository().join("sdk/go/mcmbridge");
    let test = "TestFakeDriverOfMCMKeepsTheContract";
    reaches_full(
        &bridge,
        ".",
        test,
        &NOT_OF_MCM,
        &[NO_ADDRESS_PATH, NO_MACHINE_TAG, NO_LIST_STATE, UNIQUE_NAMES],
    )
    .await
}

/// The back end of this test offers every optional call. No case is skipped.
#[tokio::test]
async fn every_call_of_the_go_kit_keeps_every_rule() -> Result<()> {
    let kit = repository().join("sdk/go");
    reaches_full(&kit, "./cmitest", "TestEverything", &[], &[]).await
}

/// The back end of this test is slow, limited and eventually consistent.
#[tokio::test]
#[ignore = "long: a whole run against a slow back end"]
async fn a_rest_driver_on_the_go_kit_reaches_the_verdict_full() -> Result<()> {
    let kit = repository().join("sdk/go");
    reaches_full(
        &kit,
        "./cmitest",
        "TestREST",
        &NOT_OF_A_FOLDER,
        &[NO_ADDRESS_PATH, NO_MACHINE_TAG, NO_LIST_STATE],
    )
    .await
}

#[tokio::test]
async fn go_test_fails_for_a_broken_driver() -> Result<()> {
    let capcmi = Path::new(env!("CARGO_BIN_EXE_capcmi"));
    let arguments = ["test", "-count=1", "-v", "-run=TestRun", "./cmitest"];
    let output = go(&repository().join("sdk/go"), &arguments, capcmi).await?;
    ensure!(
        output.contains("--- PASS: TestRunFailsForABrokenDriver"),
        "{output}"
    );
    Ok(())
}

/// The back end is govmomi's simulator of vCenter.
#[tokio::test]
#[ignore = "long: a whole run that clones VMs"]
async fn the_vsphere_driver_reaches_the_verdict_full() -> Result<()> {
    let driver = repository().join("drivers/vsphere");
    let calls = ["UpdateMachine", "GetConsole", "GenerateMachineClassForMigration"];
    reaches_full(
        &driver,
        ".",
        "TestConformance",
        &calls,
        &[NO_ADDRESS_PATH, NO_MACHINE_TAG],
    )
    .await
}
