//! The management cluster and one of its namespaces.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use capcmi_manifests as manifests;
use cmi_simulated::{Clock, WallClock};
use kube::Client;
use kube::api::DynamicObject;
use management_cluster::hollow_kubelet::HollowKubelet;
use management_cluster::{ManagementCluster, Process, apply_yaml, stand_in};
use serde_json::{Value, json};
use testbed::guests;
use tokio::sync::OnceCell;

use super::fleet::bootstrap_secret;
use super::{Cloud, LostMachines};

/// The management cluster of most cases.
static QUICK: SharedCluster = SharedCluster::const_new();
/// The management cluster for cases where core must see its own writes.
static RATE_LIMITED: SharedCluster = SharedCluster::const_new();

/// A management cluster that cases share, with the provider's manifests; it lives as long as the process.
struct SharedCluster(OnceCell<ManagementCluster>);

impl SharedCluster {
    const fn const_new() -> Self {
        Self(OnceCell::const_new())
    }

    async fn get(&self, rate_limiting: bool) -> Result<&ManagementCluster> {
        let start = async || {
            let management = ManagementCluster::builder()
                .manifests(testbed::definitions()?)
                .rate_limiting(rate_limiting)
                .audit_log(true)
                .start()
                .await?;
            testbed::install(&management).await?;
            anyhow::Ok(management)
        };
        self.0.get_or_try_init(start).await
    }
}

/// The management cluster of a case.
#[derive(Clone)]
pub enum Management {
    /// A shared one; it lives as long as the process.
    Shared(&'static ManagementCluster),
    /// A separate one. It ends with the case, since each running one slows the others.
    Own(Arc<ManagementCluster>),
}

impl Deref for Management {
    type Target = ManagementCluster;

    fn deref(&self) -> &ManagementCluster {
        match self {
            Self::Shared(management) => management,
            Self::Own(management) => management,
        }
    }
}

/// One namespace of a management cluster.
#[derive(Clone)]
pub struct World {
    /// The management cluster.
    pub management: Management,
    /// A client with the administrator's rights.
    pub admin: Client,
    /// The namespace of this case.
    pub namespace: String,
    /// Files of this case.
    pub folder: PathBuf,
    _lost_machines: Option<Arc<LostMachines>>,
}

impl World {
    /// Creates a separate namespace for a case.
    pub async fn new(case: &str) -> Result<Self> {
        let world = Self::shared(QUICK.get(false).await?, case).await?;
        let lost_machines = LostMachines::replaced_in(world.clone());
        Ok(Self {
            _lost_machines: Some(Arc::new(lost_machines)),
            ..world
        })
    }

    /// Creates a separate namespace for a case that needs a rate limited core. Core reconciles each object at
    /// most once a second, and waits until its caches contain its own writes. Without that, core may miss a
    /// MachineSet that it has just created, create another, and delete the Machine that should be updated in
    /// place.
    pub async fn rate_limited(case: &str) -> Result<Self> {
        Self::shared(RATE_LIMITED.get(true).await?, case).await
    }

    async fn shared(management: &'static ManagementCluster, case: &str) -> Result<Self> {
        let namespace = management.namespace(case).await?;
        Self::on(Management::Shared(management), &namespace).await
    }

    /// The same namespace on the management cluster of rate limited cases, as a target of `clusterctl move`,
    /// which creates the namespace. A rate limited case must move to [`Self::elsewhere`].
    pub async fn move_target(&self) -> Result<Self> {
        Self::on(Management::Shared(RATE_LIMITED.get(true).await?), &self.namespace).await
    }

    /// The same namespace on a new management cluster, which ends with the case. The caller creates the
    /// namespace. Core is rate limited there, and loses no Machine.
    pub async fn elsewhere(&self) -> Result<Self> {
        let builder = ManagementCluster::builder().manifests(&testbed::definitions()?);
        let management = builder.start().await?;
        testbed::install(&management).await?;
        Self::own(management, &self.namespace).await
    }

    /// A namespace on a management cluster with Cluster API but without the provider. The cluster ends with
    /// the case. The caller creates the namespace.
    pub async fn without_provider(namespace: &str) -> Result<Self> {
        Self::own(ManagementCluster::builder().start().await?, namespace).await
    }

