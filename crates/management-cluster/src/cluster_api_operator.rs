//! The Cluster API operator, which installs the providers that its objects describe.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{
    ManagementCluster,
    apply::apply,
    authority::Authority,
    components::Components,
    manager::{START_DEADLINE, is_ready},
    port::with_free_ports,
    process::Process,
    programs::OperatorProgram,
};

const NAMESPACE: &str = "capi-operator-system";
const SERVICE_ACCOUNT: &str = "capi-operator-manager";
const RUN: &str = "cluster-api-operator";
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
        let program = OperatorProgram::find(management.programs()).await?;
        let client = management.admin_client().await?;
        let folder = management.folder().path().join(RUN);
        fs::create_dir_all(&folder).context("creating the folder of the Cluster API operator")?;
        let authority = Authority::new(RUN)?;
        let serving = authority.issue(RUN)?;
        fs::write(folder.join("tls.crt"), serving.certificate)?;
        fs::write(folder.join("tls.key"), serving.key)?;
        let start = async |[webhook, health, diagnostics]: [u16; 3]| {
            let components = Components::read(&program.components, webhook, authority.certificate())?;
            for object in components.installation {
                apply(&client, object).await?;
            }
            let kubeconfig = management
                .kubeconfig_for_service_account(NAMESPACE, SERVICE_ACCOUNT)
                .await?;
            let mut command = Command::new(&program.manager);
            command
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .arg(format!("--webhook-cert-dir={}", folder.display()))
                .arg(format!("--webhook-port={webhook}"))
                .arg(format!("--health-addr=127.0.0.1:{health}"))
                .arg(format!("--diagnostics-address=127.0.0.1:{diagnostics}"))
                .args(["--insecure-diagnostics", "--profiler-address="])
                // The operator uses clusterctl's library, which keeps its files here.
                .env("HOME", &folder)
                .env("XDG_CONFIG_HOME", &folder);
            let mut process = Process::start(management.folder(), RUN, &command)?;
            process
                .wait_until(START_DEADLINE, async || is_ready(health).await)
                .await?;
            for registration in components.webhooks {
                apply(&client, registration).await?;
            }
            Ok(Self { process })
        };
        with_free_ports(start)
            .await
            .context("starting the Cluster API operator")
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
