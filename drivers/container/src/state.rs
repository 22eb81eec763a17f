//! The state folder: one process at a time works in it.
//!
//! `machines` holds a folder for each machine, which appears and disappears as a whole. `scratch` holds the
//! folders that are being made or removed: nothing in it is a machine.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cmi_driver::{Code, Result, Status};
use uuid::Uuid;

use crate::errors::status;
use crate::record::Record;

/// The content of the file `format`, which shows that this is the state folder: without it, a file system
/// that is not mounted would look like a folder without machines.
const FORMAT: &str = "capcmi-driver-container 1\n";

/// The paths in a state folder.
#[derive(Clone, Debug)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    /// The folder at this path.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The folders of machines.
    pub fn machines(&self) -> PathBuf {
        self.0.join("machines")
    }

    /// The folder of a machine.
    pub fn machine(&self, name: &str) -> PathBuf {
        self.machines().join(name)
    }

    /// The folder of a machine that is being made or removed.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.0.join("scratch").join(name)
    }

    /// The state of the runtime.
    pub fn runtime(&self) -> PathBuf {
        self.0.join("runtime")
    }

    /// The beginning of the names of all control groups. Another state folder may have a machine with the
    /// same identity.
    pub fn control_groups(&self) -> String {
        let folder = Uuid::new_v5(&Uuid::NAMESPACE_URL, self.0.as_os_str().as_encoded_bytes());
        format!("capcmi-{:08x}-", folder.as_fields().0)
    }

    /// A file of the DHCP server.
    pub fn dnsmasq(&self, extension: &str) -> PathBuf {
        self.0.join(format!("dnsmasq.{extension}"))
    }

    fn format(&self) -> PathBuf {
        self.0.join("format")
    }

    /// Locks the folder, and makes it if necessary. `None` while another process has it.
    pub fn lock(&self) -> Result<Option<File>> {
        let failed = |error| status(&format!("opening the state folder {}", self.0.display()), error);
        fs::create_dir_all(&self.0).map_err(failed)?;
        // Users of the computer must not reach setuid programs that a machine's root has made.
        fs::set_permissions(&self.0, Permissions::from_mode(0o700)).map_err(failed)?;
        let mut open = File::options();
        let open = open.read(true).write(true).create(true).truncate(false);
        let lock = open.open(self.0.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if !self.machines().exists() && !self.format().exists() {
            fs::create_dir(self.machines()).map_err(failed)?;
            fs::write(self.format(), FORMAT).map_err(failed)?;
        }
        self.check()?;
        fs::create_dir_all(self.0.join("scratch")).map_err(failed)?;
        self.remove_remains()?;
        Ok(Some(lock))
    }

    /// Checks that the folder is there.
    ///
    /// # Errors
    /// UNAVAILABLE when it is away, and INTERNAL when another version has written it.
    pub fn check(&self) -> Result<()> {
        let file = self.format();
        let format = fs::read_to_string(&file)
            .map_err(|error| status(&format!("reading the state folder's {}", file.display()), error))?;
        if format == FORMAT {
            return Ok(());
        }
        let what = format!(
            "{} says `{}` instead of `{}`",
            file.display(),
            format.trim(),
            FORMAT.trim()
        );
        Err(Status::new(Code::Internal, what))
    }

    /// Returns the folders of all machines with their records.
    ///
    /// # Errors
    /// When a record can't be read: the list is never partial.
    pub fn records(&self) -> Result<Vec<Record>> {
        let folder = self.machines();
        let failed = |error| status(&format!("reading {}", folder.display()), error);
        let mut records = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            // Another call may be removing the folder.
            records.extend(Record::read(&entry.map_err(failed)?.path())?);
        }
        Ok(records)
    }

    /// Removes the folders that a killed process was making or removing.
    fn remove_remains(&self) -> Result<()> {
        let folder = self.0.join("scratch");
        let failed = |error| status(&format!("reading {}", folder.display()), error);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            remove(&entry.map_err(failed)?.path())?;
        }
        Ok(())
    }
}

/// Removes a folder, if it exists.
pub fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(status(&format!("removing {}", folder.display()), error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn one_process_at_a_time_has_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(&folder.path().join("new"));
        let held = state.lock().unwrap().unwrap();
        let mode = fs::metadata(&state.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "a user of the computer may look in");
        assert!(state.lock().unwrap().is_none());
        drop(held);
        assert!(state.lock().unwrap().is_some());
    }

    /// DRV-30
    #[test]
    fn a_folder_that_is_away_has_no_empty_list() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        state.lock().unwrap().unwrap();
        assert_eq!(state.records().unwrap(), []);
        fs::rename(state.format(), folder.path().join("away")).unwrap();
        assert_eq!(state.check().unwrap_err().code(), Code::Unavailable);
        assert_eq!(state.lock().unwrap_err().code(), Code::Unavailable);
        fs::write(state.format(), "2").unwrap();
        assert_eq!(state.check().unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn a_killed_process_leaves_no_half_machine() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        state.lock().unwrap().unwrap();
        fs::create_dir_all(state.scratch("half/upper")).unwrap();
        fs::create_dir(state.machine("whole")).unwrap();
        record().write(&state.machine("whole")).unwrap();
        state.lock().unwrap().unwrap();
        assert!(!state.scratch("half").exists());
        assert_eq!(state.records().unwrap(), [record()]);
    }
}
