//! The provider as a separate process, under its ServiceAccount.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use management_cluster::{ManagementCluster, Process};

/// The namespace of the provider in the shipped manifests.
pub const NAMESPACE: &str = "capcmi-system";
/// The ServiceAccount of the provider in the shipped manifests.
pub const SERVICE_ACCOUNT: &str = "capcmi-manager";

/// The options to start a provider with.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The built `capcmi-manager`.
    pub binary: PathBuf,
    /// Name of the process in logs.
    pub name: String,
    /// The drivers file.
    pub drivers: PathBuf,
    /// The way to the API server.
    pub kubeconfig: PathBuf,
    /// Further flags.
    pub flags: Vec<String>,
}

/// A started provider.
#[derive(Debug)]
pub struct Launched {
    /// The process.
    pub process: Process,
    /// `127.0.0.1:port` of /healthz and /readyz.
    pub health: String,
    /// `127.0.0.1:port` of /metrics.
    pub diagnostics: String,
}

impl Launch {
    /// Starts the provider, without waiting.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn start(&self, management: &ManagementCluster) -> Result<Launched> {
        let (health, diagnostics) = (free_address()?, free_address()?);
        let mut command = Command::new(&self.binary);
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--drivers-config={}", self.drivers.display()))
            .arg(format!("--health-addr={health}"))
            .arg(format!("--diagnostics-address={diagnostics}"))
            .args(&self.flags);
        let process = Process::start(management.folder(), &self.name, &command)?;
        Ok(Launched {
            process,
            health,
            diagnostics,
        })
    }
}

impl Launched {
    /// Waits until the provider is ready.
    ///
    /// # Errors
    /// When it ends before, or when the deadline passes.
    pub async fn ready(&mut self, deadline: Duration) -> Result<()> {
        let health = &self.health;
        self.process
            .wait_until(deadline, async || {
                crate::get(health, "/readyz")
                    .await
                    .is_ok_and(|(code, _)| code == 200)
            })
            .await
    }
}

/// The kubeconfig of the shipped ServiceAccount.
///
/// # Errors
/// When the manifests are not installed.
pub async fn service_account(management: &ManagementCluster) -> Result<PathBuf> {
    management
        .kubeconfig_for_service_account(NAMESPACE, SERVICE_ACCOUNT)
        .await
}

/// `127.0.0.1` with a free port.
///
/// Ports are chosen in turn from below the kernel's range for outgoing connections. So no connection takes
/// the port before the provider listens.
///
/// # Errors
/// When all are taken.
pub fn free_address() -> Result<String> {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT_PORT: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes start at different ports.
    let start = std::process::id().wrapping_mul(97);
    (0..COUNT)
        .map(|_| start.wrapping_add(NEXT_PORT.fetch_add(1, Ordering::Relaxed)) % COUNT + FIRST)
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| TcpListener::bind(address).is_ok())
        .context("no port is free")
}
