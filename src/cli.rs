//! The command line: the only place that knows every part, the concrete drivers among them.
//!
//! Exit codes: 0 done, 1 failed, 2 used or configured wrongly (nothing was started).

mod address;
pub mod conformance;
mod describe;
mod driver;
mod driver_kind;
mod drivers;
mod drivers_file;
mod migrate;
mod orphans;
mod plan;
mod plugin_args;
mod run;
mod table;
mod terminal;
mod yaml;

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::manifests::Manifests;
use crate::telemetry::{self, LogArgs};
use cmi_driver::ErrorChain;

/// Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver.
#[derive(Debug, Parser)]
// As with Go's flags, the last one counts: an argument that is appended in a Deployment wins.
#[command(
    name = "capcmi",
    version,
    about,
    propagate_version = true,
    args_override_self = true
)]
struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controllers until SIGTERM or SIGINT.
    Run(Box<run::RunArgs>),
    /// Work with one driver.
    #[command(subcommand)]
    Driver(driver::DriverCommand),
    /// Check the drivers file.
    #[command(subcommand)]
    Drivers(drivers::DriversCommand),
    /// Find VMs without an InfraMachine.
    #[command(subcommand)]
    Orphans(orphans::OrphansCommand),
    /// Print the state of a machine or a driver, and what to do next.
    #[command(subcommand)]
    Describe(describe::DescribeCommand),
    /// Forecast how a new InfraMachineTemplate changes the machines of a MachineDeployment.
    Plan(Box<plan::PlanArgs>),
    /// Migrate machines of machine-controller-manager to Cluster API, with their VMs.
    Migrate(Box<migrate::MigrateArgs>),
    Conformance(Box<conformance::ConformanceArgs>),
    /// Print the manifests of the provider, or write them to files.
    Manifests(Manifests),
    /// Print the version.
    Version,
}

/// Why a command failed.
#[derive(Debug)]
enum CommandError {
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

trait ResultExt<T> {
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

    /// Returns the error and its causes, in one line as a rule.
    fn message(&self) -> String {
        match self {
            Self::Misconfigured(error) | Self::Failed(error) => ErrorChain(error.as_ref()).to_string(),
        }
    }
}

/// Returns the command line, as its help shows it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line, runs the command, and returns the exit code; an error is printed.
pub fn main() -> ExitCode {
    let Cli { command, log } = Cli::parse();
    let ended = match command {
        Command::Run(args) => block_on(&log, run::run(*args)),
        Command::Driver(command) => block_on(&log, driver::execute(command)),
        Command::Drivers(command) => block_on(&log.of_command(), drivers::execute(command)),
        Command::Orphans(command) => block_on(&log.of_command(), orphans::execute(command)),
        Command::Describe(command) => block_on(&log.of_command(), describe::execute(command)),
        Command::Plan(args) => block_on(&log.of_command(), plan::execute(*args)),
        Command::Migrate(args) => block_on(&log.of_command(), migrate::execute(*args)),
        Command::Conformance(args) => block_on(&log, conformance::execute(*args)),
        Command::Manifests(command) => command.run(&mut std::io::stdout()).map_err(CommandError::from),
        Command::Version => {
            terminal::print_line(concat!("capcmi ", env!("CARGO_PKG_VERSION")));
            Ok(())
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::print_error(&failure.message());
            failure.exit_code()
        }
    }
}

/// The variable that says how many threads run tasks; tokio's own.
const WORKER_THREADS: &str = "TOKIO_WORKER_THREADS";

/// The most threads that run tasks, unless [`WORKER_THREADS`] says how many. At the highest pace that an API
/// server can follow, a fleet takes a sixth of a core: one thread for each core of a large node would hold
/// memory for nothing.
const MAX_WORKER_THREADS: usize = 2;

fn worker_threads(wanted: Option<&OsStr>) -> Result<usize, CommandError> {
    let Some(wanted) = wanted else {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        return Ok(cores.min(MAX_WORKER_THREADS));
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
fn block_on(
    log: &LogArgs,
    future: impl Future<Output = Result<(), CommandError>>,
) -> Result<(), CommandError> {
    telemetry::init(log).misconfigured()?;
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
    fn a_number_of_threads_is_taken_and_what_is_none_is_named_with_its_variable() {
        let threads = |wanted: &str| worker_threads(Some(OsStr::new(wanted)));
        assert_eq!(threads("1").ok(), Some(1));
        assert!((1..=2).contains(&worker_threads(None).unwrap_or_default()));
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
        Cli::command().debug_assert();
    }

    /// OPS-05, CMI-175, CMI-176: the prefixes are reserved by the specifications, which define one variable.
    #[test]
    fn no_environment_variable_of_our_own_has_a_reserved_prefix() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                let name = argument.get_env().map(|name| name.to_string_lossy().into_owned());
                assert!(
                    !name.as_deref().is_some_and(|name| {
                        let is_reserved = name.starts_with("MC_") || name.starts_with("CMI_");
                        is_reserved && name != "CMI_ENDPOINT"
                    }),
                    "{name:?}"
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
