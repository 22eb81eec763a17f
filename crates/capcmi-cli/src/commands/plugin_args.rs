//! The flags for the connection to a plugin: the same settings as the key `grpc` of the drivers file.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use tokio::time::{sleep, timeout};

use capcmi::driver::Timeouts;
use capcmi::manager::cli::{CommandError, ResultExt as _, driver_kind};
use cmi_grpc::cli::duration;
use cmi_grpc::client::{ConfigError, Connector, GrpcConfig, GrpcDriver, TlsConfig};

/// A plugin at an endpoint.
#[derive(Debug, Args)]
pub(super) struct PluginArgs {
    /// Endpoint of the plugin: `unix:///path`, `tcp://host:port` or `tls://host:port`.
    #[arg(long, value_name = "URI")]
    pub endpoint: Option<String>,
    /// CA certificates for a plugin behind `tls://`.
    #[arg(long, value_name = "FILE", requires = "endpoint")]
    ca_file: Option<PathBuf>,
    /// Client certificate.
    #[arg(long, value_name = "FILE", requires = "ca_file")]
    cert_file: Option<PathBuf>,
    /// Key of the client certificate.
    #[arg(long, value_name = "FILE", requires = "ca_file")]
    key_file: Option<PathBuf>,
    /// Name in the plugin's certificate, if it is not the host of the endpoint.
    #[arg(long, value_name = "NAME", requires = "ca_file")]
    server_name: Option<String>,
    /// Allow `tcp://` to another host, which sends secrets unencrypted.
    #[arg(long, requires = "endpoint")]
    insecure: bool,
    /// Time to wait for the plugin to start, such as `30s`. Default: no wait.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "endpoint")]
    wait: Option<Duration>,
}

/// The longest `keepaliveSeconds`: longer than any call.
const MAX_KEEPALIVE: u32 = 3600;
/// The interval between attempts to connect to a plugin that has not started yet.
const KNOCK: Duration = Duration::from_millis(100);

/// The flags for the keys of the drivers file. Longer keys come first, since a shorter key may be part of a
/// longer one.
const FLAGS: [(&str, &str); 9] = [
    ("certFile and keyFile", "--cert-file and --key-file"),
    ("`insecure: true`", "--insecure"),
    ("grpc.tls.caFile", "--ca-file"),
    ("grpc.tls.certFile", "--cert-file"),
    ("grpc.tls.keyFile", "--key-file"),
    ("grpc.tls.serverName", "--server-name"),
    ("grpc.endpoint", "--endpoint"),
    ("grpc.insecure", "--insecure"),
    ("grpc.tls", "--ca-file"),
];

impl PluginArgs {
    /// Returns the driver that calls the plugin, without a call.
    ///
    /// # Errors
    /// The flags describe no plugin.
    pub(super) fn driver(&self, timeouts: &Timeouts) -> Result<GrpcDriver, CommandError> {
        driver_kind::client(&self.config(), timeouts)
            .map_err(|error| anyhow!(with_flags(&error)))
            .context("cannot call the plugin")
            .misconfigured()
    }

    /// Returns the connector that opens bare connections to the plugin.
    ///
    /// # Errors
    /// The flags describe no plugin.
    pub(super) fn connector(&self) -> Result<Connector, CommandError> {
        self.config()
            .connector()
            .map_err(|error| anyhow!(with_flags(&error)))
            .context("cannot reach the plugin")
            .misconfigured()
    }

    /// Waits until the plugin accepts connections, at most for the time of `--wait`; without that flag, not
    /// at all. A plugin that accepts none in time is no error here: the next call reports the problem.
    ///
    /// # Errors
    /// The flags describe no plugin.
    pub(super) async fn awaited(&self) -> Result<(), CommandError> {
        let Some(wait) = self.wait else { return Ok(()) };
        let connector = self.connector()?;
        let knocking = async {
            while connector.connect().await.is_err() {
                sleep(KNOCK).await;
            }
        };
        // If the time is up, the next call reports the problem.
        let _ = timeout(wait, knocking).await;
        Ok(())
    }

    fn config(&self) -> GrpcConfig {
        GrpcConfig {
            endpoint: self.endpoint.clone(),
            tls: self.ca_file.as_ref().map(|ca_file| TlsConfig {
                ca_file: ca_file.clone(),
                cert_file: self.cert_file.clone(),
                key_file: self.key_file.clone(),
                server_name: self.server_name.clone(),
            }),
            insecure: self.insecure,
            // A command sends no probes. A gRPC server with default settings closes a connection that pings
            // three times within five minutes without an answer to a call. A create may take that long.
            keepalive_seconds: MAX_KEEPALIVE,
            ..GrpcConfig::default()
        }
    }
}

/// Returns the message of an error in the configuration from the flags. Replaces the keys of the drivers file
/// by the flags.
fn with_flags(error: &ConfigError) -> String {
    FLAGS.iter().fold(error.to_string(), |message, (key, flag)| {
        message.replace(key, flag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(endpoint: &str) -> PluginArgs {
        PluginArgs {
            endpoint: Some(endpoint.to_owned()),
            ca_file: None,
            cert_file: None,
            key_file: None,
            server_name: None,
            insecure: false,
            wait: None,
        }
    }

    #[test]
    fn errors_name_the_flag_and_not_the_key_of_the_drivers_file() {
        let of_a_socket = PluginArgs {
            ca_file: Some("ca.crt".into()),
            ..args("unix:///run/cmi.sock")
        };
        let half = PluginArgs {
            ca_file: Some("ca.crt".into()),
            cert_file: Some("tls.crt".into()),
            ..args("tls://vms:1")
        };
        for (args, flag) in [
            (args("tls://vms:1"), "--ca-file is missing"),
            (of_a_socket, "--ca-file: has no effect"),
            (
                half,
                "--key-file is missing: --cert-file and --key-file are both required",
            ),
            (args("tcp://vms:1"), "or set --insecure if"),
            (args("vms:1"), "--endpoint: "),
        ] {
            let Err(error) = args.driver(&Timeouts::default()) else {
                panic!("{args:?}");
            };
            let error = error.message();
            assert!(error.contains(flag), "no `{flag}` in: {error}");
            assert!(!error.contains("grpc."), "{error}");
        }
    }

    /// grpc-go closed a connection that was pinged every 10 s, after 41 s of a call.
    #[test]
    fn a_command_that_does_not_probe_pings_no_server_that_has_its_defaults() {
        let args = args("tcp://127.0.0.1:1");
        let five_minutes = 5 * 60;
        assert!(args.config().keepalive_seconds > five_minutes);
        assert!(args.driver(&Timeouts::default()).is_ok());
    }
}
