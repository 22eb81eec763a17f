//! The flags for serving a driver.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::{duration, signals};
use crate::endpoint::Endpoint;
use crate::server::{self, CertificateFiles, ListenError, Listener, ServeError, ServerTls};
use cmi_driver::Driver;

/// Where to listen, and how to stop.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Endpoint to listen on: tcp://127.0.0.1:8080, tls://0.0.0.0:8443 or unix:///run/capcmi/driver.sock.
    // The one variable that the specification defines.
    #[arg(long, env = "CMI_ENDPOINT", value_name = "ENDPOINT")]
    endpoint: Option<Endpoint>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Time for running calls to end after SIGTERM.
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
    /// Server certificate for a tls:// endpoint. All three TLS files are reloaded on change.
    #[arg(long = "tls-cert-file", env = "CAPCMI_TLS_CERT_FILE", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Key of the server certificate.
    #[arg(long = "tls-key-file", env = "CAPCMI_TLS_KEY_FILE", value_name = "FILE")]
    key: Option<PathBuf>,
    /// CA certificates of the clients.
    #[arg(long = "client-ca-file", env = "CAPCMI_CLIENT_CA_FILE", value_name = "FILE")]
    client_authorities: Option<PathBuf>,
}

/// Why a driver was not served to the end.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The endpoint is not set (CMI-181).
    #[error("the endpoint is missing: set --endpoint or CMI_ENDPOINT")]
    NoEndpoint,
    /// Some of the files of TLS are named, and these flags are missing.
    #[error("TLS also requires {}", .0.join(" and "))]
    IncompleteTls(Vec<&'static str>),
    /// The endpoint can't be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The signal handlers cannot be installed, so no signal would stop the program gracefully.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    /// The socket's address cannot be read.
    #[error("cannot get the address of the plugin")]
    Address(#[source] io::Error),
    /// Serving ended before a signal.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl StartError {
    /// Whether flags, environment or files have to change: nothing was served (CMI-188).
    pub fn is_misconfigured(&self) -> bool {
        match self {
            Self::NoEndpoint | Self::IncompleteTls(_) | Self::Listen(_) => true,
            Self::Signals(_) | Self::Address(_) | Self::Serve(_) => false,
        }
    }
}

impl ServerArgs {
    /// Serves the driver until SIGTERM or SIGINT; the log names the version and the endpoint. A second signal
    /// ends the process immediately.
    ///
    /// # Errors
    /// [`StartError`]; configuration mistakes are reported before anything is served (CMI-188).
    pub async fn serve(self, driver: Arc<dyn Driver>, version: &str) -> Result<(), StartError> {
        let endpoint = self.endpoint.ok_or(StartError::NoEndpoint)?;
        let files = self.tls.files()?;
        let stop = signals::asked_to_stop().map_err(StartError::Signals)?;
        let listener = Listener::bind(&endpoint, files.map(ServerTls::new)).await?;
        announce(&listener, version)?;
        Ok(server::serve(driver, listener, stop, self.graceful_shutdown_timeout).await?)
    }
}

impl TlsArgs {
    /// The files. Some of them alone would be taken for none, and the plugin would serve every client.
    fn files(self) -> Result<Option<CertificateFiles>, StartError> {
        match (self.certificate, self.key, self.client_authorities) {
            (Some(certificate), Some(key), Some(client_authorities)) => Ok(Some(CertificateFiles {
                certificate,
                key,
                client_authorities: Some(client_authorities),
            })),
            (None, None, None) => Ok(None),
            (certificate, key, client_authorities) => {
                let files = [
                    ("--tls-cert-file", certificate),
                    ("--tls-key-file", key),
                    ("--client-ca-file", client_authorities),
                ];
                let missing = files.iter().filter(|(_, file)| file.is_none());
                Err(StartError::IncompleteTls(
                    missing.map(|(flag, _)| *flag).collect(),
                ))
            }
        }
    }
}

/// Logs the endpoint, and warns if others may read the traffic.
fn announce(listener: &Listener, version: &str) -> Result<(), StartError> {
    let endpoint = listener.endpoint().map_err(StartError::Address)?;
    if let Endpoint::Tcp(authority) = &endpoint
        && !authority.is_loopback()
    {
        tracing::warn!(
            %endpoint,
            "credentials and bootstrap data are sent unencrypted: use tls://"
        );
    }
    tracing::info!(%endpoint, version, "serving");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_the_files_of_tls_are_refused_and_the_rest_is_named() {
        let file = |is_given: bool| is_given.then(|| PathBuf::from("file"));
        let files = |certificate, key, client_authorities| {
            TlsArgs {
                certificate: file(certificate),
                key: file(key),
                client_authorities: file(client_authorities),
            }
            .files()
        };
        assert!(files(true, true, true).unwrap().is_some());
        assert!(files(false, false, false).unwrap().is_none());
        for (certificate, key, client_authorities, missing) in [
            (true, false, false, "--tls-key-file and --client-ca-file"),
            (false, true, false, "--tls-cert-file and --client-ca-file"),
            (false, false, true, "--tls-cert-file and --tls-key-file"),
            (true, true, false, "--client-ca-file"),
        ] {
            let error = files(certificate, key, client_authorities).unwrap_err();
            assert!(error.is_misconfigured());
            assert_eq!(error.to_string(), format!("TLS also requires {missing}"));
        }
    }
}
