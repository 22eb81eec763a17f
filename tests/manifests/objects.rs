//! YAML streams as objects.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The top folder of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The objects of a YAML stream.
pub fn parse(yaml: &str) -> Result<Vec<Value>> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).context("reading YAML")?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

/// Standard output of a command that has to succeed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The object of a kind and name.
pub fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Result<&'a Value> {
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .with_context(|| format!("there is no {kind} {name}"))
}

/// `kind name` of every object.
pub fn titles(objects: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    objects
        .iter()
        .map(|object| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])))
        .collect()
}
