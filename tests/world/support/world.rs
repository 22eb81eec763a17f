//! The management cluster, the workload cluster, and what a case does to them by hand.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use capcmi::admission::as_installed;
use capcmi::wall_clock;
use capcmi::workload_cluster::{Dial, network};
use cmi_simulated::{Clock, TimerClock};
use fake_apiserver::{FakeApiServer, Kind};
use futures::FutureExt as _;
use kube::Client;
use kube::api::DynamicObject;
use management_cluster::apply_yaml;
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing_subscriber::EnvFilter;

use super::core::Core;

/// The server in kubeconfigs of the workload cluster.
const WORKLOAD: &str = "https://workload.invalid";

/// A management cluster with one namespace, and a workload cluster, both in memory.
#[derive(Clone)]
pub struct World {
    /// The management cluster.
    pub management: FakeApiServer,
    /// The workload cluster of every Cluster.
    pub workload: FakeApiServer,
    /// The administrator.
    pub admin: Client,
    /// The namespace of the case.
    pub namespace: String,
    /// Files of the case.
    pub folder: PathBuf,
    clock: TimerClock,
    _folder: Arc<TempDir>,
    _core: Option<Arc<Core>>,
}

impl World {
    /// An empty world. Tokio's clock has to be paused: `#[tokio::test(start_paused = true)]`.
    pub async fn new(case: &str) -> Result<Self> {
        let world = Self::without_core(case).await?;
        let core = Core::start(world.management.client("core"));
        Ok(Self {
            _core: Some(Arc::new(core)),
            ..world
        })
    }

    /// A world without Cluster API's core, for cases with a [`super::Stage`]. Days pass quickly.
    pub async fn without_core(case: &str) -> Result<Self> {
        // RUST_LOG shows what a failed case did. Another case may have begun before.
        let logs = tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env());
        let _begun = logs.with_test_writer().try_init();
        wall_clock::follow_tokio();
        let folder = tempfile::tempdir().context("making the folder of the case")?;
        let management = FakeApiServer::new(management_kinds());
        let admin = management.client("admin");
        let world = Self {
            workload: FakeApiServer::new(workload_kinds()),
            namespace: case.to_owned(),
            folder: folder.path().to_owned(),
            clock: TimerClock::start(),
            _folder: Arc::new(folder),
            _core: None,
            management,
            admin,
        };
        world.make_namespace().await?;
        // A provider that ran before has left them.
        for policy in as_installed().context("printing the admission policies")? {
            management_cluster::apply(&world.admin, policy).await?;
        }
        Ok(world)
    }

    /// Another namespace of the same management cluster.
    pub async fn beside(&self, namespace: &str) -> Result<Self> {
        let mut beside = self.clone();
        namespace.clone_into(&mut beside.namespace);
        beside.make_namespace().await?;
        Ok(beside)
    }

    async fn make_namespace(&self) -> Result<()> {
        let metadata = json!({"name": self.namespace});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        management_cluster::apply(&self.admin, namespace).await?;
        Ok(())
    }

    /// The clock of simulated clouds.
    pub fn cloud_clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock)
    }

    /// The way to workload clusters: to the one in memory where the kubeconfig names it, and else over the
    /// network.
    pub fn dial(&self) -> Dial {
        let client = self.workload.client("provider");
        Arc::new(move |document| {
            if String::from_utf8_lossy(&document).contains(WORKLOAD) {
                let client = client.clone();
                return async move { Ok(client) }.boxed();
            }
            network()(document)
        })
    }

    /// Applies YAML, in which `$NS` stands for the namespace.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        apply_yaml(&self.admin, &yaml.replace("$NS", &self.namespace)).await
    }

    /// A Cluster with our InfraCluster, an initialized control plane, the kubeconfig of the workload cluster
    /// and bootstrap data.
    pub async fn cluster(&self, name: &str) -> Result<()> {
        self.cluster_with(name, json!({})).await
    }

    /// As [`World::cluster`], with this spec of the InfraCluster besides its endpoint.
    pub async fn cluster_with(&self, name: &str, mut spec: Value) -> Result<()> {
        spec["controlPlaneEndpoint"] = json!({"host": "127.0.0.1", "port": 6443});
        let metadata = json!({"name": name, "namespace": self.namespace});
        let infra = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
            "metadata": metadata, "spec": spec,
        });
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata,
            "spec": {"infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster",
            "name": name}},
        });
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {"name": format!("{name}-kubeconfig"), "namespace": self.namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": name}},
            "stringData": {"value": kubeconfig()},
        });
        let bootstrap = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {"name": "boot", "namespace": self.namespace},
            "stringData": {"value": "#cloud-config", "format": "cloud-config"},
        });
        for object in [infra, kubeconfig, bootstrap, cluster] {
            management_cluster::apply(&self.admin, object).await?;
        }
        Ok(())
    }
}

fn kubeconfig() -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "w",
        "clusters": [{"name": "w", "cluster": {"server": WORKLOAD}}],
        "users": [{"name": "w", "user": {"token": "t"}}],
        "contexts": [{"name": "w", "context": {"cluster": "w", "user": "w"}}],
    })
    .to_string()
}

fn management_kinds() -> Vec<Kind> {
    let (core, infra) = ("cluster.x-k8s.io/v1beta2", "infrastructure.capcmi.io/v1alpha1");
    let admission = "admissionregistration.k8s.io/v1";
    vec![
        Kind::new("v1", "Namespace", "namespaces").cluster_scoped(),
        Kind::new("v1", "Secret", "secrets").without_status(),
        Kind::new("v1", "ConfigMap", "configmaps").without_status(),
        Kind::new("events.k8s.io/v1", "Event", "events").without_status(),
        Kind::new("coordination.k8s.io/v1", "Lease", "leases").without_status(),
        Kind::new(
            admission,
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
        )
        .cluster_scoped(),
        Kind::new(
            admission,
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
        )
        .cluster_scoped()
        .without_status(),
        Kind::new(core, "Cluster", "clusters"),
        Kind::new(core, "Machine", "machines"),
        Kind::new(core, "MachineSet", "machinesets"),
        Kind::new(core, "MachineDeployment", "machinedeployments"),
        Kind::new(infra, "InfraMachine", "inframachines"),
        Kind::new(infra, "InfraMachineTemplate", "inframachinetemplates"),
        Kind::new(infra, "InfraCluster", "infraclusters"),
        Kind::new(infra, "InfraClusterTemplate", "infraclustertemplates"),
        Kind::new(infra, "InfraMachineRemediation", "inframachineremediations"),
        Kind::new(
            infra,
            "InfraMachineRemediationTemplate",
            "inframachineremediationtemplates",
        ),
    ]
}

fn workload_kinds() -> Vec<Kind> {
    vec![
        Kind::new("v1", "Node", "nodes").cluster_scoped(),
        Kind::new("v1", "Pod", "pods"),
        Kind::new("v1", "PersistentVolume", "persistentvolumes").cluster_scoped(),
        Kind::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        Kind::new("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments").cluster_scoped(),
        Kind::new("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ]
}
