//! The machines that wait for a provider.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capcmi::api::labels::WATCH_FILTER;
use futures::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _};
use http::Method;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use management_cluster::ManagementCluster;
use serde::Deserialize;
use serde_json::{Value, json};

use super::http2::Connection;

/// The bootstrap data of every machine.
pub const BOOTSTRAP: &str = "#cloud-config\nruncmd: [\"kubeadm join\"]\n";
/// The longest time of the slowest run.
const DEADLINE: Duration = Duration::from_mins(30);
/// The pause before another request to an API server that can't be watched yet.
const RETRY: Duration = Duration::from_millis(100);
/// The number of machines that are made at a time.
const MAKING: usize = 64;

/// A namespace with a Cluster that is ready, for machines.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The value of the label for `--watch-filter`, if the machines carry one.
    pub namespace: String,
    /// The value of the label for `--watch-filter`, if they carry one.
    pub watch_filter: Option<String>,
}

#[derive(Deserialize)]
struct Made {
    metadata: MadeMetadata,
}

#[derive(Deserialize)]
struct MadeMetadata {
    uid: String,
}

impl Fleet {
    /// Makes the namespace, the Cluster, and the bootstrap Secret that all machines name.
    pub async fn found(
        management: &ManagementCluster,
        prefix: &str,
        watch_filter: Option<&str>,
    ) -> Result<Self> {
        let namespace = management.namespace(prefix).await?;
        let admin = management.admin_client().await?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": namespace},
            "stringData": {"value": BOOTSTRAP, "format": "cloud-config"},
        });
        management_cluster::apply(&admin, secret).await?;
        let clusters = objects(&admin, &namespace, "Cluster");
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "bench"},
            "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}},
        });
        clusters
            .create(&PostParams::default(), &serde_json::from_value(cluster)?)
            .await
            .context("making the Cluster")?;
        let status = Patch::Merge(json!({"status": {"initialization": {"infrastructureProvisioned": true}}}));
        clusters
            .patch_status("bench", &PatchParams::default(), &status)
            .await
            .context("marking the Cluster ready")?;
        Ok(Self {
            namespace,
            watch_filter: watch_filter.map(str::to_owned),
        })
    }

    /// Makes so many Machines and InfraMachines, named from `<prefix>-000000` on, over one connection.
    pub async fn create(&self, management: &ManagementCluster, prefix: &str, size: usize) -> Result<()> {
        let connection = Connection::open(management.admin_kubeconfig()).await?;
        futures::stream::iter((0..size).map(Ok))
            .try_for_each_concurrent(MAKING, async |index| {
                self.create_one(&connection, &name(prefix, index)).await
            })
            .await
    }

    /// Makes one machine.
    pub async fn create_one(&self, connection: &Connection, name: &str) -> Result<()> {
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "bench"}},
            "spec": {
                "clusterName": "bench", "bootstrap": {"dataSecretName": "boot"},
                "infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine",
                "name": name},
            },
        });
        let made = connection
            .write_and_read(Method::POST, &self.path_of_machines(), &machine)
            .await?;
        let made: Made = serde_json::from_slice(&made).context("reading a Machine")?;
        let mut owned = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": {
                "name": name, "labels": {"cluster.x-k8s.io/cluster-name": "bench"},
                "ownerReferences": [{
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
                    "uid": made.metadata.uid, "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {"driver": "simulated", "providerSpec": {"vmPool": "default", "size": "small"}},
        });
        if let Some(value) = &self.watch_filter {
            owned["metadata"]["labels"][WATCH_FILTER] = json!(value);
        }
        connection
            .write(Method::POST, &self.path_of_infra_machines(), &owned)
            .await
    }

    /// Gives these Machines with the prefix `m` Nodes, which report.
    pub async fn join_nodes(&self, connection: &Connection, indices: Range<usize>) -> Result<()> {
        let reporting = indices.map(|index| self.node_reports(connection, index, "True"));
        futures::stream::iter(reporting)
            .buffer_unordered(MAKING)
            .try_collect()
            .await
    }

    /// Sets whether the Node of a Machine reports.
    pub async fn node_reports(&self, connection: &Connection, index: usize, status: &str) -> Result<()> {
        let name = name("m", index);
        let path = format!("{}/{name}/status", self.path_of_machines());
        let condition = json!({
            "type": "NodeHealthy", "status": status, "reason": "Bench", "message": "",
            "lastTransitionTime": jiff::Timestamp::now().to_string(),
        });
        let status = json!({"status": {"nodeRef": {"name": name}, "conditions": [condition]}});
        patch(connection, &path, &status).await
    }

    /// Returns the path of the Machines.
    fn path_of_machines(&self) -> String {
        format!(
            "/apis/cluster.x-k8s.io/v1beta2/namespaces/{}/machines",
            self.namespace
        )
    }

    /// Returns the path of the InfraMachines.
    pub fn path_of_infra_machines(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/infrastructure.capcmi.io/v1alpha1/namespaces/{namespace}/inframachines")
    }

    /// Waits until this number of machines is provisioned. The watch parses only a small part of each object.
    pub async fn provisioned(&self, admin: &Client, size: usize) -> Result<()> {
        let mut done = HashSet::new();
        let wait = async {
            while done.len() < size {
                self.watch(admin, &mut done, size).await?;
            }
            Ok(())
        };
        let ended: Result<Result<()>, _> = tokio::time::timeout(DEADLINE, wait).await;
        ended.unwrap_or_else(|_elapsed| {
            bail!("only {} of {size} are provisioned in time", done.len());
        })
    }

    /// Watches all objects until so many are provisioned or the API server ends the watch.
    async fn watch(&self, admin: &Client, done: &mut HashSet<String>, size: usize) -> Result<()> {
        let path = format!(
            "{}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            self.path_of_infra_machines()
        );
        let request = http::Request::get(path).body(Vec::new())?;
        let stream = match admin.request_stream(request).await {
            Ok(stream) => stream,
            // The API server was just started, and fills its watch cache.
            Err(kube::Error::Api(status)) if status.code == 429 => {
                tokio::time::sleep(RETRY).await;
                return Ok(());
            }
            Err(error) => return Err(error).context("watching the machines"),
        };
        let mut lines = std::pin::pin!(stream.lines());
        while let Some(line) = lines.next().await {
            // A connection that breaks off ends this watch, and the caller begins another.
            let Ok(line) = line else { return Ok(()) };
            if !line.contains(r#""provisioned":true"#) {
                continue;
            }
            let seen: Seen = serde_json::from_str(&line).context("reading a machine")?;
            done.insert(seen.object.metadata.name);
            if done.len() == size {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The parts of a watch's line that are needed.
#[derive(Deserialize)]
struct Seen {
    object: SeenObject,
}

#[derive(Deserialize)]
struct SeenObject {
    metadata: SeenMetadata,
}

#[derive(Deserialize)]
struct SeenMetadata {
    name: String,
}

/// Returns the name of a machine.
pub fn name(prefix: &str, index: usize) -> String {
    format!("{prefix}-{index:06}")
}

/// Patches a machine's object, as an administrator.
pub async fn patch(connection: &Connection, path: &str, changes: &Value) -> Result<()> {
    connection
        .write(Method::PATCH, &format!("{path}?fieldManager=bench"), changes)
        .await
}

fn objects(admin: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind));
    Api::namespaced_with(admin.clone(), namespace, &resource)
}
