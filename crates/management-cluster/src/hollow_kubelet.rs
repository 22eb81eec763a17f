//! The kubelets of simulated machines, which join the workload cluster as their bootstrap data tells them.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context, Result, bail};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, interval, sleep},
};

use crate::{KUBERNETES_VERSION, kubeconfig};

const FIELD_MANAGER: &str = "kubelet";
/// How often a kubelet reports a healthy Node while nothing changes: a kubelet's default.
const HEARTBEAT_INTERVAL: Duration = Duration::from_mins(5);
/// How long a kubelet tries to register, and how often.
const REGISTER_DEADLINE: Duration = Duration::from_mins(4);
const REGISTER_INTERVAL: Duration = Duration::from_millis(200);

/// A guest that has booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The value of the kubelet's flag `--provider-id`.
    pub provider_id: String,
    /// The guest's host name, which becomes the name of its Node.
    pub node_name: String,
    /// A cloud-config with a kubeconfig among its `write_files`, such as
    /// [`crate::Workload::bootstrap_data`] gives.
    pub user_data: Vec<u8>,
    /// Type (`InternalIP`, `Hostname`, …) and value of each address.
    pub addresses: Vec<(String, String)>,
}

/// What happens to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestEvent {
    /// It has booted: its kubelet registers.
    Booted(Guest),
    /// The guest is deleted or off, and its kubelet stops reporting. Its Node stays, as in a real cluster.
    Gone {
        /// The provider id that it booted with.
        provider_id: String,
    },
}

/// The kubelets of all guests, in the runtime that they were started in. They end when this value is dropped.
#[derive(Debug)]
pub struct HollowKubelet {
    task: JoinHandle<()>,
}

impl HollowKubelet {
    /// Follows `guests` until it ends. Each guest that boots is registered as a Node with the credentials
    /// of its bootstrap data; the Node has the provider id, addresses, a kubelet version, the conditions
    /// of a healthy node, and the taints that the kubelet's configuration names. A guest whose bootstrap
    /// data is unfit does not register, as with a real one; a warning is logged.
    pub fn start(guests: impl Stream<Item = GuestEvent> + Send + 'static) -> Self {
        Self::with_version(KUBERNETES_VERSION, guests)
    }

    /// As [`HollowKubelet::start`], with the version that the kubelets report.
    pub fn with_version(version: &str, guests: impl Stream<Item = GuestEvent> + Send + 'static) -> Self {
        Self {
            task: tokio::spawn(follow(version.to_owned(), guests)),
        }
    }
}

impl Drop for HollowKubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(version: String, guests: impl Stream<Item = GuestEvent>) {
    let mut guests = std::pin::pin!(guests);
    let mut clients = Clients::default();
    // Dropped with this future, which ends every kubelet.
    let mut kubelets = JoinSet::new();
    let mut running = HashMap::new();
    while let Some(event) = guests.next().await {
        match event {
            GuestEvent::Booted(guest) => {
                let boot = clients.boot(&guest.user_data).await;
                let provider_id = guest.provider_id.clone();
                let kubelet = kubelets.spawn(run(boot, version.clone(), guest));
                // A guest that boots again has only one kubelet.
                if let Some(previous) = running.insert(provider_id, kubelet) {
                    previous.abort();
                }
            }
            GuestEvent::Gone { provider_id } => {
                if let Some(kubelet) = running.remove(&provider_id) {
                    kubelet.abort();
                }
            }
        }
        while kubelets.try_join_next().is_some() {}
    }
    // No more events come, but the running kubelets continue.
    while kubelets.join_next().await.is_some() {}
}

/// Clients by kubeconfig, so that thousands of guests with the same credentials do not
/// have a connection each.
#[derive(Default)]
struct Clients(HashMap<String, Client>);

impl Clients {
    /// Reads the client and the taints of a kubelet from the bootstrap data of its guest.
    async fn boot(&mut self, user_data: &[u8]) -> Result<Boot> {
        let files = files_of(user_data)?;
        let taints = taints_of(&files)?;
        let document = kubeconfig_of(files)?;
        if let Some(client) = self.0.get(&document) {
            let client = client.clone();
            return Ok(Boot { client, taints });
        }
        let client = kubeconfig::client(&document).await?;
        self.0.insert(document, client.clone());
        Ok(Boot { client, taints })
    }
}

/// The configuration that a kubelet starts with.
struct Boot {
    client: Client,
    /// The taints that its Node registers with.
    taints: Vec<Taint>,
}

async fn run(boot: Result<Boot>, version: String, guest: Guest) {
    if let Err(error) = join_and_stay(boot, &version, &guest).await {
        tracing::warn!("the kubelet of {} ended: {error:#}", guest.node_name);
    }
}

async fn join_and_stay(boot: Result<Boot>, version: &str, guest: &Guest) -> Result<()> {
    let Boot { client, taints } = boot?;
    let nodes: Api<Node> = Api::all(client);
    register(&nodes, version, guest, &taints).await?;
    let mut heartbeat = interval(HEARTBEAT_INTERVAL);
    heartbeat.tick().await;
    loop {
        heartbeat.tick().await;
        let status = Patch::Strategic(json!({"status": {"conditions": healthy()}}));
        match nodes
            .patch_status(&guest.node_name, &PatchParams::default(), &status)
            .await
        {
            Ok(_) => {}
            // The Node was deleted. Only a restarted kubelet creates its Node again.
            Err(kube::Error::Api(answer)) if answer.code == 404 => return Ok(()),
            Err(error) => tracing::debug!("heartbeat of {}: {error}", guest.node_name),
        }
    }
}

