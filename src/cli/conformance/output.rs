//! The files that a run writes.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempPath;

/// A file for a report. It is opened before the run, so that one that can't be written costs none, and keeps
/// the report of an earlier run until there is a new one.
pub(super) struct ReportFile {
    path: PathBuf,
    file: File,
    /// Removes the file if this run has made it and writes no report.
    made: Option<TempPath>,
}

impl ReportFile {
    /// Opens a file, and leaves what is in it.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let is_new = !path.try_exists()?;
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let made = is_new.then(|| TempPath::try_from_path(path)).transpose()?;
            io::Result::Ok(Self {
                path: path.to_owned(),
                file,
                made,
            })
        };
        open().with_context(|| format!("opening {} for the report", path.display()))
    }

    /// Writes the report in the place of what was there.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn write(mut self, text: &str) -> Result<()> {
        let mut write = || {
            // A pipe or a terminal has nothing to be emptied.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(text.as_bytes())?;
            if let Some(made) = self.made.take() {
                made.keep()?;
            }
            io::Result::Ok(())
        };
        write().with_context(|| format!("writing {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_run_that_never_begins_leaves_the_report_of_the_one_before_and_no_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old.xml"), folder.path().join("new.xml"));
        fs::write(&old, "a report of before").unwrap();
        for path in [&old, &new] {
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

    /// `/dev/stdout` may be one.
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
