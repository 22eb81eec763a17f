//! The flags by which a command is told which plugin to call: as the key `grpc` of the drivers file.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::Failure;
use crate::driver::{Driver, Operation};
use crate::drivers::grpc::{ConfigError, Connector, Deadlines, GrpcConfig, GrpcDriver, TlsConfig};
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
        let deadlines = Operation::ALL.map(|operation| (operation, timeouts.of(operation)));
        self.patient_driver(Deadlines::new(deadlines))
    }

    /// The driver that calls the plugin, with deadlines of the caller's own. Makes no call.
    ///
    /// # Errors
    /// When the flags lead to no plugin.
    pub(super) fn patient_driver(&self, deadlines: Deadlines) -> Result<Arc<dyn Driver>, Failure> {
        let driver = GrpcDriver::new(&self.config(), deadlines).map_err(unusable)?;
        Ok(Arc::new(driver))
    }

    /// What makes bare connections to the plugin.
    ///
    /// # Errors
    /// When the flags lead to no plugin.
    pub(super) fn connector(&self) -> Result<Connector, Failure> {
        self.config().connector().map_err(unusable)
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

fn unusable(error: ConfigError) -> Failure {
    let what = "the plugin can't be called; the keys are those of the drivers file";
    Failure::Misconfigured(anyhow::Error::new(error).context(what))
}
