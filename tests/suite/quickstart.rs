//! The quickstart without a terminal.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// It succeeds, prints its steps, and removes its folder.
#[tokio::test]
async fn the_quickstart_brings_up_three_machines_and_then_five() -> Result<()> {
    // The tests of an example are built with the tests; the example itself is not.
    let quickstart = testbed::program("examples/quickstart")?;
    // A separate folder for temporary files shows whether the quickstart leaves any.
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(quickstart);
    command
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output())
        .await?
        .context("running the quickstart")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let all = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(0), "{}: {all}", output.status);
    for line in [
        "applying config/samples/machine-deployment.yaml",
        "3 Machines are Running; scaling to 5",
        "5 Machines are Running, each with one VM, one Node and one providerID",
    ] {
        ensure!(text.contains(line), "it does not say `{line}`: {all}");
    }
    ensure!(
        !text.contains('\u{1b}'),
        "it moves a cursor that is not there: {all}"
    );
    let left: Vec<_> = std::fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
    ensure!(left.is_empty(), "it leaves {left:?} behind");
    Ok(())
}
