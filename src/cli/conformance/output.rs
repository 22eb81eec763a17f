//! The files that a run writes.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A file for a report. It is opened before the run, so that one that can't be written costs none.
pub(super) struct ReportFile {
    path: PathBuf,
    file: File,
}

impl ReportFile {
    /// Opens a file, and empties it.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("opening {} for the report", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes the report.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn write(mut self, text: &str) -> Result<()> {
        let written = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.flush());
        written.with_context(|| format!("writing {}", self.path.display()))
    }
}
