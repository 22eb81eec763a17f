//! The driver in Rust of the quickstart, on `cmi-driver` and `cmi-grpc`, under the whole suite.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::RunFolder;
use testbed::{go_driver, program, skips_only};

use crate::python::{NOT_OF_A_FOLDER, SKIPS_OF_A_FOLDER, tested};
use crate::restarted::{self, Restarted};

/// The most lines of the driver, without its platform.
const MOST_LINES: usize = 100;
const HOOK: &str = "../../../../examples/drivers/hook.py";

/// Each part of the page stands in the driver, which reaches the verdict that the page promises. A whole run
/// tries every hook.
#[tokio::test]
async fn the_rust_quickstart_reaches_the_verdict_full() -> Result<()> {
    let repository = go_driver().join("../../..");
    let example = repository.join("crates/cmi-grpc/examples/folder");
    let driver = fs::read_to_string(example.join("main.rs"))?;
    let page = fs::read_to_string(repository.join("docs/drivers/quickstart-rust.md"))?;
    let parts: Vec<_> = page.split("```rust\n").skip(1).collect();
    ensure!(!parts.is_empty(), "the page shows no code");
    for part in parts {
        let (part, _) = part.split_once("```").context("a part has no end")?;
        ensure!(driver.contains(part), "the driver has no such part: {part}");
    }
    let lines = driver.lines().count();
    ensure!(lines <= MOST_LINES, "the author writes {lines} lines");
    let folder = RunFolder::create()?;
    let cloud = folder.path().join("cloud");
    let mut command = Command::new(program("examples/folder")?);
    command.env("ACME_FOLDER", &cloud);
    let served = Restarted::start(&folder, "acme", &command).await?;
    let hook = go_driver().join("../hook.py");
    let words = [
        (HOOK, &*hook.to_string_lossy()),
        ("cloud", &*cloud.to_string_lossy()),
    ];
    let config = restarted::configuration(&example, &words, Some(&served))?;
    let report = tested(&folder, &served.endpoint, &config, &[]).await?;
    // The kits for Go and Python derive one from the type of the spec.
    let reasons = [&SKIPS_OF_A_FOLDER[..], &["the driver publishes no schema"]].concat();
    skips_only(&report, &NOT_OF_A_FOLDER, &reasons)
}

/// CMI-181, CMI-188
#[tokio::test]
async fn a_rust_program_with_wrong_flags_or_files_ends_with_code_2() -> Result<()> {
    let folder = RunFolder::create()?;
    let file = folder.path().join("file");
    fs::write(&file, "")?;
    let endpoint = format!("unix://{}", folder.path().join("driver.sock").display());
    for (endpoint, cloud, flags, words) in [
        ("", folder.path(), &[][..], "acme: the endpoint is missing"),
        ("tcp://", folder.path(), &[], "invalid endpoint `tcp://`"),
        (
            &endpoint,
            folder.path(),
            &["--log-level=a=b=c"],
            "`a=b=c` is not a log filter",
        ),
        (&endpoint, &*file, &[], "acme: Not a directory"),
    ] {
        let mut command = tokio::process::Command::new(program("examples/folder")?);
        command
            .args(flags)
            .env("ACME_FOLDER", cloud)
            .env_remove("CMI_ENDPOINT");
        if !endpoint.is_empty() {
            command.env("CMI_ENDPOINT", endpoint);
        }
        let ended = command.kill_on_drop(true).output();
        let ended = tokio::time::timeout(Duration::from_mins(1), ended).await??;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(
            ended.status.code() == Some(2) && said.contains(words),
            "{words}: {}: {said}",
            ended.status
        );
    }
    Ok(())
}
