//! Structured logs, on standard error (OPS-08).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error;
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// The crates of this workspace that log, at a level.
macro_rules! ours {
    ($level:literal) => {
        concat!(
            "capcmi=",
            $level,
            ",cmi_driver=",
            $level,
            ",cmi_grpc=",
            $level,
            ",cmi_simulated=",
            $level,
            ",kube_fleet=",
            $level
        )
    };
}

/// What is logged and how. The flags are those of Kubernetes components.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// Format of the logs.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    logging_format: LogFormat,
    /// Verbosity. 0: info, or only warnings for a one-shot command; 1-3: info; 4-5: also every driver call; 6
    /// and above: everything.
    #[arg(
        long = "v",
        short = 'v',
        global = true,
        value_name = "LEVEL",
        default_value_t = 0
    )]
    verbosity: u8,
    /// Log filter, such as `info,capcmi::machine=debug`; overrides --v.
    #[arg(long, global = true, env = "RUST_LOG", value_name = "FILTER")]
    log_level: Option<String>,
}

impl LogArgs {
    /// Returns the arguments for a command that prints its result. By default, only warnings are logged
    /// beside it.
    #[must_use]
    pub fn of_command(&self) -> Self {
        let is_default = self.verbosity == 0 && self.log_level.as_deref().is_none_or(str::is_empty);
        Self {
            log_level: if is_default {
                Some("warn,kube_client::client=off".to_owned())
            } else {
                self.log_level.clone()
            },
            ..self.clone()
        }
    }
}

/// Format of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// One line of text.
    Text,
    /// One JSON object.
    Json,
}

/// Why logs can't be written.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter can't be parsed.
    #[error("invalid log filter `{filter}`")]
    Filter {
        /// The filter as given.
        filter: String,
        /// The error of the parser.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging was started before.
    #[error("logging is already initialized")]
    Started(#[source] Box<dyn Error + Send + Sync>),
}

/// Starts logging, of panics as well.
///
/// # Errors
/// [`TelemetryError`] when the filter is invalid, or logging was started before.
pub fn init(args: &LogArgs) -> Result<(), TelemetryError> {
    let filter = filter(args)?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A line without a reader is lost. Reporting the loss would end the process.
        .log_internal_errors(false);
    match args.logging_format {
        LogFormat::Text => logs.try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    }
    .map_err(TelemetryError::Started)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Logs a panic like any other line, so that a JSON line stays whole. For a panic in a driver call, only the
/// place is logged. The message may contain the secrets of the call (OPS-11).
fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = if cmi_driver::is_in_call() {
        "withheld: may contain secrets of a driver call"
    } else {
        panic.payload_as_str().unwrap_or("no message")
    };
    let thread = std::thread::current();
    let backtrace = Backtrace::capture();
    tracing::error!(
        place = panic.location().map(tracing::field::display),
        thread = thread.name(),
        why = message,
        backtrace =
            (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(&backtrace)),
        "panicked"
    );
}

fn filter(args: &LogArgs) -> Result<EnvFilter, TelemetryError> {
    let filter = match (&args.log_level, args.verbosity) {
        (Some(filter), _) if !filter.is_empty() => filter.as_str(),
        // Never the client of the API server. It logs the whole of an answer that it can't parse, even a list
        // of a whole fleet.
        (Some(_) | None, 0..=3) => "info,kube_client::client=off",
        (Some(_) | None, 4..=5) => concat!("info,kube_client::client=off,", ours!("debug")),
        // Other crates log no more than this: at their lowest level, some log the traffic (OPS-11).
        (Some(_) | None, 6..) => concat!("debug,kube_client::client=off,", ours!("trace")),
    };
    EnvFilter::try_new(filter).map_err(|source| TelemetryError::Filter {
        filter: filter.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter_of(verbosity: u8, log_level: Option<&str>) -> Result<String, TelemetryError> {
        let args = LogArgs {
            logging_format: LogFormat::Text,
            verbosity,
            log_level: log_level.map(str::to_owned),
        };
        filter(&args).map(|filter| filter.to_string())
    }

    #[test]
    fn a_filter_goes_before_the_verbosity() {
        assert_eq!(filter_of(0, None).unwrap(), "kube_client::client=off,info");
        assert_eq!(
            filter_of(4, None).unwrap(),
            "kube_client::client=off,cmi_simulated=debug,kube_fleet=debug,cmi_driver=debug,cmi_grpc=debug,\
                capcmi=debug,info"
        );
        assert_eq!(filter_of(9, Some("warn")).unwrap(), "warn");
    }

    #[test]
    fn a_command_logs_warnings_alone_unless_it_is_asked_for_more() {
        let filter_of_command = |verbosity, log_level: Option<&str>| {
            let args = LogArgs {
                logging_format: LogFormat::Text,
                verbosity,
                log_level: log_level.map(str::to_owned),
            };
            filter(&args.of_command()).unwrap().to_string()
        };
        assert_eq!(filter_of_command(0, None), "kube_client::client=off,warn");
        assert_eq!(filter_of_command(0, Some("")), "kube_client::client=off,warn");
        assert_eq!(filter_of_command(1, None), "kube_client::client=off,info");
        assert_eq!(filter_of_command(0, Some("debug")), "debug");
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let error = filter_of(0, Some("capcmi=loud")).unwrap_err();
        assert_eq!(error.to_string(), "invalid log filter `capcmi=loud`");
    }
}
