//! `capcmi driver serve`: a built-in driver as a plugin.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use crate::cli::{CommandError, duration, signals, yaml};
use cmi_driver::Driver;
use cmi_grpc::endpoint::Endpoint;
use cmi_grpc::server::{self, CertificateFiles, Listener, ServerTls};
use cmi_simulated::{SimulatedConfig, SimulatedDriver};

#[derive(Debug, Args)]
pub(in crate::cli) struct ServeArgs {
    /// Driver to serve
    #[arg(value_enum)]
    kind: ServedKind,
    /// Where to listen: tcp://127.0.0.1:8080, tls://0.0.0.0:8443 or unix:///run/capcmi/driver.sock.
    // The one variable that the specification defines.
    #[arg(long, env = "CMI_ENDPOINT", value_name = "ENDPOINT")]
    endpoint: Option<Endpoint>,
    /// File with the configuration of the driver: what stands under its kind in the
    /// drivers' file. Default: none.
    #[arg(long, env = "CAPCMI_DRIVER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// How long running calls may take to end after SIGTERM.
    #[arg(
        long,
        env = "CAPCMI_GRACEFUL_SHUTDOWN_TIMEOUT",
        value_parser = duration::parse,
        default_value = "20s",
        value_name = "TIME"
    )]
    graceful_shutdown_timeout: Duration,
}

/// PEM files, for a `tls://` endpoint: all or none.
#[derive(Debug, Args)]
struct TlsArgs {
    /// Certificate to show, for a tls:// endpoint. Read again when it changes, as are the two others.
    #[arg(
        long = "tls-cert-file",
        env = "CAPCMI_TLS_CERT_FILE",
        value_name = "FILE",
        requires_all = ["key", "client_authorities"]
    )]
    certificate: Option<PathBuf>,
    /// Key of the certificate.
    #[arg(
        long = "tls-key-file",
        env = "CAPCMI_TLS_KEY_FILE",
        value_name = "FILE",
        requires = "certificate"
    )]
    key: Option<PathBuf>,
    /// Certificates of the authorities whose clients may call.
    #[arg(
        long = "client-ca-file",
        env = "CAPCMI_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "certificate"
    )]
    client_authorities: Option<PathBuf>,
}

/// A driver that is part of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServedKind {
    /// A small cloud in the process, for trying things out
    Simulated,
}

impl ServedKind {
    /// The driver, with the configuration of a file or else with its defaults.
    fn build(self, config: Option<&Path>) -> anyhow::Result<Arc<dyn Driver>> {
        match self {
            Self::Simulated => {
                let config = match config {
                    None => SimulatedConfig::default(),
                    Some(path) => {
                        let what = || format!("the driver's configuration {} can't be used", path.display());
                        let text = std::fs::read_to_string(path).with_context(what)?;
                        yaml::parse(&text)
                            .map_err(anyhow::Error::msg)
                            .with_context(what)?
                    }
                };
                Ok(Arc::new(SimulatedDriver::new(config)?))
            }
        }
    }
}

impl TlsArgs {
    fn files(self) -> Option<CertificateFiles> {
        Some(CertificateFiles {
            certificate: self.certificate?,
            key: self.key?,
            client_authorities: Some(self.client_authorities?),
        })
    }
}

/// Serves until it is asked to stop. What is configured wrongly is said before anything is served (CMI-188).
pub(super) async fn serve(args: ServeArgs) -> Result<(), CommandError> {
    let endpoint = args.endpoint.ok_or_else(|| {
        CommandError::misconfigured(anyhow::anyhow!(
            "the endpoint is missing: give --endpoint, or set CMI_ENDPOINT"
        ))
    })?;
    let driver = args
        .kind
        .build(args.config.as_deref())
        .map_err(CommandError::Misconfigured)?;
    let stop = signals::asked_to_stop()
        .context("listening for signals failed")
        .map_err(CommandError::Failed)?;
    let listener = Listener::bind(&endpoint, args.tls.files().map(ServerTls::new))
        .await
        .map_err(CommandError::misconfigured)?;
    announce(&listener)?;
    server::serve(driver, listener, stop, args.graceful_shutdown_timeout)
        .await
        .map_err(CommandError::failed)
}

/// Says where calls are taken, and warns where others may listen in.
fn announce(listener: &Listener) -> Result<(), CommandError> {
    let endpoint = listener
        .endpoint()
        .context("finding out where the plugin listens failed")
        .map_err(CommandError::Failed)?;
    if let Endpoint::Tcp(authority) = &endpoint
        && !authority.is_loopback()
    {
        tracing::warn!(%endpoint, "credentials go over the network in plain text: use tls://");
    }
    tracing::info!(%endpoint, version = env!("CARGO_PKG_VERSION"), "serving");
    Ok(())
}
