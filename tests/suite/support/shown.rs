//! Outputs for an operator about an object.

use std::process::Command;

use anyhow::{Context, Result};

use super::World;
use super::world::run;

/// The output of `capcmi describe`.
pub fn describe(world: &World, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(testbed::program("capcmi")?);
    command
        .arg("describe")
        .args(arguments)
        .args(["--namespace", &world.namespace, "--kubeconfig"])
        .arg(world.management.admin_kubeconfig())
        .arg("--drivers-config")
        .arg(world.folder.join("provider-drivers.yaml"));
    run(&mut command)
}

/// The value below a title in the first row of kubectl's output.
pub fn column(text: &str, title: &str) -> Result<String> {
    let mut lines = text.lines();
    let titles = lines.next().context("kubectl printed nothing")?;
    let start = titles
        .find(title)
        .with_context(|| format!("no column {title} in {titles}"))?;
    let after = &titles[start + title.len()..];
    let gap = after.len() - after.trim_start().len();
    let end = (!after.trim().is_empty()).then_some(start + title.len() + gap);
    let line = lines.next().context("kubectl printed no row")?;
    let cell = match end {
        Some(end) => line.get(start..end.min(line.len())),
        None => line.get(start..),
    };
    Ok(cell.unwrap_or_default().trim().to_owned())
}