async fn register(nodes: &Api<Node>, version: &str, guest: &Guest, taints: &[Taint]) -> Result<()> {
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let node = node(guest, taints);
    let status = status(version, guest);
    let expiry = Instant::now() + REGISTER_DEADLINE;
    loop {
        let attempt = async {
            nodes
                .patch(&guest.node_name, &params, &Patch::Apply(&node))
                .await?;
            let status = Patch::Strategic(&status);
            nodes
                .patch_status(&guest.node_name, &PatchParams::default(), &status)
                .await
        };
        match attempt.await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= expiry => return Err(error).context("registering the Node"),
            Err(_) => sleep(REGISTER_INTERVAL).await,
        }
    }
}

fn node(guest: &Guest, taints: &[Taint]) -> Value {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": guest.node_name, "labels": {"kubernetes.io/hostname": guest.node_name}},
        "spec": {"providerID": guest.provider_id},
    });
    if !taints.is_empty() {
        node["spec"]["taints"] = json!(taints);
    }
    node
}

fn status(version: &str, guest: &Guest) -> Value {
    let addresses = guest
        .addresses
        .iter()
        .map(|(kind, address)| json!({"type": kind, "address": address}));
    json!({"status": {
        "addresses": addresses.collect::<Vec<_>>(),
        "conditions": healthy(),
        "nodeInfo": {
            "kubeletVersion": version, "kubeProxyVersion": version, "containerRuntimeVersion": "hollow://1",
            "architecture": "amd64", "operatingSystem": "linux", "osImage": "hollow",
            "kernelVersion": "hollow",
            "bootID": "hollow", "machineID": guest.node_name, "systemUUID": guest.node_name,
        },
    }})
}

fn healthy() -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "",
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    json!([
        condition("Ready", "True", "KubeletReady"),
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
    ])
}

/// The needed part of a cloud-config.
#[derive(Deserialize)]
struct CloudConfig {
    #[serde(default)]
    write_files: Vec<CloudConfigFile>,
}

#[derive(Deserialize)]
struct CloudConfigFile {
    path: String,
    #[serde(default)]
    content: String,
}

/// The needed part of a kubelet's configuration.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KubeletConfiguration {
    #[serde(default)]
    register_with_taints: Vec<Taint>,
}

/// The files that a cloud-config writes.
fn files_of(user_data: &[u8]) -> Result<Vec<CloudConfigFile>> {
    let text = std::str::from_utf8(user_data).context("the bootstrap data is not text")?;
    // cloud-init renders what begins with this as a template; nothing here refers to its variables.
    let text = text.strip_prefix("## template: jinja\n").unwrap_or(text);
    if !text.starts_with("#cloud-config") {
        bail!("the bootstrap data is no cloud-config");
    }
    let config: CloudConfig = serde_saphyr::from_str(text).context("reading the cloud-config")?;
    Ok(config.write_files)
}

/// The taints in the kubelet's configuration; none without a configuration.
fn taints_of(files: &[CloudConfigFile]) -> Result<Vec<Taint>> {
    let Some(file) = files.iter().find(|file| file.path == crate::KUBELET_CONFIG) else {
        return Ok(Vec::new());
    };
    let config: KubeletConfiguration =
        serde_saphyr::from_str(&file.content).context("reading the kubelet's configuration")?;
    Ok(config.register_with_taints)
}

/// The kubeconfig that a cloud-config writes for the kubelet.
fn kubeconfig_of(files: Vec<CloudConfigFile>) -> Result<String> {
    let is_kubeconfig = |file: &CloudConfigFile| file.path == crate::BOOTSTRAP_KUBECONFIG;
    let file = files.into_iter().find(is_kubeconfig);
    Ok(file
        .with_context(|| {
            format!(
                "the bootstrap data does not write {}",
                crate::BOOTSTRAP_KUBECONFIG
            )
        })?
        .content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_is_found_in_a_cloud_config() -> Result<()> {
        let user_data = "#cloud-config\nwrite_files:\n- path: /etc/motd\n  content: hello\n\
                         - path: /etc/kubernetes/bootstrap-kubelet.conf\n  content: |\n    kind: Config\n";
        assert_eq!(kubeconfig_of(files_of(user_data.as_bytes())?)?, "kind: Config\n");
        Ok(())
    }

    #[test]
    fn a_node_registers_with_the_taints_of_the_kubelets_configuration() -> Result<()> {
        let user_data = "#cloud-config\nwrite_files:\n- path: /var/lib/kubelet/config.yaml\n  content: \
                         |\n    registerWithTaints: [{key: k, effect: NoSchedule}]\n";
        let taints = taints_of(&files_of(user_data.as_bytes())?)?;
        let keys: Vec<_> = taints.iter().map(|taint| taint.key.as_str()).collect();
        assert_eq!(keys, ["k"]);
        assert!(taints_of(&[])?.is_empty());
        Ok(())
    }

    #[test]
    fn data_without_credentials_is_refused_with_the_reason() {
        let reason = |data: &[u8]| {
            files_of(data)
                .and_then(kubeconfig_of)
                .expect_err("there is no kubeconfig")
                .to_string()
        };
        assert_eq!(reason(b"#!/bin/sh\n"), "the bootstrap data is no cloud-config");
        let missing = "the bootstrap data does not write /etc/kubernetes/bootstrap-kubelet.conf";
        assert_eq!(reason(b"#cloud-config\nruncmd: [[reboot]]\n"), missing);
        assert_eq!(reason(&[0xff, 0xfe]), "the bootstrap data is not text");
    }
}
