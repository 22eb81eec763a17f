//! The command line of `capcmi-manager`, and the code that `capcmi` shares with it: the drivers file, errors,
//! output.
//!
//! Only this module names concrete drivers. Exit codes: 0 done, 1 failed, 2 used or configured wrongly
//! (nothing was started).

mod address;
pub mod driver_kind;
pub mod drivers;
pub mod drivers_file;
mod run;
pub mod terminal;

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};

pub use self::run::{RunArgs, api_server};
use crate::telemetry::logs::{self, LogArgs};
use cmi_driver::ErrorChain;

/// The program's name.
pub const PROGRAM: &str = "capcmi-manager";

/// Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
///
/// Runs the controllers until SIGTERM or SIGINT.
#[derive(Debug, Parser)]
// As with Go's flags, the last one counts: an argument that is appended in a Deployment wins.
#[command(name = PROGRAM, version, args_override_self = true)]
pub struct Manager {
    /// Flags of the manager.
    #[command(flatten)]
    pub run: RunArgs,
    /// Flags of the log.
    #[command(flatten, next_help_heading = "Logs")]
    pub log: LogArgs,
}

/// Why a command failed.
#[derive(Debug)]
pub enum CommandError {
    /// The user has to change flags, environment or files.
    Misconfigured(anyhow::Error),
    /// The command was tried and failed.
    Failed(anyhow::Error),
}

/// `?` turns an error into a failure of the command; [`ResultExt::misconfigured`] before it, into an error
/// that the user has to fix first.
impl<E: Into<anyhow::Error>> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Turns errors into [`CommandError::Misconfigured`].
pub trait ResultExt<T> {
    /// Maps an error to [`CommandError::Misconfigured`].
    fn misconfigured(self) -> Result<T, CommandError>;
}

impl<T, E: Into<anyhow::Error>> ResultExt<T> for Result<T, E> {
    fn misconfigured(self) -> Result<T, CommandError> {
        self.map_err(|error| CommandError::Misconfigured(error.into()))
    }
}

impl CommandError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Misconfigured(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::from(1),
        }
    }

    /// Returns the error and its causes, usually in one line.
    pub fn message(&self) -> String {
        match self {
            Self::Misconfigured(error) | Self::Failed(error) => ErrorChain(error.as_ref()).to_string(),
        }
    }
}

/// Returns the command line of the manager, as its help shows it.
pub fn command() -> clap::Command {
    Manager::command()
}

/// Returns the exit code of a command, and prints its error under the program's name.
pub fn finish(program: &str, ended: Result<(), CommandError>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::print_error(program, &failure.message());
            failure.exit_code()
        }
    }
}

/// The variable with the number of threads that run tasks, as in tokio.
const WORKER_THREADS: &str = "TOKIO_WORKER_THREADS";

/// The number of threads that run tasks without [`WORKER_THREADS`]. At the highest pace that an API server
/// can follow, a fleet takes a sixth of a core. With two threads it takes 8 % more CPU: they wake each other
/// and move tasks.
const DEFAULT_WORKER_THREADS: usize = 1;

fn worker_threads(wanted: Option<&OsStr>) -> Result<usize, CommandError> {
    let Some(wanted) = wanted else {
        return Ok(DEFAULT_WORKER_THREADS);
    };
    let threads: Option<NonZeroUsize> = wanted.to_str().and_then(|text| text.parse().ok());
    let threads = threads.map(usize::from).with_context(|| {
        let wanted = wanted.display();
        format!(
            "environment variable {WORKER_THREADS} is `{wanted}`: set it to a number of threads from 1, or \
                unset it"
        )
    });
    threads.misconfigured()
}

/// Runs a command that logs to its end. Tasks that it leaves running are not awaited.
pub fn block_on(
    log: &LogArgs,
    future: impl Future<Output = Result<(), CommandError>>,
) -> Result<(), CommandError> {
    logs::init(log).misconfigured()?;
    let threads = worker_threads(std::env::var_os(WORKER_THREADS).as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(future);
    runtime.shutdown_background();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_number_of_threads_is_named_with_its_variable() {
        let threads = |wanted: &str| worker_threads(Some(OsStr::new(wanted)));
        assert_eq!(threads("2").ok(), Some(2));
        assert_eq!(worker_threads(None).ok(), Some(1));
        for wrong in ["0", "", "-1", "many"] {
            let message = threads(wrong).unwrap_err().message();
            assert!(
                message.contains(&format!("TOKIO_WORKER_THREADS is `{wrong}`")),
                "{message}"
            );
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Manager::command().debug_assert();
    }
}
