//! The management cluster.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, PostParams},
};
use tokio::sync::OnceCell;

use crate::{
    Process, Programs, Workload,
    api_server::{ApiServer, ApiServerOptions},
    apply::apply_yaml,
    controller_manager,
    core_manager::CoreManager,
    etcd::Etcd,
    ipam_in_cluster, kubeconfig,
    manager::Pace,
    run_folder::RunFolder,
    service_account, stand_in,
};

/// A running management cluster: etcd, kube-apiserver, kube-controller-manager and Cluster API's core
/// manager.
///
/// It belongs to no async runtime, so several runtimes may use it, also at the same time. All its programs
/// end when it is dropped or when the process ends.
#[derive(Debug)]
pub struct ManagementCluster {
    // Dropped in this order: a client goes before its server, and the folder goes last.
    core: CoreManager,
    ipam_in_cluster: OnceCell<Process>,
    workload: OnceCell<Workload>,
    _controller_manager: Process,
    api_server: ApiServer,
    etcd: Etcd,
    programs: Programs,
    folder: RunFolder,
}

/// The options of a management cluster; made by [`ManagementCluster::builder`].
#[derive(Debug, Clone)]
pub struct ManagementClusterBuilder {
    core: bool,
    pace: Pace,
    audit_log: bool,
    manifests: Vec<String>,
}

impl ManagementClusterBuilder {
    /// Whether Cluster API's core manager is started; its kinds are installed in any case. On by default.
    #[must_use]
    pub fn core(mut self, core: bool) -> Self {
        self.core = core;
        self
    }

    /// Whether Cluster API's core manager runs with `ReconcilerRateLimiting`. With it, core reconciles an
    /// object at most once a second, and only when its caches hold the writes of its last reconcile. On by
    /// default, as in Cluster API. Without it a manager is faster, and may act on caches that lack its latest
    /// writes.
    #[must_use]
    pub fn rate_limiting(mut self, rate_limiting: bool) -> Self {
        self.pace.rate_limiting = rate_limiting;
        self
    }

    /// The time after which Cluster API's managers reconcile an unchanged object again. Ten minutes by
    /// default, as in Cluster API. The kubeadm control plane provider watches nothing in a workload cluster:
    /// it notices only then, or after 15 to 20 s, that a control plane has become healthy.
    #[must_use]
    pub fn sync_period(mut self, period: Duration) -> Self {
        self.pace.sync_period = Some(period);
        self
    }

    /// Whether every request is recorded in [`ManagementCluster::audit_log`]. Off by default.
    #[must_use]
    pub fn audit_log(mut self, audit_log: bool) -> Self {
        self.audit_log = audit_log;
        self
    }

    /// Objects to apply as soon as the API server runs, as a YAML stream. Kinds defined here are
    /// known to the garbage collector from its start; it notices kinds that are defined later only
    /// after up to half a minute.
    #[must_use]
    pub fn manifests(mut self, yaml: impl Into<String>) -> Self {
        self.manifests.push(yaml.into());
        self
    }

    /// Starts the management cluster, after building missing programs.
    ///
    /// # Errors
    /// When a program cannot be built or does not become ready. All started programs are then ended, and the
    /// error has the end of the failed program's log.
    pub async fn start(self) -> Result<ManagementCluster> {
        let programs = Programs::find().await?;
        let folder = RunFolder::create()?;
        let cluster = self.start_in(programs, folder).await;
        cluster.context("starting a management cluster")
    }

    async fn start_in(self, programs: Programs, folder: RunFolder) -> Result<ManagementCluster> {
        let etcd = Etcd::start(&programs, &folder).await?;
        let audit_log = audit_log(&folder);
        let options = ApiServerOptions {
            name: "management",
            audit_log: self.audit_log.then_some(audit_log.as_path()),
            service_account_admission: true,
        };
        let api_server = ApiServer::start(&programs, &folder, &etcd, &options).await?;
        let client = api_server.admin_client().await?;
        let core = CoreManager::install(&programs, &folder, &client, self.pace).await?;
        for manifests in self
            .manifests
            .iter()
            .map(String::as_str)
            .chain([stand_in::DEFINITIONS])
        {
            apply_yaml(&client, manifests).await?;
        }
        let controller_manager = controller_manager::start(&programs, &folder, &api_server)?;
        if self.core {
            core.start(&folder, &api_server).await?;
        }
        let workload = OnceCell::new();
        Ok(ManagementCluster {
            core,
            ipam_in_cluster: OnceCell::new(),
            workload,
            _controller_manager: controller_manager,
            api_server,
            etcd,
            programs,
            folder,
        })
    }
}

impl ManagementCluster {
    /// A management cluster with core, without an audit log, unless configured otherwise.
    pub fn builder() -> ManagementClusterBuilder {
        ManagementClusterBuilder {
            core: true,
            pace: Pace {
                rate_limiting: true,
                sync_period: None,
            },
            audit_log: false,
            manifests: Vec::new(),
        }
    }

