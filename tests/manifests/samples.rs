//! The samples in the documentation match the output of the programs.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::objects::repository;

fn read(file: &str) -> Result<String> {
    fs::read_to_string(repository().join(file)).with_context(|| file.to_owned())
}

/// The block of code of a page that follows a text.
fn block(page: &str, before: &str, language: &str) -> Result<String> {
    let text = read(page)?;
    let (_, rest) = text
        .split_once(before)
        .with_context(|| format!("{page} lacks: {before}"))?;
    let (_, block) = rest
        .split_once(&format!("```{language}\n"))
        .with_context(|| format!("{page} has no sample after: {before}"))?;
    let (block, _) = block.split_once("\n```").context("a block has an end")?;
    Ok(block.to_owned())
}

/// Fails unless the lines of a sample are lines of the output, in its order. `…` leaves out the rest of a
/// line, or lines.
fn ensure_excerpt(sample: &str, output: &str) -> Result<()> {
    let mut rest = output.lines();
    for line in sample.lines().filter(|line| line.trim() != "…") {
        let found = match line.strip_suffix('…') {
            Some(start) => rest.any(|printed| printed.starts_with(start)),
            None => rest.any(|printed| printed == line),
        };
        ensure!(found, "not printed, or not there: {line}\n{output}");
    }
    Ok(())
}

/// The tests of `capcmi describe` compare this file with a page.
#[test]
fn first_look_shows_a_page_of_describe() -> Result<()> {
    let sample = block("docs/operate/first-look.md", "## Describe\n", "text")?;
    let (command, sample) = sample.split_once('\n').context("a page")?;
    ensure!(command.starts_with("$ capcmi describe machine "), "{command}");
    ensure!(sample.lines().count() > 5, "{sample}");
    ensure_excerpt(sample, &read("crates/capcmi-cli/src/describe/tests/refused.txt")?)
}

/// The label of a row of `capcmi driver info`, with the space up to its value.
fn label(row: &str) -> Option<&str> {
    let name = row.strip_prefix("  ")?.split_once("  ")?.0;
    let value = row[2 + name.len()..].trim_start();
    Some(&row[..row.len() - value.len()])
}

#[test]
fn tutorial_shows_the_rows_of_driver_info() -> Result<()> {
    let sample = block("docs/drivers/quickstart-python.md", "## Run it\n", "text")?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("drivers.yaml");
    fs::write(&file, "drivers: [{name: a, simulated: {}}]")?;
    let output = Command::new(testbed::program("capcmi")?)
        .args(["driver", "info", "--drivers-config"])
        .arg(&file)
        .output()?;
    let printed = String::from_utf8(output.stdout)?;
    let labels = |text: &str| -> Vec<String> {
        let labels = text.lines().filter_map(label);
        labels.map(str::to_owned).collect()
    };
    let (shown, printed) = (labels(&sample), labels(&printed));
    ensure!(
        shown.len() == 4 && printed.starts_with(&shown),
        "{shown:?} {printed:?}"
    );
    Ok(())
}

/// The suite runs against this file in the tests of the Python kit.
#[test]
fn readme_shows_the_calls_of_the_python_skeleton() -> Result<()> {
    let sample = block("README.md", "## Your own driver\n", "python")?;
    let (class, methods) = sample.split_once('\n').context("a class")?;
    let driver = read("crates/capcmi-cli/src/commands/driver/new/python/driver.py")?;
    ensure!(driver.contains(&format!("\n{class}\n")), "{class}");
    ensure!(driver.contains(&format!("\n{methods}\n")), "{methods}");
    let calls = ["create", "find", "list", "delete"];
    ensure!(
        calls
            .iter()
            .all(|call| methods.contains(&format!("    def {call}("))),
        "{methods}"
    );
    Ok(())
}
