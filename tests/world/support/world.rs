//! The management cluster and the workload cluster of a case, both in memory.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use capcmi::admission::as_installed;
use capcmi::api::wall_clock;
use capcmi::nodes::workload_cluster::{Dial, network};
use cmi_simulated::{Clock, TimerClock};
use fake_apiserver::{Call, FakeApiServer, Fate, Kind};
use futures::FutureExt as _;
use kube::Client;
use kube::api::DynamicObject;
use management_cluster::apply_yaml;
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing_subscriber::EnvFilter;

use super::core::Core;
use super::plugin::Plugins;

/// The server in kubeconfigs of the workload cluster.
const WORKLOAD: &str = "https://workload.invalid";
/// The server of a workload cluster that accepts requests and never answers.
const SILENT: &str = "https://silent.invalid";

/// A management cluster with one namespace, and a workload cluster, both in memory.
#[derive(Clone)]
pub struct World {
    /// The management cluster.
    pub management: FakeApiServer,
    /// The workload cluster of every Cluster.
    pub workload: FakeApiServer,
    /// A workload cluster that never answers; see [`World::silent_kubeconfig`].
    pub silent: FakeApiServer,
    /// A client with the administrator's rights.
    pub admin: Client,
    /// The namespace of the case.
    pub namespace: String,
    /// Files of the case.
    pub folder: PathBuf,
    /// The listening plugins, by endpoint.
    pub plugins: Plugins,
    clock: TimerClock,
    _folder: Arc<TempDir>,
    _core: Option<Arc<Core>>,
}

impl World {
    /// An empty world. It requires tokio's paused clock: `#[tokio::test(start_paused = true)]`.
    pub async fn new(case: &str) -> Result<Self> {
        let world = Self::without_core(case).await?;
        let core = Core::start(&world.management, &world.workload);
        Ok(Self {
            _core: Some(Arc::new(core)),
            ..world
        })
    }

