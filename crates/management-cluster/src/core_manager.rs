//! Cluster API's core manager, under its own `ServiceAccount`.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result};
use kube::Client;
use tokio::sync::Mutex;

use crate::{
    Programs,
    api_server::ApiServer,
    apply::apply,
    authority::Authority,
    components::Components,
    kubeconfig,
    manager::{self, Pace, Place, Ports, START_DEADLINE},
    port::with_free_ports,
    process::Process,
    run_folder::RunFolder,
    service_account, webhooks,
};

/// Namespace and `ServiceAccount` of core, as Cluster API installs them.
const NAMESPACE: &str = "capi-system";
const SERVICE_ACCOUNT: &str = "capi-manager";
/// The role that core is bound to; it is filled by the clusterrole-aggregation controller.
pub const AGGREGATED_ROLE: &str = "capi-aggregated-manager-role";

/// The grace period of a Pod.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// Cluster API's core manager, which can be stopped and started again.
///
/// The manager uses the token of its `ServiceAccount`, and has exactly the permissions that Cluster API's
/// release grants. Its webhooks are registered only while it runs, so objects can still be written without
/// it, but get no defaults.
#[derive(Debug)]
pub(crate) struct CoreManager {
    programs: Programs,
    certificates: PathBuf,
    authority: String,
    pace: Pace,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The port of the webhooks, which the installed kinds name for their conversion.
    webhook_port: u16,
    process: Option<Process>,
}

impl CoreManager {
    /// Installs Cluster API's kinds, permissions and namespace; does not start core.
    pub(crate) async fn install(
        programs: &Programs,
        folder: &RunFolder,
        client: &Client,
        pace: Pace,
    ) -> Result<Self> {
        let certificates = folder.path().join("core");
        fs::create_dir_all(&certificates).context("creating the folder of core")?;
        let authority = Authority::new("core")?;
        let serving = authority.issue("core")?;
        fs::write(certificates.join("tls.crt"), serving.certificate)?;
        fs::write(certificates.join("tls.key"), serving.key)?;
        let webhook_port = with_free_ports(async |[port]: [u16; 1]| Ok(port)).await?;
        let core = Self {
            programs: programs.clone(),
            certificates,
            authority: authority.certificate().to_owned(),
            pace,
            state: Mutex::new(State {
                webhook_port,
                process: None,
            }),
        };
        core.apply_installation(client, webhook_port).await?;
        Ok(core)
    }

    /// How often and how soon core reconciles.
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// Starts core, unless it runs, and returns when it is ready and its webhooks are in effect.
    pub(crate) async fn start(&self, folder: &RunFolder, api_server: &ApiServer) -> Result<()> {
        let mut state = self.state.lock().await;
        if let Some(process) = &mut state.process
            && process.status()?.is_none()
        {
            return Ok(());
        }
        let client = api_server.admin_client().await?;
        manager::wait_for_role(&client, AGGREGATED_ROLE).await?;
        let own = service_account::kubeconfig(api_server, NAMESPACE, SERVICE_ACCOUNT).await?;
        kubeconfig::write(self.kubeconfig(), &own)?;
        let installed = state.webhook_port;
        let mut is_taken = false;
        let start = async |[health, diagnostics, other]: [u16; 3]| {
            let webhook_port = if is_taken { other } else { installed };
            if is_taken {
                self.apply_installation(&client, webhook_port).await?;
            }
            is_taken = true;
            let mut process =
                Process::start(folder, "core", &self.command(webhook_port, health, diagnostics))?;
            process
                .wait_until(START_DEADLINE, async || manager::is_ready(health).await)
                .await?;
            Ok((webhook_port, process))
        };
        let (webhook_port, process) = with_free_ports(start)
            .await
            .context("starting Cluster API's core manager")?;
        *state = State {
            webhook_port,
            process: Some(process),
        };
        webhooks::register(&client, self.components(webhook_port)?.webhooks).await
    }

    /// Stops core, if it runs, and removes the registrations of its webhooks.
    pub(crate) async fn stop(&self, api_server: &ApiServer) -> Result<()> {
        let mut state = self.state.lock().await;
        let Some(mut process) = state.process.take() else {
            return Ok(());
        };
        let client = api_server.admin_client().await?;
        webhooks::unregister(&client, self.components(state.webhook_port)?.webhooks).await?;
        process
            .terminate(STOP_GRACE)
            .await
            .context("stopping Cluster API's core manager")?;
        Ok(())
    }

    fn command(&self, webhook_port: u16, health: u16, diagnostics: u16) -> Command {
        let place = Place {
            kubeconfig: self.kubeconfig(),
            folder: self.certificates.clone(),
            ports: Ports {
                webhook: webhook_port,
                health,
                diagnostics,
            },
        };
        manager::command(&self.programs.core, &place, self.pace)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.certificates.join("core.kubeconfig")
    }

    fn components(&self, webhook_port: u16) -> Result<Components> {
        Components::read(&self.programs.core_components, webhook_port, &self.authority)
    }

    async fn apply_installation(&self, client: &Client, webhook_port: u16) -> Result<()> {
        for object in self.components(webhook_port)?.installation {
            apply(client, object).await.context("installing Cluster API")?;
        }
        Ok(())
    }
}
