//! The folder of one run: data, credentials and logs.

use std::{
    collections::BTreeSet,
    fs,
    io::{Write, stderr},
    os::unix::process::CommandExt,
    panic,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, Once, PoisonError},
};

use anyhow::{Context, Result};

const TIDY: &str = include_str!("tidy.sh");
const KEEP_MARK: &str = "keep";

/// The folders of this process that are in use.
static IN_USE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A folder that is removed when this value is dropped and also when the process ends in any way, after the
/// programs started in it have ended.
///
/// Its logs are kept, and its path is printed, if [`RunFolder::keep`] was called. The same happens if any
/// thread of the process panicked while the folder was in use, so a failed test leaves its logs.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    tidier: Child,
    /// Closing it makes the tidier act.
    open: Option<ChildStdin>,
}

impl RunFolder {
    /// Creates a folder among the temporary files.
    ///
    /// # Errors
    /// When the folder or the shell that is to remove it cannot be had.
    pub fn create() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("capcmi-")
            .tempdir()
            .context("creating a folder")?;
        fs::create_dir(folder.path().join("supervisors"))?;
        let mut tidier = Command::new("sh")
            .arg("-c")
            .arg(TIDY)
            .arg("tidy")
            .arg(folder.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the shell that tidies up")?;
        let open = tidier.stdin.take();
        let folder = Self {
            path: folder.keep(),
            tidier,
            open,
        };
        keep_on_panic();
        IN_USE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(folder.path.clone());
        Ok(folder)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the logs and prints their folder to standard error.
    pub fn keep(&self) {
        keep(&self.path);
    }

    /// Holds an entry for each running [`crate::Process`], named by the number of its supervisor.
    pub(crate) fn supervisors(&self) -> PathBuf {
        self.path.join("supervisors")
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        IN_USE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.path);
        self.open = None;
        let _ = self.tidier.wait();
    }
}

/// Keeps the logs of every run of this process; for failures that are not panics.
pub(crate) fn keep_all() {
    // A thread that panics may hold the lock: without it, the logs are not kept, which
    // is better than a deadlock.
    if let Ok(folders) = IN_USE.try_lock() {
        folders.iter().for_each(|folder| keep(folder));
    }
}

fn keep(folder: &Path) {
    let created = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(folder.join(KEEP_MARK));
    if created.is_ok() {
        let _ = writeln!(
            stderr(),
            "management-cluster: logs are kept in {}",
            folder.display()
        );
    }
}

/// Panics are seen in the hook because a static is never dropped, and because a test harness catches the
/// panic of a test.
fn keep_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            keep_all();
            previous(info);
        }));
    });
}
