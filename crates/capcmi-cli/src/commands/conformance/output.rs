//! The files that a run writes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A file for a report. It is opened before the run, so that an unwritable file does not waste a run. It
/// keeps the report of an earlier run until the new report is written. A new file is created together with
/// its report, no matter how the run ends.
pub(super) struct ReportFile {
    path: PathBuf,
    /// A pipe or a terminal. It is opened once.
    stream: Option<File>,
}

impl ReportFile {
    /// Opens a file, and keeps its contents.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let is_new = !path.try_exists()?;
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false).open(path)?;
            if !file.metadata()?.is_file() {
                return Ok(Some(file));
            }
            if is_new {
                // The path may be a link.
                fs::remove_file(fs::canonicalize(path)?)?;
            }
            io::Result::Ok(None)
        };
        Ok(Self {
            path: path.to_owned(),
            stream: open().with_context(|| format!("cannot open {} for the report", path.display()))?,
        })
    }

    /// Replaces the contents by the report.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn write(self, text: &str) -> Result<()> {
        let written = match self.stream {
            Some(mut stream) => stream.write_all(text.as_bytes()),
            None => fs::write(&self.path, text),
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_run_that_does_not_start_keeps_the_previous_report() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old.xml"), folder.path().join("new.xml"));
        fs::write(&old, "a report of before").unwrap();
        let link = folder.path().join("link.xml");
        std::os::unix::fs::symlink(&new, &link).unwrap();
        for path in [&old, &new, &link] {
            drop(ReportFile::open(path).unwrap());
        }
        assert_eq!(fs::read_to_string(&old).unwrap(), "a report of before");
        assert!(!new.exists());
        for path in [&old, &new] {
            ReportFile::open(path).unwrap().write("now").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "now");
        }
        assert!(ReportFile::open(folder.path()).is_err(), "a folder is no file");
    }

    /// `/dev/stdout` may be a pipe or a terminal.
    #[test]
    fn a_report_goes_to_a_pipe_too() {
        let (mut reader, writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", writer.as_raw_fd());
        ReportFile::open(Path::new(&path)).unwrap().write("now").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "now");
    }
}
