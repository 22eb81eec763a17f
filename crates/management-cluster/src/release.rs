//! A provider as its release installs it, with its manager as a plain process instead of a Pod.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    ManagementCluster,
    apply::apply,
    authority::Authority,
    components::Components,
    manager::{self, Place, Ports, START_DEADLINE},
    port::with_free_ports,
    process::Process,
};

/// The names in a provider's release.
#[derive(Debug)]
pub(crate) struct Release {
    pub name: &'static str,
    pub namespace: &'static str,
    pub service_account: &'static str,
    /// The aggregated role that the manager is bound to, if any.
    pub aggregated_role: Option<&'static str>,
}

impl Release {
    /// Installs the release and runs `command`. Returns when the manager is ready and its webhooks are
    /// registered: for one namespace if `only` names it.
    pub(crate) async fn start(
        &self,
        management: &ManagementCluster,
        components: &Path,
        only: Option<&str>,
        command: impl Fn(&Place) -> Command,
    ) -> Result<Process> {
        let client = management.admin_client().await?;
        let run = only.map(|namespace| format!("{namespace}-{}", self.name));
        let run = run.as_deref().unwrap_or(self.name);
        let folder = management.folder().path().join(run);
        fs::create_dir_all(&folder).with_context(|| format!("creating the folder of {}", self.name))?;
        let authority = Authority::new(self.name)?;
        let serving = authority.issue(self.name)?;
        fs::write(folder.join("tls.crt"), serving.certificate)?;
        fs::write(folder.join("tls.key"), serving.key)?;
        let start = async |[webhook, health, diagnostics]: [u16; 3]| {
            let components = Components::read(components, webhook, authority.certificate())?;
            for object in components.installation {
                apply(&client, object).await?;
            }
            if let Some(role) = self.aggregated_role {
                manager::wait_for_role(&client, role).await?;
            }
            let place = Place {
                kubeconfig: management
                    .kubeconfig_for_service_account(self.namespace, self.service_account)
                    .await?,
                folder: folder.clone(),
                ports: Ports {
                    webhook,
                    health,
                    diagnostics,
                },
            };
            let mut process = Process::start(management.folder(), run, &command(&place))?;
            let is_ready = async || manager::is_ready(health).await;
            process.wait_until(START_DEADLINE, is_ready).await?;
            for registration in components.webhooks {
                let registration = match only {
                    Some(namespace) => for_namespace(registration, namespace),
                    None => registration,
                };
                apply(&client, registration).await?;
            }
            Ok(process)
        };
        with_free_ports(start)
            .await
            .with_context(|| format!("starting {}", self.name))
    }
}

/// The registration of webhooks for one namespace, beside those of others.
fn for_namespace(mut registration: Value, namespace: &str) -> Value {
    let name = registration["metadata"]["name"].as_str().unwrap_or_default();
    registration["metadata"]["name"] = json!(format!("{name}-{namespace}"));
    for webhook in registration["webhooks"].as_array_mut().into_iter().flatten() {
        webhook["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    }
    registration
}
