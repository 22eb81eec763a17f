//! A driver that is served by this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cmi_driver::Driver;
use cmi_grpc::endpoint::Endpoint;
use cmi_grpc::proto::capcmi::v1::machine_extension_client::MachineExtensionClient;
use cmi_grpc::proto::cmi::v1::identity_client::IdentityClient;
use cmi_grpc::proto::cmi::v1::machine_client::MachineClient;
use cmi_grpc::server::{Listener, ServeError, ServerTls, serve};
use cmi_simulated::{SimulatedConfig, SimulatedDriver};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::TIMEOUT;

/// How long running calls may take to end.
pub const DRAIN: Duration = Duration::from_secs(1);

pub struct Served {
    pub endpoint: Endpoint,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
    /// Holds the socket.
    _folder: TempDir,
}

impl Served {
    /// The driver on a socket in the file system.
    pub async fn start(driver: Arc<dyn Driver>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = Endpoint::Unix(folder.path().join("plugin.sock"));
        Self::listen(driver, &socket, None, folder).await
    }

    /// The simulated driver, with a configuration.
    pub async fn simulated(config: &str) -> Result<Self> {
        Self::start(simulated(config)?).await
    }

    pub async fn at(endpoint: &str, driver: Arc<dyn Driver>, tls: Option<ServerTls>) -> Result<Self> {
        Self::listen(driver, &endpoint.parse()?, tls, tempfile::tempdir()?).await
    }

    async fn listen(
        driver: Arc<dyn Driver>,
        endpoint: &Endpoint,
        tls: Option<ServerTls>,
        folder: TempDir,
    ) -> Result<Self> {
        let listener = Listener::bind(endpoint, tls).await?;
        let endpoint = listener.endpoint()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            let _sent_or_dropped = stopped.await;
        };
        let serving = tokio::spawn(async move { serve(driver, listener, stopped, DRAIN).await });
        Ok(Self {
            endpoint,
            stop,
            serving,
            _folder: folder,
        })
    }

    pub async fn channel(&self) -> Result<Channel> {
        connect(&self.endpoint).await
    }

    pub async fn identity(&self) -> Result<IdentityClient<Channel>> {
        Ok(IdentityClient::new(self.channel().await?))
    }

    pub async fn machine(&self) -> Result<MachineClient<Channel>> {
        Ok(MachineClient::new(self.channel().await?))
    }

    pub async fn extension(&self) -> Result<MachineExtensionClient<Channel>> {
        Ok(MachineExtensionClient::new(self.channel().await?))
    }

    pub fn socket(&self) -> Result<PathBuf> {
        match &self.endpoint {
            Endpoint::Unix(path) => Ok(path.clone()),
            other @ (Endpoint::Tcp(_) | Endpoint::Tls(_)) => anyhow::bail!("{other} has no path"),
        }
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(self) -> Result<()> {
        // A dropped receiver means that the server has stopped already; the next line returns the reason.
        let _asked = self.stop.send(());
        timeout(TIMEOUT, self.serving)
            .await
            .context("waiting for the server to stop")??
            .context("serving")
    }
}

pub fn simulated(config: &str) -> Result<Arc<dyn Driver>> {
    let config: SimulatedConfig = serde_saphyr::from_str(config)?;
    Ok(Arc::new(SimulatedDriver::new(config)?))
}

pub async fn connect(endpoint: &Endpoint) -> Result<Channel> {
    let address = match endpoint {
        Endpoint::Unix(_) => endpoint.to_string(),
        Endpoint::Tcp(authority) => format!("http://{authority}"),
        Endpoint::Tls(_) => anyhow::bail!("{endpoint} takes a client with certificates"),
    };
    let channel = tonic::transport::Endpoint::from_shared(address)?;
    Ok(channel.connect().await?)
}
