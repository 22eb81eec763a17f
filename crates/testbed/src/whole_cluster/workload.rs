//! The workload cluster: its API server behind the VIP, its Nodes and its Pods.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use management_cluster::eventually;

use super::sandbox::output;

/// An answer that takes longer comes from a machine that is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// The workload cluster, as its administrator.
pub struct Workload {
    deadline: Duration,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    client: Client,
}

impl Workload {
    /// The cluster of a kubeconfig. Nothing is awaited longer than the deadline.
    ///
    /// # Errors
    /// When the kubeconfig can't be used.
    pub async fn new(kubectl: &Path, kubeconfig: PathBuf, deadline: Duration) -> Result<Self> {
        Ok(Self {
            deadline,
            kubectl: kubectl.to_owned(),
            client: Client::try_from(config(&kubeconfig).await?)?,
            kubeconfig,
        })
    }

    /// A client configuration whose requests end, also on a connection that leads nowhere.
    pub async fn config(&self) -> Result<Config> {
        config(&self.kubeconfig).await
    }

    /// A client of the cluster.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The file with the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Whether the API server answers on the VIP. With anonymous access, it answers before it has its roles.
    pub async fn is_alive(&self) -> Result<()> {
        let request = http::Request::get("/livez").body(Vec::new())?;
        // On a new connection, since an old one may lead to a machine that is gone.
        let client = Client::try_from(self.config().await?)?;
        let answer = client.request_text(request).await?;
        ensure!(answer == "ok", "{answer}");
        Ok(())
    }

    /// kubectl on the cluster.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.kubectl);
        output(command.env("KUBECONFIG", &self.kubeconfig).args(arguments))
    }

    /// Applies a file.
    pub fn apply(&self, file: &Path) -> Result<()> {
        self.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()])?;
        Ok(())
    }

    /// All Nodes.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let nodes = Api::<Node>::all(self.client.clone());
        Ok(nodes.list(&ListParams::default()).await?.items)
    }

    /// The Node whose kube-vip has the VIP.
    pub async fn holder_of_vip(&self) -> Result<String> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), "kube-system");
        let lease = leases.get("plndr-cp-lock").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        holder.context("nobody holds the VIP")
    }

    /// Waits until all replicas of a Deployment are available.
    pub async fn available(&self, namespace: &str, name: &str) -> Result<()> {
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        eventually(self.deadline, &format!("the Deployment {name}"), async || {
            let deployment = deployments.get(name).await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas);
            let status = deployment.status.unwrap_or_default();
            ensure!(status.available_replicas == wanted, "{status:?}");
            Ok(())
        })
        .await
    }

    /// Waits until a Pod has succeeded, and returns its Node and its output.
    pub async fn succeeded(&self, name: &str) -> Result<(String, String)> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "default");
        let pod = eventually(
            self.deadline,
            &format!("the success of the Pod {name}"),
            async || {
                let pod = pods.get(name).await?;
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                ensure!(phase == Some("Succeeded"), "{:?}", pod.status);
                Ok(pod)
            },
        )
        .await?;
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        Ok((node, self.kubectl(&["logs", name])?))
    }

    /// Checks that a Pod on the control plane reaches the Pod of a worker by the name of its Service. The Pod
    /// of the Service, with the label `app=hello`, stays.
    pub async fn reach_a_service(&self) -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/whole_cluster");
        self.apply(&folder.join("hello.yaml"))?;
        self.available("default", "hello").await?;
        self.apply(&folder.join("ask.yaml"))?;
        let (asked_on, answer) = self.succeeded("ask").await?;
        self.kubectl(&["delete", "pod", "ask"])?;
        let answered_on = self.node_of("app=hello").await?;
        ensure!(answer.starts_with("hello from hello-"), "{answer}");
        ensure!(asked_on != answered_on, "both Pods are on {asked_on}");
        Ok(())
    }

    /// The Node of the only Pod with a label.
    pub async fn node_of(&self, label: &str) -> Result<String> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "default");
        let pods = pods.list(&ListParams::default().labels(label)).await?.items;
        let [pod] = pods.as_slice() else {
            bail!("{} Pods have the label {label}", pods.len());
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        node.context("the Pod has no Node")
    }

    /// The Nodes and Pods, for a failure.
    pub fn describe(&self) -> String {
        let shown = self.kubectl(&["get", "nodes,pods", "--all-namespaces", "--output=wide"]);
        shown.unwrap_or_else(|error| format!("{error:#}"))
    }
}

async fn config(kubeconfig: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(PATIENCE);
    config.read_timeout = Some(PATIENCE);
    Ok(config)
}
