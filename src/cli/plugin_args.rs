//! The flags by which a command is told which plugin to call: as the key `grpc` of the drivers file.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;

use super::Failure;
use super::driver_kind::DriverKind;
use crate::driver::Driver;
use crate::drivers::grpc::{Connector, GrpcConfig, TlsConfig};
use crate::provider::Timeouts;

/// A plugin at an endpoint.
#[derive(Debug, Args)]
pub(super) struct PluginArgs {
    /// Where the plugin listens: `unix:///path`, `tcp://host:port` or `tls://host:port`.
    #[arg(long, value_name = "URI")]
    pub endpoint: Option<String>,
    /// Certificates of the authorities that may vouch for a plugin behind `tls://`.
    #[arg(long, value_name = "FILE", requires = "endpoint")]
    ca_file: Option<PathBuf>,
    /// Our certificate.
    #[arg(long, value_name = "FILE", requires = "ca_file")]
    cert_file: Option<PathBuf>,
    /// The key of our certificate.
    #[arg(long, value_name = "FILE", requires = "ca_file")]
    key_file: Option<PathBuf>,
    /// The name in the plugin's certificate, when it is not the host of the endpoint.
    #[arg(long, value_name = "NAME", requires = "ca_file")]
    server_name: Option<String>,
    /// Take `tcp://` to another host: secrets travel in the clear.
    #[arg(long, requires = "endpoint")]
    insecure: bool,
}

impl PluginArgs {
    /// The driver that calls the plugin. Makes no call.
    ///
    /// # Errors
    /// When the flags lead to no plugin.
    pub(super) fn driver(&self, timeouts: &Timeouts) -> Result<Arc<dyn Driver>, Failure> {
        DriverKind::Grpc(self.config())
            .build(timeouts)
            .context("the plugin can't be called; the keys are those of the drivers file")
            .map_err(Failure::Misconfigured)
    }

    /// What makes bare connections to the plugin.
    ///
    /// # Errors
    /// When the flags lead to no plugin.
    pub(super) fn connector(&self) -> Result<Connector, Failure> {
        self.config()
            .connector()
            .context("the plugin can't be reached; the keys are those of the drivers file")
            .map_err(Failure::Misconfigured)
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
            ..GrpcConfig::default()
        }
    }
}
