//! Runs the programs that the driver needs: the runtime, mounts, interfaces. Each run is bounded in time.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cmi_driver::{Code, Result, Status};

use crate::errors;

/// How long a program may run, in seconds.
const TIMEOUT: &str = "60";
/// The exit code of `timeout` for a program that it has killed.
const KILLED: i32 = 128 + 9;
/// Folders that `PATH` may lack: Debian puts most of the programs there.
const SYSTEM: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// Runs programs while the state folder is locked.
#[derive(Debug)]
pub struct Programs {
    /// The lock, which is also the standard input of each program: a program that outlives a killed driver
    /// keeps the next driver waiting until it has ended.
    lock: File,
}

impl Programs {
    /// Programs that hold this lock.
    pub fn new(lock: File) -> Self {
        Self { lock }
    }

    /// Runs a program and returns its output.
    ///
    /// # Errors
    /// FAILED_PRECONDITION when the program is missing, UNAVAILABLE when it hangs, otherwise the code of its
    /// message.
    pub fn run<S: AsRef<OsStr>>(&self, program: &str, arguments: &[S]) -> Result<String> {
        let failed = |error| errors::status(&format!("starting `{program}`"), error);
        let output = Command::new("timeout")
            .args(["--signal=KILL", TIMEOUT])
            .arg(find(program)?)
            .args(arguments)
            .env("LC_ALL", "C")
            .env("PATH", search_path())
            .stdin(Stdio::from(self.lock.try_clone().map_err(failed)?))
            .output()
            .map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        if output.status.code() == Some(KILLED) {
            let what = format!("`{program}` did not end within {TIMEOUT} s");
            return Err(Status::new(Code::Unavailable, what));
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let what = format!("`{program}` failed: {}", said.trim());
        Err(Status::new(errors::of_program(&said), what))
    }
}

/// Returns the path of a program.
///
/// # Errors
/// FAILED_PRECONDITION when it is not installed.
pub fn find(program: &str) -> Result<PathBuf> {
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    let path = search_path();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            let what = format!("`{program}` is not installed on this computer");
            Status::new(Code::FailedPrecondition, what)
        })
}

fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:{SYSTEM}")
}

/// Returns the command line of a process; empty when it has ended.
pub fn command_line(pid: u32) -> Vec<String> {
    let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0);
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    words.filter(|word| !word.is_empty()).collect()
}