    /// A namespace on a management cluster that ends with the case.
    pub async fn own(management: ManagementCluster, namespace: &str) -> Result<Self> {
        Self::on(Management::Own(Arc::new(management)), namespace).await
    }

    async fn on(management: Management, namespace: &str) -> Result<Self> {
        let folder = management.folder().path().join(namespace);
        std::fs::create_dir_all(&folder).context("making the folder of the case")?;
        Ok(Self {
            admin: management.admin_client().await?,
            management,
            namespace: namespace.to_owned(),
            folder,
            _lost_machines: None,
        })
    }

    /// The clock of simulated clouds.
    #[allow(clippy::unused_self)] // the worlds of `tests/world` have separate clocks
    pub fn cloud_clock(&self) -> Arc<dyn Clock> {
        Arc::new(WallClock)
    }

    /// The kubelets of a cloud's guests. All cases share one workload cluster, so the name of a VM that
    /// becomes a Node must be unique among all cases.
    #[allow(clippy::unused_self)] // the worlds of `tests/world` have separate clusters
    pub fn kubelets(&self, cloud: &Cloud) -> HollowKubelet {
        HollowKubelet::start(guests(cloud.journal()))
    }

    /// Applies YAML after it has replaced `$NS` with the namespace.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        apply_yaml(&self.admin, &yaml.replace("$NS", &self.namespace)).await
    }

    /// Creates a Cluster with our InfraCluster, an initialized control plane, the workload cluster and its
    /// bootstrap data.
    pub async fn cluster(&self, name: &str) -> Result<()> {
        self.cluster_with(name, json!({})).await
    }

    /// Like [`World::cluster`], with this spec of the InfraCluster in addition to its endpoint.
    pub async fn cluster_with(&self, name: &str, mut spec: Value) -> Result<()> {
        spec["controlPlaneEndpoint"] = json!({"host": "127.0.0.1", "port": 6443});
        let infra = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec,
        });
        management_cluster::apply(&self.admin, infra).await?;
        let infrastructure =
            json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": name});
        stand_in::create_cluster(
            &self.management,
            &self.namespace,
            name,
            json!({"infrastructureRef": infrastructure}),
        )
        .await?;
        bootstrap_secret(self, "boot").await
    }

    /// Moves the objects of the namespace with `clusterctl move`.
    pub fn move_to(&self, target: &Self) -> Result<()> {
        run(&mut self.clusterctl_move(target)?).map(drop)
    }

    /// Like [`World::move_to`], without waiting for the end.
    pub fn begin_move_to(&self, target: &Self) -> Result<Process> {
        let name = format!("{}-move", self.namespace);
        Process::start(self.management.folder(), &name, &self.clusterctl_move(target)?)
    }

    fn clusterctl_move(&self, target: &Self) -> Result<Command> {
        // clusterctl labels the objects that it installs, and moves only those. Cluster API was installed
        // without the label; the definitions of this provider already have it.
        let theirs = format!(
            "--selector={}!={}",
            manifests::PROVIDER_LABEL,
            manifests::PROVIDER
        );
        for world in [self, target] {
            let label = "clusterctl.cluster.x-k8s.io=";
            world.kubectl(&["label", "crd", &theirs, "--overwrite", label])?;
        }
        let mut clusterctl = self.management.clusterctl();
        clusterctl
            .args(["move", "--namespace", &self.namespace, "--to-kubeconfig"])
            .arg(target.management.admin_kubeconfig());
        Ok(clusterctl)
    }

    /// Runs kubectl as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.management.kubectl();
        run(command.args(["-n", &self.namespace]).args(arguments))
    }

    /// The namespace's Cluster API objects, by kind and name. Cluster-scoped objects belong to other cases.
    pub fn cluster_api_objects(&self) -> Result<Vec<String>> {
        let all = self.kubectl(&["get", "cluster-api", "-o", "name"])?;
        let is_namespaced = |name: &&str| !name.starts_with("extensionconfig.");
        Ok(all.lines().filter(is_namespaced).map(str::to_owned).collect())
    }
}

/// Runs a command and returns its output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}
