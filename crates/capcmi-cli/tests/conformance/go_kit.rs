//! The kit for drivers in Go, `sdk/go`, and the vSphere driver on it, under the whole suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::RunFolder;
use testbed::go_driver;
use tokio::process::Command;

/// The most lines of the driver in the quickstart, with its tests.
const MOST_LINES: usize = 120;
/// The first run fetches modules and compiles gRPC.
const DEADLINE: Duration = Duration::from_mins(10);
const MODULE: &str = "github.com/capcmi/cluster-api-provider-cmi/sdk/go";

fn repository() -> PathBuf {
    go_driver().join("../../..")
}

/// Runs `go` in a folder, and returns its output.
async fn go(folder: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(folder)
        .env("CAPCMI", env!("CARGO_BIN_EXE_capcmi"))
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

fn reaches_full(output: &str) -> Result<()> {
    ensure!(
        output.contains("cmi.v1: yes") && output.contains("capcmi: full"),
        "{output}"
    );
    Ok(())
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
    go(&folder, &["mod", "edit", &replacement, &requirement]).await?;
    go(&folder, &["mod", "tidy"]).await?;
    go(&folder, &["vet", "./..."]).await?;
    reaches_full(&go(&folder, &["test", "-v", "./..."]).await?)
}

/// Runs the tests of the kit with these names, which run the suite.
async fn kit_tests(names: &str) -> Result<String> {
    tests_of("sdk/go", "./cmitest", names).await
}

async fn tests_of(module: &str, package: &str, names: &str) -> Result<String> {
    let pattern = format!("-run={names}");
    let arguments = ["test", "-count=1", "-v", &pattern, package];
    go(&repository().join(module), &arguments).await
}

/// The bridge keeps the contract for a driver that knows a machine by its name.
#[tokio::test]
async fn the_fake_driver_of_mcm_reaches_the_verdict_full() -> Result<()> {
    reaches_full(&tests_of("sdk/go/mcmbridge", ".", "TestFakeDriverOfMCM").await?)
}

/// The back end of this test offers every optional call. No case is skipped.
#[tokio::test]
async fn every_call_of_the_go_kit_keeps_every_rule() -> Result<()> {
    let output = kit_tests("TestEverything").await?;
    ensure!(output.contains(" 0 skipped"), "{output}");
    reaches_full(&output)
}

/// The back end of this test is slow, limited and eventually consistent.
#[tokio::test]
#[ignore = "long: a whole run against a slow back end"]
async fn a_rest_driver_on_the_go_kit_reaches_the_verdict_full() -> Result<()> {
    reaches_full(&kit_tests("TestREST").await?)
}

#[tokio::test]
async fn go_test_fails_for_a_broken_driver() -> Result<()> {
    let output = kit_tests("TestRun").await?;
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
    let arguments = ["test", "-count=1", "-v", "-run=TestConformance", "."];
    reaches_full(&go(&repository().join("drivers/vsphere"), &arguments).await?)
}
