//! The program of a driver: logs, the async runtime and the exit code.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _, ValueEnum};
use cmi_driver::{Driver, ErrorChain};
use tracing_subscriber::EnvFilter;

use super::{ServerArgs, StartError};

/// The exit code of wrong flags, environment or files: nothing was started (CMI-188).
const MISCONFIGURED: u8 = 2;
/// How long the process waits on exit for jobs that outlast their calls, since a blocking job can't be
/// cancelled.
const JOBS_END_WITHIN: Duration = Duration::from_secs(1);

/// The flags of a driver's program: where it serves, and its logs.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Form of the logs.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    logging_format: LogFormat,
    /// Filter of the logs, such as `info,cmi_grpc=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER")]
    log_level: String,
}

/// Form of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line for an operator.
    Text,
    /// An object for a machine.
    Json,
}

/// Text that is not a filter of the logs.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is not a log filter")]
struct InvalidFilter {
    text: String,
    source: tracing_subscriber::filter::ParseError,
}

type BoxedError = Box<dyn Error + Send + Sync>;

/// Why the program failed.
enum RunError {
    /// Flags, environment or files have to change.
    Misconfigured(BoxedError),
    /// The configuration is valid, but starting or serving failed.
    Failed(BoxedError),
}

impl From<StartError> for RunError {
    fn from(error: StartError) -> Self {
        if error.is_misconfigured() {
            Self::Misconfigured(error.into())
        } else {
            Self::Failed(error.into())
        }
    }
}

/// Runs the program of a driver that adds no flags. To add flags, flatten [`ProgramArgs`] into a parser of
/// clap, and call [`ProgramArgs::run`].
pub fn main<D: Driver, E: Into<BoxedError>>(
    name: &'static str,
    version: &'static str,
    open: impl FnOnce() -> Result<Arc<D>, E>,
) -> ExitCode {
    let command = Command::new(name).version(version).args_override_self(true);
    let matches = ProgramArgs::augment_args(command).get_matches();
    match ProgramArgs::from_arg_matches(&matches) {
        Ok(program) => program.run(name, version, open),
        Err(error) => error.exit(),
    }
}

impl ProgramArgs {
    /// Runs the program: opens the driver, and serves it until SIGTERM or SIGINT. `open` runs inside the
    /// runtime; its error counts as a wrong configuration. Prints an error to stderr with the program's name.
    ///
    /// Logs go to stderr. No panic message is logged, since it may contain secrets from a request.
    pub fn run<D: Driver, E: Into<BoxedError>>(
        self,
        name: &str,
        version: &str,
        open: impl FnOnce() -> Result<Arc<D>, E>,
    ) -> ExitCode {
        let (code, error) = match self.start(version, open) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(RunError::Misconfigured(error)) => (ExitCode::from(MISCONFIGURED), error),
            Err(RunError::Failed(error)) => (ExitCode::FAILURE, error),
        };
        // The exit code remains the same if stderr is closed.
        let _gone = writeln!(std::io::stderr(), "{name}: {}", ErrorChain(&*error));
        code
    }

    fn start<D: Driver, E: Into<BoxedError>>(
        self,
        version: &str,
        open: impl FnOnce() -> Result<Arc<D>, E>,
    ) -> Result<(), RunError> {
        log(self.logging_format, &self.log_level).map_err(|error| RunError::Misconfigured(error.into()))?;
        let runtime = tokio::runtime::Runtime::new().map_err(|error| RunError::Failed(error.into()))?;
        let served = runtime.block_on(async {
            let driver = open().map_err(|error| RunError::Misconfigured(error.into()))?;
            Ok(self.server.serve(driver, version).await?)
        });
        runtime.shutdown_timeout(JOBS_END_WITHIN);
        served
    }
}

fn log(format: LogFormat, filter: &str) -> Result<(), InvalidFilter> {
    let filter = EnvFilter::try_new(filter).map_err(|source| InvalidFilter {
        text: filter.to_owned(),
        source,
    })?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // If stderr is closed, log lines are lost: reporting that would panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    // Jobs panic on threads of their own, so only a hook can hide the message.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current();
        tracing::error!(place, thread = thread.name(), "panicked");
    }));
    Ok(())
}