    /// The management cluster that all tests of a process share; the first call starts it, with `builder`.
    /// Tests keep out of each other's way by [`ManagementCluster::namespace`].
    ///
    /// # Errors
    /// As [`ManagementClusterBuilder::start`]; a later call tries again.
    pub async fn shared(builder: impl FnOnce() -> ManagementClusterBuilder) -> Result<&'static Self> {
        static SHARED: OnceCell<ManagementCluster> = OnceCell::const_new();
        SHARED.get_or_try_init(|| builder().start()).await
    }

    /// A client with all permissions, for the current runtime. It repeats no request.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used, which would be a fault of this crate.
    pub async fn admin_client(&self) -> Result<Client> {
        self.api_server.admin_client().await
    }

    /// The file with the administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.api_server.admin_kubeconfig
    }

    /// Address of the API server.
    pub fn url(&self) -> &str {
        &self.api_server.url
    }

    /// The API server's certificate authority, in PEM.
    pub fn authority(&self) -> &str {
        &self.api_server.authority
    }

    /// Writes a kubeconfig with a fresh token of a `ServiceAccount`, good for twelve hours.
    ///
    /// # Errors
    /// When there is no such `ServiceAccount`.
    pub async fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let document = service_account::kubeconfig(&self.api_server, namespace, name).await?;
        kubeconfig::write(
            self.folder.path().join(format!("{namespace}-{name}.kubeconfig")),
            &document,
        )
    }

    /// kubectl, as the administrator of the management cluster.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.programs.kubectl);
        command.env("KUBECONFIG", self.admin_kubeconfig());
        command
    }

    /// clusterctl, as the administrator of the management cluster. It reads no configuration of the user and
    /// makes no network requests.
    pub fn clusterctl(&self) -> Command {
        let mut command = Command::new(&self.programs.clusterctl);
        command
            .env("KUBECONFIG", self.admin_kubeconfig())
            .env("XDG_CONFIG_HOME", self.folder.path().join("clusterctl"))
            .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
            .env("GOPROXY", "off");
        command
    }

    /// Creates a namespace and returns its name, which starts with `prefix`.
    ///
    /// # Errors
    /// When the prefix is not fit for a name.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let namespaces: Api<Namespace> = Api::all(self.admin_client().await?);
        let namespace = Namespace {
            metadata: ObjectMeta {
                generate_name: Some(format!("{prefix}-")),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        Ok(created
            .with_context(|| format!("creating a namespace {prefix}-…"))?
            .name_any())
    }

    /// Applies a YAML stream of objects as the administrator; see [`crate::apply_yaml`].
    ///
    /// # Errors
    /// As those of [`crate::apply_yaml`].
    pub async fn apply_yaml(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        apply_yaml(&self.admin_client().await?, yaml).await
    }

    /// The workload cluster; the first call starts it.
    ///
    /// # Errors
    /// When its API server does not become ready; a later call tries again.
    pub async fn workload(&self) -> Result<&Workload> {
        let start = || Workload::start(&self.programs, &self.folder, &self.etcd);
        self.workload
            .get_or_try_init(start)
            .await
            .context("starting the workload cluster")
    }

    /// Installs and starts Cluster API's in-cluster IPAM provider for all namespaces, unless it runs, and
    /// returns when its webhooks are in effect. Builds it first if necessary. It has the permissions of its
    /// release.
    ///
    /// # Errors
    /// When it can't be built, installed or started; a later call tries again.
    pub async fn start_ipam_in_cluster(&self) -> Result<()> {
        let start = || ipam_in_cluster::start(self);
        self.ipam_in_cluster.get_or_try_init(start).await.map(drop)
    }

    /// Starts core, unless it runs, and returns when it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_core(&self) -> Result<()> {
        self.core.start(&self.folder, &self.api_server).await
    }

    /// Stops core, if it runs. Its webhooks are unregistered, so that objects can still be written.
    ///
    /// # Errors
    /// When the registrations cannot be removed.
    pub async fn stop_core(&self) -> Result<()> {
        self.core.stop(&self.api_server).await
    }

    /// Kills the API server with `SIGKILL`, if it runs. Its acknowledged writes are in etcd, which keeps
    /// running.
    pub async fn kill_api_server(&self) {
        self.api_server.kill().await;
    }

    /// Starts the API server again after [`ManagementCluster::kill_api_server`], unless it runs. Returns when
    /// it is ready. It has the same address, objects and credentials, so existing kubeconfigs and clients
    /// keep working.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_api_server(&self) -> Result<()> {
        self.api_server.revive(&self.folder).await
    }

    /// The requests to the API server as one JSON object a line (`audit.k8s.io/v1` at level `Metadata`), each
    /// written before its answer is sent. The file exists only with [`ManagementClusterBuilder::audit_log`].
    pub fn audit_log(&self) -> PathBuf {
        audit_log(&self.folder)
    }

    /// How often and how soon its managers reconcile.
    pub(crate) fn pace(&self) -> Pace {
        self.core.pace()
    }

    /// The folder of the run, with a log of each program. [`Process::start`] adds more.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Paths of the programs that it runs.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }
}

fn audit_log(folder: &RunFolder) -> PathBuf {
    folder.path().join("audit.log")
}
