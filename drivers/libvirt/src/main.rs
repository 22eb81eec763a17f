//! `capcmi-driver-libvirt`: the driver as a plugin.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use capcmi_driver_libvirt::{Config, LibvirtDriver};
use clap::{Parser, ValueEnum};
use cmi_grpc::endpoint::Endpoint;
use cmi_grpc::server::{self, CertificateFiles, Listener, ServerTls};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The exit code of wrong flags, environment or files: nothing was started.
const MISCONFIGURED: u8 = 2;
/// How long jobs on hosts may take to end after the calls that wanted them.
const JOBS_END_WITHIN: Duration = Duration::from_secs(1);
/// The exit code after a second signal.
const ABORTED: i32 = 130;

/// A driver of virtual machines on hosts with libvirt and QEMU, for the Common Machine Interface.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// Where to listen: tcp://127.0.0.1:8080, tls://0.0.0.0:8443 or unix:///run/capcmi/driver.sock.
    #[arg(long, env = "CMI_ENDPOINT", value_name = "ENDPOINT")]
    endpoint: Endpoint,
    /// File with the configuration of the driver: hosts, pools, sizes and images.
    #[arg(long, env = "CAPCMI_DRIVER_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Certificate to show, for a tls:// endpoint. Read again when it changes, as are the two others.
    #[arg(long, env = "CAPCMI_TLS_CERT_FILE", value_name = "FILE", requires_all = ["tls_key_file",
        "client_ca_file"])]
    tls_cert_file: Option<PathBuf>,
    /// Key of the certificate.
    #[arg(
        long,
        env = "CAPCMI_TLS_KEY_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    tls_key_file: Option<PathBuf>,
    /// Certificates of the authorities whose clients may call.
    #[arg(
        long,
        env = "CAPCMI_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    client_ca_file: Option<PathBuf>,
    /// How long running calls may take to end after SIGTERM.
    #[arg(
        long,
        env = "CAPCMI_GRACEFUL_SHUTDOWN_TIMEOUT",
        default_value = "20s",
        value_name = "TIME",
        value_parser = duration
    )]
    graceful_shutdown_timeout: Duration,
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
    /// A line for a person.
    Text,
    /// An object for a machine.
    Json,
}

/// Why the program did not do what it was asked.
enum RunError {
    /// Flags, environment or files have to change.
    Misconfigured(anyhow::Error),
    /// It was tried.
    Failed(anyhow::Error),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (code, error) = match start(cli) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(RunError::Misconfigured(error)) => (ExitCode::from(MISCONFIGURED), error),
        Err(RunError::Failed(error)) => (ExitCode::FAILURE, error),
    };
    eprintln!("capcmi-driver-libvirt: {error:#}");
    code
}

fn start(cli: Cli) -> Result<(), RunError> {
    log(&cli).map_err(RunError::Misconfigured)?;
    let config = Config::read(&cli.config).map_err(RunError::Misconfigured)?;
    let runtime = tokio::runtime::Runtime::new()
        .context("starting the runtime failed")
        .map_err(RunError::Failed)?;
    let served = runtime.block_on(serve(cli, config));
    // A call of libvirt may hang, and can't be ended.
    runtime.shutdown_timeout(JOBS_END_WITHIN);
    served
}

fn log(cli: &Cli) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&cli.log_level)
        .with_context(|| format!("`{}` is no log filter", cli.log_level))?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    match cli.logging_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    // What a panic in a call says may hold what the call was given.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current();
        tracing::error!(place, thread = thread.name(), "panicked");
    }));
    Ok(())
}

async fn serve(cli: Cli, config: Config) -> Result<(), RunError> {
    let stop = asked_to_stop().map_err(RunError::Failed)?;
    let tls = server_tls(cli.tls_cert_file, cli.tls_key_file, cli.client_ca_file)
        .map_err(RunError::Misconfigured)?;
    let listener = Listener::bind(&cli.endpoint, tls)
        .await
        .map_err(|error| RunError::Misconfigured(error.into()))?;
    let endpoint = listener
        .endpoint()
        .context("finding out where the plugin listens failed")
        .map_err(RunError::Failed)?;
    if let Endpoint::Tcp(authority) = &endpoint
        && !authority.is_loopback()
    {
        tracing::warn!(%endpoint, "bootstrap data go over the network in plain text: use tls://");
    }
    tracing::info!(%endpoint, version = env!("CARGO_PKG_VERSION"), "serving");
    let driver = Arc::new(LibvirtDriver::new(config));
    server::serve(driver, listener, stop, cli.graceful_shutdown_timeout)
        .await
        .map_err(|error| RunError::Failed(error.into()))
}

/// What the files of TLS come to. Some of them alone would be taken for none, and the plugin would serve
/// every client.
fn server_tls(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> anyhow::Result<Option<ServerTls>> {
    match (certificate, key, client_ca) {
        (Some(certificate), Some(key), Some(client_ca)) => Ok(Some(ServerTls::new(CertificateFiles {
            certificate,
            key,
            client_authorities: Some(client_ca),
        }))),
        (None, None, None) => Ok(None),
        (certificate, key, client_ca) => {
            let files = [
                ("--tls-cert-file", certificate),
                ("--tls-key-file", key),
                ("--client-ca-file", client_ca),
            ];
            let missing: Vec<_> = files
                .iter()
                .filter(|(_, file)| file.is_none())
                .map(|(flag, _)| *flag)
                .collect();
            anyhow::bail!("TLS needs {} as well", missing.join(" and "))
        }
    }
}

/// A time as people write it: `15s`, `1m30s`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text
        .parse()
        .map_err(|_| format!("`{text}` is no time, such as `15s`"))?;
    Duration::try_from(signed).map_err(|_| format!("`{text}` is less than nothing"))
}

/// A future that resolves at the first SIGTERM or SIGINT. A second one ends the process there and then.
fn asked_to_stop() -> anyhow::Result<impl Future<Output = ()>> {
    let what = "listening for signals failed";
    let mut terminate = signal(SignalKind::terminate()).context(what)?;
    let mut interrupt = signal(SignalKind::interrupt()).context(what)?;
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        tokio::spawn(async move {
            tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
            tracing::warn!("asked to stop a second time: aborting");
            std::process::exit(ABORTED);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_the_files_of_tls_are_refused_and_the_rest_is_named() {
        let file = |is_given: bool| is_given.then(|| PathBuf::from("file"));
        let tls = |cert, key, ca| server_tls(file(cert), file(key), file(ca));
        assert!(tls(true, true, true).unwrap().is_some());
        assert!(tls(false, false, false).unwrap().is_none());
        for (cert, key, ca, missing) in [
            (true, false, false, "--tls-key-file and --client-ca-file"),
            (false, true, false, "--tls-cert-file and --client-ca-file"),
            (false, false, true, "--tls-cert-file and --tls-key-file"),
            (true, true, false, "--client-ca-file"),
        ] {
            let error = tls(cert, key, ca).unwrap_err().to_string();
            assert_eq!(error, format!("TLS needs {missing} as well"));
        }
    }
}
