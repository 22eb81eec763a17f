//! `capcmi-driver-libvirt`: the driver as a plugin.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use capcmi_driver_libvirt::{Config, LibvirtDriver};
use clap::{Parser, ValueEnum};
use cmi_grpc::cli::ServerArgs;
use tracing_subscriber::EnvFilter;

/// The exit code of wrong flags, environment or files: nothing was started.
const MISCONFIGURED: u8 = 2;
/// How long the process waits on exit for jobs that outlast their calls.
const JOBS_END_WITHIN: Duration = Duration::from_secs(1);

/// A driver of virtual machines on hosts with libvirt and QEMU, for the Common Machine Interface.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// File with the configuration of the driver: hosts, pools, sizes and images.
    #[arg(long, env = "CAPCMI_DRIVER_CONFIG", value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Form of the logs.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    logging_format: LogFormat,
    /// Filter of the logs, `info,capcmi_driver_libvirt=debug`.
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

/// Why the program failed.
enum RunError {
    /// Flags, environment or files have to change.
    Misconfigured(anyhow::Error),
    /// The configuration is valid, but starting or serving failed.
    Failed(anyhow::Error),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (code, error) = match start(cli) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(RunError::Misconfigured(error)) => (ExitCode::from(MISCONFIGURED), error),
        Err(RunError::Failed(error)) => (ExitCode::FAILURE, error),
    };
    // The exit code remains the same if stderr is closed.
    let _gone = writeln!(std::io::stderr(), "capcmi-driver-libvirt: {error:#}");
    code
}

fn start(cli: Cli) -> Result<(), RunError> {
    log(&cli).map_err(RunError::Misconfigured)?;
    let config = Config::read(&cli.config).map_err(RunError::Misconfigured)?;
    let runtime = tokio::runtime::Runtime::new()
        .context("cannot start the async runtime")
        .map_err(RunError::Failed)?;
    let served = runtime.block_on(serve(cli.server, config));
    // A libvirt call may hang, and can't be cancelled.
    runtime.shutdown_timeout(JOBS_END_WITHIN);
    served
}

fn log(cli: &Cli) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&cli.log_level)
        .with_context(|| format!("`{}` is not a log filter", cli.log_level))?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // If stderr is closed, log lines are lost: reporting that would panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match cli.logging_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    // Panic messages are not logged, since they may contain secrets from the request. Jobs panic on threads
    // of their own, so only a hook can hide the message.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current();
        tracing::error!(place, thread = thread.name(), "panicked");
    }));
    Ok(())
}

async fn serve(server: ServerArgs, config: Config) -> Result<(), RunError> {
    let driver = Arc::new(LibvirtDriver::new(config));
    let ended = server.serve(driver, env!("CARGO_PKG_VERSION")).await;
    ended.map_err(|error| {
        if error.is_misconfigured() {
            RunError::Misconfigured(error.into())
        } else {
            RunError::Failed(error.into())
        }
    })
}
