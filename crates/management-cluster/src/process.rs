//! A program that cannot outlive the process that started it.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::run_folder::RunFolder;

const SUPERVISE: &str = include_str!("supervise.sh");

/// How often a program is checked for readiness and for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running program whose output goes to a log file.
///
/// The program is killed when this value is dropped, and when the process that holds the value ends in any
/// way, `SIGKILL` included. A small shell between the two watches a pipe that closes with the holder. The
/// program has its own process group, so Ctrl-C in a terminal reaches only the holder.
#[derive(Debug)]
pub struct Process {
    name: String,
    supervisor: Child,
    /// Closing it kills the program.
    signals: Option<ChildStdin>,
    log: PathBuf,
    /// Length of the log when the program was started.
    log_start: u64,
    entry: PathBuf,
}

impl Process {
    /// Starts `command` with both output streams appended to `<name>.log` in `folder`. Only the program of
    /// `command`, its arguments, its changes to the environment and its working directory are used.
    ///
    /// # Errors
    /// When the log cannot be opened or the supervising shell cannot be started. A missing program is no
    /// error here: it ends immediately, with the reason in its log.
    pub fn start(folder: &RunFolder, name: &str, command: &Command) -> Result<Self> {
        let log = folder.path().join(format!("{name}.log"));
        let output = OpenOptions::new().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("opening {}", log.display()))?;
        let log_start = output.metadata()?.len();
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(SUPERVISE)
            .arg("supervise")
            .arg(command.get_program())
            .args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            shell.current_dir(directory);
        }
        let mut supervisor = shell
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let entry = folder.supervisors().join(supervisor.id().to_string());
        let signals = supervisor.stdin.take();
        let process = Self {
            name: name.to_owned(),
            supervisor,
            signals,
            log,
            log_start,
            entry,
        };
        fs::write(&process.entry, name).with_context(|| format!("recording the supervisor of {name}"))?;
        Ok(process)
    }

    /// The file that holds the program's output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The status of the program if it has ended: its exit code, or 128 and the number of
    /// the signal that ended it.
    ///
    /// # Errors
    /// When the operating system does not report the status.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.supervisor
            .try_wait()
            .with_context(|| format!("asking whether {} runs", self.name))
    }

    /// Sends a signal, named as `kill -s` has it (`TERM`, `STOP`, …).
    ///
    /// # Errors
    /// When the program has ended.
    pub fn signal(&mut self, signal: &str) -> Result<()> {
        let signals = self
            .signals
            .as_mut()
            .with_context(|| format!("{} was killed", self.name))?;
        writeln!(signals, "{signal}").with_context(|| format!("sending SIG{signal} to {}", self.name))
    }

    /// Kills the program with `SIGKILL` and waits for its end.
    pub fn kill(&mut self) {
        self.signals = None;
        // An error means that the supervisor has been waited for already.
        let _ = self.supervisor.wait();
        let _ = fs::remove_file(&self.entry);
    }

    /// Sends `SIGTERM`, and `SIGKILL` if the program still runs after `grace`. Returns the status of the
    /// program if it ended within `grace`.
    ///
    /// # Errors
    /// When the program had ended before.
    pub async fn terminate(&mut self, grace: Duration) -> Result<Option<ExitStatus>> {
        self.signal("TERM")?;
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if let Some(status) = self.status()? {
                self.kill();
                return Ok(Some(status));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.kill();
        Ok(None)
    }

    /// Waits until `ready` holds.
    ///
    /// # Errors
    /// When the program ends before, or when `deadline` passes; the error has the end of the log.
    pub async fn wait_until(
        &mut self,
        deadline: Duration,
        mut ready: impl AsyncFnMut() -> bool,
    ) -> Result<()> {
        let expiry = Instant::now() + deadline;
        loop {
            if let Some(status) = self.status()? {
                bail!("{} ended with {status}:\n{}", self.name, self.log_end());
            }
            if ready().await {
                return Ok(());
            }
            if Instant::now() >= expiry {
                bail!(
                    "{} is not ready after {deadline:?}:\n{}",
                    self.name,
                    self.log_end()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The last part of the program's output since its start.
    fn log_end(&self) -> String {
        const PART: u64 = 8192;
        let read = || -> std::io::Result<Vec<u8>> {
            let mut log = File::open(&self.log)?;
            let start = log.metadata()?.len().saturating_sub(PART).max(self.log_start);
            log.seek(SeekFrom::Start(start))?;
            let mut end = Vec::new();
            log.read_to_end(&mut end)?;
            Ok(end)
        };
        match read() {
            Ok(end) => String::from_utf8_lossy(&end).into_owned(),
            Err(error) => format!("({}: {error})", self.log.display()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
