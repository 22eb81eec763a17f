//! A program in place of `capcmi` that keeps the report of a run, for tests in other languages.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use management_cluster::RunFolder;
use serde_json::Value;

/// Runs `capcmi` and copies the file of its flag `--json`.
pub struct Recorder {
    folder: RunFolder,
}

impl Recorder {
    /// Writes the program.
    pub fn create() -> Result<Self> {
        let recorder = Self {
            folder: RunFolder::create()?,
        };
        let (program, report) = (
            env!("CARGO_BIN_EXE_capcmi"),
            recorder.file().display().to_string(),
        );
        let script = format!(
            r#"#!/bin/sh
'{program}' "$@"
code=$?
while [ $# -gt 1 ]; do
    [ "$1" = --json ] && cp "$2" '{report}'
    shift
done
exit $code
"#
        );
        fs::write(recorder.program(), script)?;
        fs::set_permissions(recorder.program(), fs::Permissions::from_mode(0o755))?;
        Ok(recorder)
    }

    /// The value of the variable CAPCMI.
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("capcmi")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("report.json")
    }

    /// The report of the last run.
    pub fn report(&self) -> Result<Value> {
        let text = fs::read_to_string(self.file()).context("the run wrote no report")?;
        Ok(serde_json::from_str(&text)?)
    }
}