    /// A world without Cluster API's core, for cases with a [`super::Stage`]. Days pass quickly there.
    pub async fn without_core(case: &str) -> Result<Self> {
        // With RUST_LOG, the log of a failed case is visible. Another case may have set it up already.
        let logs = tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env());
        let _begun = logs.with_test_writer().try_init();
        wall_clock::follow_tokio();
        let folder = tempfile::tempdir().context("making the folder of the case")?;
        let (management, workload) = (
            FakeApiServer::new(management_kinds()),
            FakeApiServer::new(workload_kinds()),
        );
        let world = Self {
            silent: FakeApiServer::new([]),
            namespace: case.to_owned(),
            folder: folder.path().to_owned(),
            plugins: Plugins::default(),
            clock: TimerClock::start(),
            _folder: Arc::new(folder),
            _core: None,
            admin: management.client("admin"),
            management,
            workload,
        };
        world.prepare().await?;
        Ok(world)
    }

    /// The same namespace in another management cluster, with the same workload cluster.
    pub async fn elsewhere(&self) -> Result<Self> {
        let management = FakeApiServer::new(management_kinds());
        let world = Self {
            admin: management.client("admin"),
            _core: Some(Arc::new(Core::start(&management, &self.workload))),
            management,
            ..self.clone()
        };
        world.prepare().await?;
        Ok(world)
    }

    /// Creates the namespace, and the admission policies of an earlier provider.
    async fn prepare(&self) -> Result<()> {
        self.make_namespace().await?;
        for policy in as_installed().context("printing the admission policies")? {
            management_cluster::apply(&self.admin, policy).await?;
        }
        Ok(())
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

    /// Waits for the next write to the management cluster.
    pub fn next_write(&self) -> impl Future<Output = ()> + use<> {
        let (management, version) = (self.management.clone(), self.management.version());
        async move { management.written_after(version).await }
    }

    /// The clock of simulated clouds.
    pub fn cloud_clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock)
    }

    /// Connects a provider to the workload clusters in memory, and to others over the network. `fate` decides
    /// about each request to [`World::workload`].
    pub fn dial(&self, fate: impl Fn(&Call) -> Fate + Clone + Send + Sync + 'static) -> Dial {
        let client = |service| Client::new(service, "default");
        let workload = client(self.workload.service("provider", fate));
        let silent = client(self.silent.service("provider", |_| Fate::Lost));
        Arc::new(move |document| {
            let text = String::from_utf8_lossy(&document);
            let known = [(WORKLOAD, &workload), (SILENT, &silent)];
            match known.into_iter().find(|(server, _)| text.contains(server)) {
                Some((_, client)) => {
                    let client = client.clone();
                    async move { Ok(client) }.boxed()
                }
                None => network()(document),
            }
        })
    }

    /// The kubeconfig of the workload cluster.
    pub fn workload_kubeconfig() -> String {
        kubeconfig(&json!({"server": WORKLOAD}), &json!({"token": "t"}))
    }

    /// The kubeconfig of a workload cluster that never answers.
    pub fn silent_kubeconfig() -> String {
        kubeconfig(&json!({"server": SILENT}), &json!({"token": "t"}))
    }

    /// Writes the Secret with the kubeconfig of a Cluster.
    pub async fn kubeconfig_secret(&self, cluster: &str, kubeconfig: &str) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {"name": format!("{cluster}-kubeconfig"), "namespace": self.namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": cluster}},
            "stringData": {"value": kubeconfig},
        });
        management_cluster::apply(&self.admin, secret).await.map(drop)
    }

    /// Applies YAML after it has replaced `$NS` with the namespace.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        apply_yaml(&self.admin, &yaml.replace("$NS", &self.namespace)).await
    }

    /// Creates a Cluster with our InfraCluster, an initialized control plane, the workload cluster's
    /// kubeconfig and bootstrap data.
    pub async fn cluster(&self, name: &str) -> Result<()> {
        self.cluster_with(name, json!({})).await
    }

    /// Like [`World::cluster`], with this spec of the InfraCluster in addition to its endpoint.
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
        let bootstrap = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {"name": "boot", "namespace": self.namespace},
            "stringData": {"value": "#cloud-config", "format": "cloud-config"},
        });
        self.kubeconfig_secret(name, &Self::workload_kubeconfig()).await?;
        for object in [infra, bootstrap, cluster] {
            management_cluster::apply(&self.admin, object).await?;
        }
        Ok(())
    }
}

/// A kubeconfig with this cluster and this user.
pub fn kubeconfig(cluster: &Value, user: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "w",
        "clusters": [{"name": "w", "cluster": cluster}],
        "users": [{"name": "w", "user": user}],
        "contexts": [{"name": "w", "context": {"cluster": "w", "user": "w"}}],
    })
    .to_string()
}

/// The API of kubeadm's bootstrap provider.
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";

fn management_kinds() -> Vec<Kind> {
    let (core, infra) = ("cluster.x-k8s.io/v1beta2", "infrastructure.capcmi.io/v1alpha1");
    let (admission, ipam) = ("admissionregistration.k8s.io/v1", "ipam.cluster.x-k8s.io/v1beta2");
    let mcm = "machine.sapcloud.io/v1alpha1";
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
        Kind::new(ipam, "IPAddressClaim", "ipaddressclaims"),
        Kind::new(ipam, "IPAddress", "ipaddresses").without_status(),
        Kind::new(core, "Cluster", "clusters"),
        Kind::new(core, "Machine", "machines"),
        Kind::new(core, "MachineSet", "machinesets"),
        Kind::new(core, "MachineDeployment", "machinedeployments"),
        Kind::new(core, "MachineHealthCheck", "machinehealthchecks"),
        Kind::new(core, "MachineDrainRule", "machinedrainrules").without_status(),
        Kind::new(BOOTSTRAP, "KubeadmConfig", "kubeadmconfigs"),
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
        Kind::new(mcm, "Machine", "machines"),
        Kind::new(mcm, "MachineSet", "machinesets"),
        Kind::new(mcm, "MachineDeployment", "machinedeployments"),
        Kind::new(mcm, "MachineClass", "machineclasses").without_status(),
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
