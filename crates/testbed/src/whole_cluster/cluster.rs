//! The Cluster in the management cluster.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use management_cluster::node::is_ready;
use management_cluster::{ManagementCluster, eventually};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{sandbox::output, workload::Workload};

/// Name of the Cluster, from which clusterctl derives the other names.
pub const NAME: &str = "demo";

/// The pause between two looks at many objects, so that the test does not load the API servers.
const PACE: Duration = Duration::from_millis(500);

/// The Cluster.
pub struct Cluster<'a> {
    deadline: Duration,
    management: &'a ManagementCluster,
    kubeconfig: PathBuf,
    admin: Client,
    namespace: String,
}

/// A Machine that is a Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Name of the Machine and of the InfraMachine.
    pub machine: String,
    /// Name of its Node.
    pub node: String,
    /// The ProviderID of all three.
    pub provider_id: String,
    /// Whether it is part of the control plane.
    pub is_control_plane: bool,
    /// The Kubernetes version that its kubelet reports.
    pub version: String,
}

/// The members that a test waits for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The Kubernetes version of all.
    pub version: &'a str,
    /// Number of control-plane machines.
    pub control_planes: usize,
    /// Number of workers.
    pub workers: usize,
    /// A Machine that has to be replaced.
    pub without: Option<&'a str>,
}

impl<'a> Cluster<'a> {
    /// The Cluster in a namespace, which may not be there yet. Nothing is awaited longer than the deadline.
    pub async fn new(management: &'a ManagementCluster, namespace: &str, deadline: Duration) -> Result<Self> {
        Ok(Self {
            deadline,
            management,
            kubeconfig: management.admin_kubeconfig().to_owned(),
            admin: management.admin_client().await?,
            namespace: namespace.to_owned(),
        })
    }

    /// The same Cluster, when its objects are in the workload cluster itself.
    #[must_use]
    pub fn in_itself(&self, workload: &Workload) -> Self {
        Self {
            deadline: self.deadline,
            management: self.management,
            kubeconfig: workload.kubeconfig().to_owned(),
            admin: workload.client(),
            namespace: self.namespace.clone(),
        }
    }

    /// Moves the objects of the Cluster to another management cluster.
    pub fn move_to(&self, other: &Self) -> Result<()> {
        let mut clusterctl = self.management.clusterctl();
        let target = format!("--to-kubeconfig={}", other.kubeconfig.display());
        output(clusterctl.env("KUBECONFIG", &self.kubeconfig).args([
            "move",
            "--namespace",
            &self.namespace,
            &target,
        ]))?;
        Ok(())
    }

