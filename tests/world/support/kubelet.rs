//! The kubelets of a cloud's guests: each VM that runs becomes a Node of the workload cluster.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cmi_simulated::{Clock, CloudConsole};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Cloud, World};

const INTERVAL: Duration = Duration::from_millis(500);

/// Kubelets that register until this is dropped. A Node that is deleted is not registered again.
pub struct Kubelets(JoinHandle<()>);

impl World {
    /// The kubelets of a cloud's guests.
    pub fn kubelets(&self, cloud: &Cloud) -> Kubelets {
        self.kubelets_with(cloud, json!([]))
    }

    /// As [`World::kubelets`], whose Nodes register with these taints.
    pub fn kubelets_with(&self, cloud: &Cloud, taints: Value) -> Kubelets {
        let nodes = Api::<Node>::all(self.workload.client("kubelet"));
        let (journal, clock) = (cloud.journal().to_owned(), self.cloud_clock());
        Kubelets(tokio::spawn(register(nodes, journal, clock, taints)))
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn register(nodes: Api<Node>, journal: PathBuf, clock: Arc<dyn Clock>, taints: Value) {
    let mut registered = BTreeSet::new();
    loop {
        for (provider_id, name) in running(&journal, &clock).unwrap_or_default() {
            if registered.contains(&provider_id) {
                continue;
            }
            match join(&nodes, &name, &provider_id, &taints).await {
                Ok(()) => drop(registered.insert(provider_id)),
                Err(error) => tracing::warn!("the kubelet of {name}: {error:#}"),
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The providerIDs and names of the VMs that run.
fn running(journal: &Path, clock: &Arc<dyn Clock>) -> Result<Vec<(String, String)>> {
    if !journal.exists() {
        return Ok(Vec::new());
    }
    let console = CloudConsole::open_at(journal, Arc::clone(clock)).context("opening the cloud")?;
    let running = console.look(|cloud, now| {
        let running = cloud.vms().filter(|vm| vm.is_running(now));
        running.map(|vm| (vm.provider_id(), vm.name.clone())).collect()
    });
    running.context("reading the cloud")
}

async fn join(nodes: &Api<Node>, name: &str, provider_id: &str, taints: &Value) -> Result<()> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"providerID": provider_id, "taints": taints},
    });
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(ready))
        .await?;
    Ok(())
}
