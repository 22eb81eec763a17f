//! The Cluster API operator, which installs the providers that its objects describe.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::{
    ManagementCluster, manager::Place, process::Process, programs::ManagerProgram, release::Release,
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
            let mut command = place.command(&program.manager, "--health-addr");
            command
                .arg("--profiler-address=")
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