    /// kubectl, as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.management.kubectl();
        output(
            command
                .env("KUBECONFIG", &self.kubeconfig)
                .arg(format!("--namespace={}", self.namespace))
                .args(arguments),
        )
    }

    /// A client, as the administrator.
    pub fn client(&self) -> Client {
        self.admin.clone()
    }

    /// The workload cluster, when its API server answers on the endpoint.
    pub async fn workload(&self) -> Result<Workload> {
        let secrets = Api::<Secret>::namespaced(self.admin.clone(), &self.namespace);
        let secret = eventually(self.deadline, "the kubeconfig of the Cluster", async || {
            Ok(secrets.get(&format!("{NAME}-kubeconfig")).await?)
        })
        .await?;
        let value = secret.data.and_then(|mut data| data.remove("value"));
        let kubeconfig = String::from_utf8(value.context("the Secret has no value")?.0)?;
        let path = self.management.folder().path().join("workload.kubeconfig");
        fs::write(&path, &kubeconfig)?;
        let kubectl = &self.management.programs().kubectl;
        let workload = Workload::new(kubectl, path, self.deadline).await?;
        eventually(
            self.deadline,
            "an answer of the API server on the VIP",
            async || {
                sleep(PACE).await;
                workload.is_alive().await
            },
        )
        .await?;
        Ok(workload)
    }

    /// The ProviderIDs of the machines that are made.
    pub async fn provider_ids(&self) -> Result<Vec<String>> {
        let machines = self
            .of_provider("InfraMachine")
            .list(&ListParams::default())
            .await?
            .items;
        let id = |machine: &DynamicObject| machine.data["spec"]["providerID"].as_str().map(str::to_owned);
        Ok(machines.iter().filter_map(id).collect())
    }

    /// Waits until so many Machines are Ready Nodes of a version, and no other Machine is left.
    pub async fn members(&self, workload: &Workload, wanted: Wanted<'_>) -> Result<Vec<Member>> {
        eventually(self.deadline, &format!("{wanted:?}"), async || {
            sleep(PACE).await;
            let members = self.joined(workload).await?;
            let is_control_plane = |member: &&Member| member.is_control_plane;
            let control_planes = members.iter().filter(is_control_plane).count();
            let is_wanted = |member: &Member| {
                member.version == wanted.version && wanted.without != Some(member.machine.as_str())
            };
            ensure!(
                control_planes == wanted.control_planes
                    && members.len() == control_planes + wanted.workers
                    && members.iter().all(is_wanted),
                "{members:#?}"
            );
            self.is_settled().await?;
            Ok(members)
        })
        .await
    }

    /// The Machines, if each is a Ready Node with the ProviderID of its InfraMachine and an address of the
    /// Machine, which does not have the virtual IP of the control plane.
    async fn joined(&self, workload: &Workload) -> Result<Vec<Member>> {
        let machines = self.of_core("Machine").list(&ListParams::default()).await?.items;
        let nodes = workload.nodes().await?;
        ensure!(
            nodes.len() == machines.len(),
            "{} Machines and {} Nodes",
            machines.len(),
            nodes.len()
        );
        let cluster = self.of_core("Cluster").get(NAME).await?;
        let vip = &cluster.data["spec"]["controlPlaneEndpoint"]["host"];
        let mut members = Vec::new();
        for machine in &machines {
            members.push(self.member(machine, &nodes, vip).await?);
        }
        members.sort();
        Ok(members)
    }

    async fn member(&self, machine: &DynamicObject, nodes: &[Node], vip: &Value) -> Result<Member> {
        let name = machine.name_any();
        let phase = &machine.data["status"]["phase"];
        ensure!(phase == "Running", "{name} is {phase}");
        let node = &machine.data["status"]["nodeRef"]["name"];
        let node = nodes.iter().find(|candidate| *node == candidate.name_any());
        let node = node.with_context(|| format!("{name} has no Node"))?;
        ensure!(is_ready(node), "the Node {} is not Ready", node.name_any());
        let infra = self.of_provider("InfraMachine").get(&name).await?;
        let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        let provider_id = provider_id.with_context(|| format!("the Node of {name} has no ProviderID"))?;
        for promised in [
            &machine.data["spec"]["providerID"],
            &infra.data["spec"]["providerID"],
        ] {
            ensure!(
                *promised == json!(provider_id),
                "{name} is {promised}, and its Node {provider_id}"
            );
        }
        let address = internal_address(node).with_context(|| format!("the Node of {name} has no address"))?;
        let reported = &machine.data["status"]["addresses"];
        let has = |address: &Value| {
            let mut all = reported.as_array().into_iter().flatten();
            all.any(|reported| reported["address"] == *address)
        };
        ensure!(
            has(&json!(address)) && !has(vip),
            "{name} has {reported}, its Node {address}, and the control plane {vip}"
        );
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        Ok(Member {
            is_control_plane: machine.labels().contains_key("cluster.x-k8s.io/control-plane"),
            node: node.name_any(),
            machine: name,
            provider_id,
            version: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        })
    }

    /// Whether control plane and workers have as many machines as they want, up to date and available.
    async fn is_settled(&self) -> Result<()> {
        for objects in [self.control_planes(), self.of_core("MachineDeployment")] {
            let object = only(&objects).await?;
            let (wanted, status) = (&object.data["spec"]["replicas"], &object.data["status"]);
            let counts = [
                "replicas",
                "readyReplicas",
                "availableReplicas",
                "upToDateReplicas",
            ];
            let is_settled = counts.iter().all(|count| status[*count] == *wanted)
                && status["observedGeneration"] == json!(object.metadata.generation);
            ensure!(is_settled, "{} wants {wanted}: {status:#}", object.name_any());
        }
        Ok(())
    }

    /// Scales the control plane and the workers.
    pub fn scale(&self, control_planes: usize, workers: usize) -> Result<()> {
        for (object, replicas) in [
            (
                format!("kubeadmcontrolplane/{NAME}-control-plane"),
                control_planes,
            ),
            (format!("machinedeployment/{NAME}-md-0"), workers),
        ] {
            self.kubectl(&["scale", &object, &format!("--replicas={replicas}")])?;
        }
        Ok(())
    }

    /// Upgrades control plane and workers, with templates that name the image of the new version.
    pub async fn upgrade(&self, version: &str, image: &str) -> Result<()> {
        for name in ["control-plane", "md-0"] {
            self.template(&format!("{NAME}-{name}"), version, image).await?;
        }
        let new = |name: &str| json!({"infrastructureRef": {"name": format!("{NAME}-{name}-{version}")}});
        self.patch_control_plane(
            json!({"version": version, "machineTemplate": {"spec": new("control-plane")}}),
        )
        .await?;
        let mut workers = new("md-0");
        workers["version"] = json!(version);
        self.patch_workers(json!({"template": {"spec": workers}})).await
    }

    /// Upgrades a Cluster of a ClusterClass.
    pub async fn upgrade_topology(&self, version: &str) -> Result<()> {
        self.patch_topology(json!({"version": version})).await
    }

    /// Sets a variable of a Cluster of a ClusterClass.
    pub async fn set_variable(&self, name: &str, value: Value) -> Result<()> {
        let cluster = self.of_core("Cluster").get(NAME).await?;
        let mut variables = cluster.data["spec"]["topology"]["variables"].clone();
        let variable = variables
            .as_array_mut()
            .and_then(|all| all.iter_mut().find(|variable| variable["name"] == name));
        variable.with_context(|| format!("no variable {name}"))?["value"] = value;
        self.patch_topology(json!({"variables": variables})).await
    }

    async fn patch_topology(&self, topology: Value) -> Result<()> {
        patch(&self.of_core("Cluster"), NAME, json!({"topology": topology})).await
    }

    /// The Machine and the InfraMachine of a member, as they are now.
    pub async fn objects_of(&self, member: &Member) -> Result<[DynamicObject; 2]> {
        Ok([
            self.of_core("Machine").get(&member.machine).await?,
            self.of_provider("InfraMachine").get(&member.machine).await?,
        ])
    }

    /// A template like another one, with the image of a version.
    async fn template(&self, name: &str, version: &str, image: &str) -> Result<()> {
        let templates = self.of_provider("InfraMachineTemplate");
        let mut spec = templates.get(name).await?.data["spec"].clone();
        spec["template"]["spec"]["providerSpec"]["image"] = json!(image);
        let template = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
            "metadata": {"name": format!("{name}-{version}"), "namespace": self.namespace}, "spec": spec,
        });
        management_cluster::apply(&self.admin, template).await?;
        Ok(())
    }

    /// Lets a MachineHealthCheck replace control-plane machines whose Node is silent.
    pub async fn check_health(&self) -> Result<()> {
        let check = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
            "metadata": {"name": NAME, "namespace": self.namespace},
            "spec": {
                "clusterName": NAME,
                "selector": {"matchLabels": {"cluster.x-k8s.io/control-plane": ""}},
                "checks": {
                    "nodeStartupTimeoutSeconds": 0,
                    "unhealthyNodeConditions": [
                        {"type": "Ready", "status": "Unknown", "timeoutSeconds": 0},
                    ],
                },
            },
        });
        management_cluster::apply(&self.admin, check).await?;
        Ok(())
    }

    /// Removes the MachineHealthCheck: a computer that is busy with an upgrade can silence a Node.
    pub fn check_health_no_more(&self) -> Result<()> {
        self.kubectl(&["delete", "machinehealthcheck", NAME])?;
        Ok(())
    }

    /// Deletes the Cluster, and returns when all of its objects are gone.
    pub async fn delete(&self) -> Result<()> {
        self.kubectl(&["delete", "cluster", NAME, "--wait=false"])?;
        self.is_gone().await
    }

    /// Waits until all objects of the Cluster are gone.
    pub async fn is_gone(&self) -> Result<()> {
        eventually(self.deadline, "the end of the Cluster", async || {
            let kinds = "clusters,machines,infraclusters,inframachines,kubeadmcontrolplanes,kubeadmconfigs";
            let left = self.kubectl(&["get", kinds, "--output=name"])?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        })
        .await
    }

    /// The objects of the Cluster, for a failure.
    pub fn describe(&self) -> String {
        let kinds = "clusters,kubeadmcontrolplanes,machinedeployments,machines,inframachines";
        let objects = self.kubectl(&["get", kinds, "--output=wide"]);
        let events = self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
        let text = |shown: Result<String>| shown.unwrap_or_else(|error| format!("{error:#}"));
        format!("{}\n{}", text(objects), text(events))
    }

    async fn patch_control_plane(&self, spec: Value) -> Result<()> {
        let name = format!("{NAME}-control-plane");
        patch(&self.control_planes(), &name, spec).await
    }

    async fn patch_workers(&self, spec: Value) -> Result<()> {
        patch(&self.of_core("MachineDeployment"), &format!("{NAME}-md-0"), spec).await
    }

    fn control_planes(&self) -> Api<DynamicObject> {
        self.objects("controlplane.cluster.x-k8s.io", "v1beta2", "KubeadmControlPlane")
    }

    fn of_core(&self, kind: &str) -> Api<DynamicObject> {
        self.objects("cluster.x-k8s.io", "v1beta2", kind)
    }

    fn of_provider(&self, kind: &str) -> Api<DynamicObject> {
        self.objects("infrastructure.capcmi.io", "v1alpha1", kind)
    }

    fn objects(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.admin.clone(), &self.namespace, &resource)
    }
}

/// The only object of a kind. A ClusterClass gives it a random name.
async fn only(objects: &Api<DynamicObject>) -> Result<DynamicObject> {
    let found = objects.list(&ListParams::default()).await?.items;
    let count = found.len();
    let [object] = <[_; 1]>::try_from(found).map_err(|_| anyhow!("{count} objects in place of one"))?;
    Ok(object)
}

async fn patch(objects: &Api<DynamicObject>, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    objects.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn internal_address(node: &Node) -> Option<&String> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
    Some(&internal.address)
}
