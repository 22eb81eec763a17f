//! The kit for drivers in Python, `sdk/python`, under the whole suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::RunFolder;
use testbed::{
    NO_ADDRESS_PATH, NO_LIST_STATE, NO_MACHINE_TAG, Python, python_drivers, python_kit, skips_only,
};
use tokio::process::Command;

use crate::python::{NOT_OF_A_FOLDER, SKIPS_OF_A_FOLDER};
use crate::recorder::Recorder;

/// The most lines of the driver in the quickstart, with its tests.
const MOST_LINES: usize = 120;
const DEADLINE: Duration = Duration::from_mins(10);

fn repository() -> PathBuf {
    python_drivers().join("../../..")
}

/// Runs Python in a folder with these packages, and returns its output. Tests run the suite with this
/// program.
async fn python(folder: &Path, packages: &Path, arguments: &[&str], capcmi: &Path) -> Result<String> {
    let python = Python::find().await?;
    let mut command = Command::new(python.interpreter());
    command
        .args(arguments)
        .current_dir(folder)
        .env("CAPCMI", capcmi)
        .env("PYTHONPATH", packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output());
    let output = output
        .await
        .with_context(|| format!("python {arguments:?} takes too long"))??;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "python {arguments:?}: {text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// Returns the file with this name from a page, which shows it in parts.
fn shown(page: &str, file: &str) -> Result<String> {
    let mark = format!("<!-- file: {file} -->\n\n```python\n");
    let mut text = String::new();
    for part in page.split(&mark).skip(1) {
        let (part, _) = part.split_once("```").context("a part has no end")?;
        if !text.is_empty() {
            text.push_str(if part.starts_with(' ') { "\n" } else { "\n\n" });
        }
        text.push_str(part);
    }
    ensure!(!text.is_empty(), "the page shows no such file");
    Ok(text)
}

/// Runs pytest. The suite must reach `full`. It skips cases for want of these calls and for these reasons
/// alone.
async fn reaches_full(
    folder: &Path,
    packages: &Path,
    arguments: &[&str],
    calls: &[&str],
    skips: &[&str],
) -> Result<()> {
    let recorder = Recorder::create()?;
    let pytest = [&["-m", "pytest", "-s", "-p", "no:cacheprovider"], arguments].concat();
    let output = python(folder, packages, &pytest, &recorder.program()).await?;
    ensure!(
        output.contains("cmi.v1: yes") && output.contains("capcmi: full"),
        "{output}"
    );
    skips_only(&recorder.report()?, calls, skips)
}

/// An author who copies the page, or begins with the skeleton, gets the verdict that the page promises. The
/// kit is installed from its folder.
#[tokio::test]
async fn the_python_quickstart_reaches_the_verdict_full() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/drivers/quickstart-python.md"))?;
    let run = RunFolder::create()?;
    let folder = run.path().join("acme");
    let mut skeleton = Command::new(env!("CARGO_BIN_EXE_capcmi"));
    skeleton.args(["driver", "new", "--lang=python", "acme", "--folder"]);
    ensure!(skeleton.arg(&folder).status().await?.success(), "no skeleton");
    let mut lines = 0;
    for file in ["driver.py", "test_driver.py"] {
        let text = shown(&page, file).context(file)?;
        lines += text.lines().count();
        ensure!(text == fs::read_to_string(folder.join(file))?, "{file} differs");
    }
    ensure!(lines <= MOST_LINES, "the author writes {lines} lines");
    let (kit, packages) = (run.path().join("kit"), run.path().join("packages"));
    // The installation builds in the folder, which other tests read.
    let copied = Command::new("cp")
        .arg("-R")
        .arg(repository().join("sdk/python"))
        .arg(&kit)
        .status();
    ensure!(copied.await?.success(), "the kit was not copied");
    let (from, target) = (kit.display().to_string(), packages.display().to_string());
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        &target,
        &from,
    ];
    let capcmi = Path::new(env!("CARGO_BIN_EXE_capcmi"));
    python(run.path(), &packages, &install, capcmi).await?;
    ensure!(packages.join("cmi/py.typed").exists(), "the kit has no types");
    let calls = [&NOT_OF_A_FOLDER[..], &["ShutDownMachine"]].concat();
    reaches_full(&folder, &packages, &[], &calls, &SKIPS_OF_A_FOLDER).await
}

/// The tests of the kit with this name, which run the suite.
const fn of_the_kit(name: &str) -> [&str; 4] {
    ["-m", "conformance", "-k", name]
}

/// The back end of this test offers every optional call. No case is skipped.
#[tokio::test]
async fn every_call_of_the_python_kit_keeps_every_rule() -> Result<()> {
    let kit = repository().join("sdk/python");
    reaches_full(&kit, &python_kit(), &of_the_kit("test_every_call"), &[], &[]).await
}

/// The back end of this test is slow, limited and eventually consistent.
#[tokio::test]
#[ignore = "long: a whole run against a slow back end"]
async fn a_rest_driver_on_the_python_kit_reaches_the_verdict_full() -> Result<()> {
    let kit = repository().join("sdk/python");
    let reasons = [NO_ADDRESS_PATH, NO_MACHINE_TAG, NO_LIST_STATE];
    reaches_full(
        &kit,
        &python_kit(),
        &of_the_kit("test_threads"),
        &NOT_OF_A_FOLDER,
        &reasons,
    )
    .await
}

#[tokio::test]
async fn pytest_fails_for_a_broken_driver() -> Result<()> {
    let kit = repository().join("sdk/python");
    let pytest = [
        ["-m", "pytest", "-p", "no:cacheprovider"],
        of_the_kit("test_a_broken_driver"),
    ];
    let capcmi = Path::new(env!("CARGO_BIN_EXE_capcmi"));
    python(&kit, &python_kit(), &pytest.concat(), capcmi)
        .await
        .map(drop)
}
