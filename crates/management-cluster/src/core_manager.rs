//! Cluster API's core manager, under its own `ServiceAccount`.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject},
    core::GroupVersionKind,
    discovery::pinned_kind,
};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    Programs, api_server::ApiServer, apply::apply, authority::Authority, components::Components,
    eventually::eventually, kubeconfig, port::with_free_ports, process::Process, run_folder::RunFolder,
    service_account,
};

/// Namespace and `ServiceAccount` of core, as Cluster API installs them.
const NAMESPACE: &str = "capi-system";
const SERVICE_ACCOUNT: &str = "capi-manager";
/// The role that core is bound to; it is filled by the clusterrole-aggregation controller.
pub const AGGREGATED_ROLE: &str = "capi-aggregated-manager-role";

const START_DEADLINE: Duration = Duration::from_mins(1);
/// As much as a Pod gets.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// Every feature on that the provider has something to do with, and no waiting that only spares a busy API server.
const FLAGS: &[&str] = &[
    "--leader-elect=false",
    "--insecure-diagnostics",
    "--feature-gates=ClusterTopology=true,RuntimeSDK=true,InPlaceUpdates=true,ReconcilerRateLimiting=false",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--clustercache-client-qps=1000",
    "--clustercache-client-burst=2000",
];

/// Cluster API's core manager, which can be stopped and started again.
///
/// It runs with the token of its own `ServiceAccount` and has the permissions that Cluster API's release gives it,
/// no others. Its webhooks are registered exactly while it runs, so that without it objects can still be written (but
/// get no defaults).
#[derive(Debug)]
pub struct CoreManager {
    programs: Programs,
    certificates: PathBuf,
    authority: String,
    port: u16,
    process: Mutex<Option<Process>>,
}

impl CoreManager {
    /// Installs Cluster API's kinds, permissions and namespace; does not start core.
    pub(crate) async fn install(programs: &Programs, folder: &RunFolder, client: &Client) -> Result<Self> {
        let certificates = folder.path().join("core");
        fs::create_dir_all(&certificates).context("creating the folder of core")?;
        let authority = Authority::new("core")?;
        let serving = authority.issue("core")?;
        fs::write(certificates.join("tls.crt"), serving.certificate)?;
        fs::write(certificates.join("tls.key"), serving.key)?;
        let authority = authority.certificate().to_owned();
        let port = with_free_ports(async |[port]: [u16; 1]| Ok(port)).await?;
        for object in Components::read(programs, port, &authority)?.installation {
            apply(client, object).await.context("installing Cluster API")?;
        }
        Ok(Self {
            programs: programs.clone(),
            certificates,
            authority,
            port,
            process: Mutex::new(None),
        })
    }

    /// Starts core, unless it runs, and returns when it is ready and its webhooks are registered.
    pub(crate) async fn start(&self, folder: &RunFolder, api_server: &ApiServer) -> Result<()> {
        let mut process = self.process.lock().await;
        if process.is_some() {
            return Ok(());
        }
        let client = api_server.admin_client().await?;
        wait_for_permissions(&client).await?;
        let own = service_account::kubeconfig(api_server, NAMESPACE, SERVICE_ACCOUNT).await?;
        let own = kubeconfig::write(self.certificates.join("core.kubeconfig"), &own)?;
        let health = async |[health, diagnostics]: [u16; 2]| {
            let mut command = Command::new(&self.programs.core);
            command
                .arg(format!("--kubeconfig={}", own.display()))
                .arg(format!("--webhook-cert-dir={}", self.certificates.display()))
                .arg(format!("--webhook-port={}", self.port))
                .arg(format!("--health-addr=127.0.0.1:{health}"))
                .arg(format!("--diagnostics-address=127.0.0.1:{diagnostics}"))
                .args(FLAGS);
            let mut process = Process::start(folder, "core", &command)?;
            process
                .wait_until(START_DEADLINE, async || is_ready(health).await)
                .await?;
            Ok(process)
        };
        *process = Some(
            with_free_ports(health)
                .await
                .context("starting Cluster API's core manager")?,
        );
        for webhooks in self.webhooks()? {
            apply(&client, webhooks)
                .await
                .context("registering the webhooks of core")?;
        }
        Ok(())
    }

    /// Stops core, if it runs, and removes the registrations of its webhooks.
    pub(crate) async fn stop(&self, api_server: &ApiServer) -> Result<()> {
        let Some(mut process) = self.process.lock().await.take() else {
            return Ok(());
        };
        let client = api_server.admin_client().await?;
        for webhooks in self.webhooks()? {
            remove(&client, &webhooks)
                .await
                .context("removing the webhooks of core")?;
        }
        process
            .terminate(STOP_GRACE)
            .await
            .context("stopping Cluster API's core manager")?;
        Ok(())
    }

    fn webhooks(&self) -> Result<Vec<Value>> {
        Ok(Components::read(&self.programs, self.port, &self.authority)?.webhooks)
    }
}

async fn remove(client: &Client, object: &Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let gvk = GroupVersionKind::try_from(&object.types.unwrap_or_default())?;
    let (resource, _) = pinned_kind(client, &gvk).await?;
    let name = object.metadata.name.unwrap_or_default();
    Api::<DynamicObject>::all_with(client.clone(), &resource)
        .delete(&name, &DeleteParams::default())
        .await?;
    Ok(())
}

/// Without its permissions core would back off from what it may not read.
async fn wait_for_permissions(client: &Client) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    eventually(START_DEADLINE, "the aggregation of core's role", async || {
        let role = roles.get(AGGREGATED_ROLE).await?;
        ensure!(
            !role.rules.unwrap_or_default().is_empty(),
            "{AGGREGATED_ROLE} has no rules"
        );
        Ok(())
    })
    .await
}

async fn is_ready(port: u16) -> bool {
    let Ok(uri) = format!("http://127.0.0.1:{port}/readyz").parse() else {
        return false;
    };
    let client: HttpClient<HttpConnector, Empty<Bytes>> =
        HttpClient::builder(TokioExecutor::new()).build_http();
    client
        .get(uri)
        .await
        .is_ok_and(|answer| answer.status().is_success())
}
