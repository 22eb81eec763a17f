//! The Cluster API operator, which installs the providers that its objects describe.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{
    ManagementCluster,
    process::Process,
    programs::ManagerProgram,
    release::{Place, Release},
};

const RELEASE: Release = Release {
    name: "cluster-api-operator",
    namespace: "capi-operator-system",
    service_account: "capi-operator-manager",
    aggregated_role: None,
};
/// The grace period of its Pod.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// The operator of a management cluster. It ends with this value.
#[derive(Debug)]
pub struct ClusterApiOperator {
    process: Process,
}

impl ClusterApiOperator {
    /// Installs and starts the operator, and returns when it is ready and its webhooks are registered. Builds
    /// it first if necessary.
    ///
    /// # Errors
    /// When it can't be built, installed or started.
    pub async fn start(management: &ManagementCluster) -> Result<Self> {
        let program = ManagerProgram::operator(management.programs()).await?;
        let command = |place: &Place| {
            let mut command = Command::new(&program.manager);
            command
                .arg(format!("--kubeconfig={}", place.kubeconfig.display()))
                .arg(format!("--webhook-cert-dir={}", place.folder.display()))
                .arg(format!("--webhook-port={}", place.ports.webhook))
                .arg(format!("--health-addr=127.0.0.1:{}", place.ports.health))
                .arg(format!(
                    "--diagnostics-address=127.0.0.1:{}",
                    place.ports.diagnostics
                ))
                .args(["--insecure-diagnostics", "--profiler-address="])
                // The operator uses clusterctl's library, which keeps its files here.
                .env("HOME", &place.folder)
                .env("XDG_CONFIG_HOME", &place.folder);
            command
        };
        let process = RELEASE
            .start(management, &program.components, None, command)
            .await?;
        Ok(Self { process })
    }

    /// Stops the operator.
    ///
    /// # Errors
    /// When it had ended before.
    pub async fn stop(mut self) -> Result<()> {
        self.process
            .terminate(STOP_GRACE)
            .await
            .context("stopping the Cluster API operator")?;
        Ok(())
    }
}
