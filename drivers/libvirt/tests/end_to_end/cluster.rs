//! A Cluster whose machines are VMs of the lab, and the observations of a test.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::identity::SCHEME;
use cmi_driver::HostedId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::{Client, ResourceExt as _};
use management_cluster::hollow_kubelet::HollowKubelet;
use management_cluster::{ManagementCluster, eventually, stand_in};
use serde_json::{Value, json};
use testbed::{Launch, Launched};
use tokio::sync::OnceCell;

use crate::hosts::Hosts;
use crate::lab::{DEADLINE, Lab};
use crate::plugin::Plugin;

/// How long the health check lets a machine be without a VM, seconds: longer than it takes to make one.
const PATIENCE: u32 = 30;
/// Name of the Secret with the bootstrap data.
const BOOTSTRAP: &str = "boot";
static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// A Cluster with its own provider, driver and MachineDeployment, which has the Cluster's name.
pub struct Cluster {
    name: String,
    namespace: String,
    admin: Client,
    bootstrap_data: String,
    workload: Client,
    _kubelets: HollowKubelet,
    _provider: Launched,
    _plugin: Plugin,
}

/// The VM of a machine, once it has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Name of the Machine, of the InfraMachine and of the Node.
    pub machine: String,
    /// Name of the template that it was made from.
    pub template: String,
    /// `libvirt://HOST/UUID`.
    pub provider_id: String,
    /// The host of the ProviderID.
    pub host: String,
    /// The UUID of the ProviderID.
    pub uuid: String,
    /// The status's failure domain.
    pub failure_domain: String,
    /// Its address on the host's network.
    pub address: String,
}

impl Vm {
    /// Reads the VM from the status and providerID of an InfraMachine.
    pub fn of(machine: &DynamicObject) -> Option<Self> {
        let text = |pointer: &str| machine.data.pointer(pointer)?.as_str().map(str::to_owned);
        let provider_id = text("/spec/providerID")?;
        let id = HostedId::parse(SCHEME, &provider_id).ok()?;
        let addresses = machine.data.pointer("/status/addresses")?.as_array()?;
        let internal = addresses.iter().find(|address| address["type"] == "InternalIP")?;
        let template = "cluster.x-k8s.io/cloned-from-name";
        Some(Self {
            machine: machine.name_any(),
            template: machine.annotations().get(template)?.clone(),
            host: id.host,
            uuid: id.uuid.to_string(),
            provider_id,
            failure_domain: text("/status/failureDomain")?,
            address: internal["address"].as_str()?.to_owned(),
        })
    }
}

impl Cluster {
    /// Makes it without machines. The driver has this configuration.
    pub async fn start(lab: &Lab, name: &str, config: &Value) -> Result<Self> {
        let definitions = testbed::definitions()?;
        let management =
            ManagementCluster::shared(|| ManagementCluster::builder().manifests(&definitions)).await?;
        INSTALLED.get_or_try_init(|| testbed::install(management)).await?;
        let namespace = management.namespace(name).await?;
        let folder = management.folder().path().join(&namespace);
        fs::create_dir_all(&folder)?;
        let plugin = Plugin::start(management, &namespace, &folder, config).await?;
        let drivers = folder.join("drivers.yaml");
        fs::write(&drivers, plugin.drivers())?;
        let launch = Launch {
            binary: testbed::program("capcmi-manager")?,
            name: format!("{namespace}-provider"),
            drivers,
            kubeconfig: testbed::service_account(management).await?,
            flags: [
                "--insecure-diagnostics",
                "--inventory-interval=5s",
                "--log-level=debug",
            ]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("--namespace={namespace}")])
            .collect(),
        };
        let mut provider = launch.start(management)?;
        provider.ready(DEADLINE).await?;
        let admin = management.admin_client().await?;
        let workload = management.workload().await?;
        let machines = Api::namespaced(admin.clone(), &namespace);
        let cluster = Self {
            name: name.to_owned(),
            bootstrap_data: workload.bootstrap_data()?,
            workload: workload.admin_client().await?,
            _kubelets: HollowKubelet::start(Hosts::of(lab).guests(machines)?),
            _provider: provider,
            _plugin: plugin,
            namespace,
            admin,
        };
        cluster.create(management).await?;
        Ok(cluster)
    }

    async fn create(&self, management: &ManagementCluster) -> Result<()> {
        let (name, namespace) = (&self.name, &self.namespace);
        self.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {"name": BOOTSTRAP},
            "stringData": {"value": self.bootstrap_data, "format": "cloud-config"},
        }))
        .await?;
        self.apply(json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
            "metadata": {"name": name},
            "spec": {"driver": "libvirt", "controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}},
        }))
        .await?;
        let infrastructure =
            json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": name});
        let spec = json!({"infrastructureRef": infrastructure});
        stand_in::create_cluster(management, namespace, name, spec).await?;
        Ok(())
    }

    async fn apply(&self, mut object: Value) -> Result<()> {
        object["metadata"]["namespace"] = json!(self.namespace);
        management_cluster::apply(&self.admin, object).await?;
        Ok(())
    }

    fn of_core(&self, kind: &str) -> Api<DynamicObject> {
        objects(&self.admin, &self.namespace, "cluster.x-k8s.io/v1beta2", kind)
    }

    fn infra_machines(&self) -> Api<DynamicObject> {
        let version = "infrastructure.capcmi.io/v1alpha1";
        objects(&self.admin, &self.namespace, version, "InfraMachine")
    }

    /// What guests are to read.
    pub fn bootstrap_data(&self) -> &str {
        &self.bootstrap_data
    }

    /// The failure domains that Cluster API may choose from.
    pub async fn failure_domains(&self) -> Result<Vec<String>> {
        eventually(DEADLINE, "failure domains of the Cluster", async || {
            let cluster = self.of_core("Cluster").get(&self.name).await?;
            let domains = cluster.data["status"]["failureDomains"].as_array().cloned();
            let domains = domains.with_context(|| format!("{:#}", cluster.data["status"]))?;
            let names = domains.iter().filter_map(|domain| domain["name"].as_str());
            let mut names: Vec<_> = names.map(str::to_owned).collect();
            names.sort();
            Ok(names)
        })
        .await
    }

    /// A template of small machines, with a change of their provider spec.
    pub async fn template(&self, name: &str, change: Value) -> Result<()> {
        let mut provider_spec = json!({"vmPool": "default", "size": "small"});
        if let (Some(spec), Value::Object(change)) = (provider_spec.as_object_mut(), change) {
            spec.extend(change);
        }
        let spec = json!({"driver": "libvirt", "providerSpec": provider_spec, "shutdownTimeoutSeconds": 60});
        self.apply(json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
            "metadata": {"name": name}, "spec": {"template": {"spec": spec}},
        }))
        .await
    }

    /// The MachineDeployment, which replaces a machine before it makes another.
    pub async fn deployment(&self, template: &str, replicas: usize) -> Result<()> {
        let template = json!({"spec": {
            "clusterName": self.name,
            "bootstrap": {"dataSecretName": BOOTSTRAP},
            "infrastructureRef": {
                "apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachineTemplate", "name": template,
            },
            // Nothing runs on the Nodes of kubelets that are stand-ins.
            "deletion": {"nodeDeletionTimeoutSeconds": 10, "nodeDrainTimeoutSeconds": 5},
        }});
        self.apply(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": self.name},
            "spec": {
                "clusterName": self.name, "replicas": replicas, "template": template,
                "rollout": {"strategy": {
                    "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
                }},
            },
        }))
        .await
    }

    /// Has as many machines.
    pub async fn scale(&self, replicas: usize) -> Result<()> {
        self.patch_deployment(json!({"replicas": replicas})).await
    }

    /// Has machines of another template.
    pub async fn roll_out(&self, template: &str) -> Result<()> {
        self.patch_deployment(json!({"template": {"spec": {"infrastructureRef": {"name": template}}}}))
            .await
    }

    async fn patch_deployment(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.of_core("MachineDeployment")
            .patch(&self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Waits until as many Machines, and no others, are Running, each with a Node that has its ProviderID.
    pub async fn running(&self, count: usize) -> Result<Vec<Vm>> {
        eventually(DEADLINE, &format!("{count} Running Machines"), async || {
            let machines = self.of_core("Machine").list(&ListParams::default()).await?.items;
            let phases: Vec<_> = machines
                .iter()
                .map(|machine| machine.data["status"]["phase"].as_str().unwrap_or_default())
                .collect();
            let infra = self.infra_machines().list(&ListParams::default()).await?.items;
            let vms: Vec<_> = infra.iter().filter_map(Vm::of).collect();
            ensure!(
                phases == vec!["Running"; count] && infra.len() == count && vms.len() == count,
                "the Machines are {phases:?}, their VMs {vms:#?}, what the provider says {:#?}",
                infra.iter().map(ready).collect::<Vec<_>>()
            );
            let nodes: Api<Node> = Api::all(self.workload.clone());
            for vm in &vms {
                let node = nodes.get(&vm.machine).await?;
                let id = node.spec.and_then(|spec| spec.provider_id);
                ensure!(id.as_ref() == Some(&vm.provider_id), "the Node has the id {id:?}");
            }
            Ok(vms)
        })
        .await
    }

    /// As [`Cluster::running`], with all of them made from one template.
    pub async fn running_of(&self, template: &str, count: usize) -> Result<Vec<Vm>> {
        eventually(DEADLINE, &format!("machines of {template}"), async || {
            let vms = self.running(count).await?;
            ensure!(vms.iter().all(|vm| vm.template == template), "{vms:#?}");
            Ok(vms)
        })
        .await
    }

    /// Makes a MachineHealthCheck of InfrastructureReady, and returns when it has looked.
    pub async fn health_check(&self) -> Result<()> {
        let conditions = ["False", "Unknown"].map(
            |status| json!({"type": "InfrastructureReady", "status": status, "timeoutSeconds": PATIENCE}),
        );
        self.apply(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
            "metadata": {"name": "check"},
            "spec": {
                "clusterName": self.name,
                "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": self.name}},
                "checks": {"unhealthyMachineConditions": conditions},
            },
        }))
        .await?;
        eventually(DEADLINE, "a health check that has looked", async || {
            let check = self.of_core("MachineHealthCheck").get("check").await?;
            let status = &check.data["status"];
            ensure!(
                status["currentHealthy"] == 2 && status["expectedMachines"] == 2,
                "{status:#}"
            );
            Ok(())
        })
        .await
    }

    /// Sets the Ready condition of a Node to Unknown. The node lifecycle controller does this for a silent
    /// kubelet, but the workload cluster has no such controller.
    pub async fn lose_node(&self, vm: &Vm) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let silent = json!({"status": {"conditions": [{
            "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "",
            "lastTransitionTime": now,
        }]}});
        Api::<Node>::all(self.workload.clone())
            .patch_status(&vm.machine, &PatchParams::default(), &Patch::Strategic(silent))
            .await?;
        Ok(())
    }

    /// Deletes the Cluster with its machines, and waits until it is gone.
    pub async fn delete(&self) -> Result<()> {
        let clusters = self.of_core("Cluster");
        clusters.delete(&self.name, &DeleteParams::default()).await?;
        eventually(DEADLINE, "the end of the Cluster", async || {
            let infra = self.infra_machines().list(&ListParams::default()).await?.items;
            let left: Vec<_> = infra.iter().map(ready).collect();
            ensure!(
                clusters.get_opt(&self.name).await?.is_none(),
                "it is there, with {left:#?}"
            );
            Ok(())
        })
        .await
    }
}

/// Returns the provider's Ready condition of a machine.
fn ready(machine: &DynamicObject) -> Value {
    let conditions = machine.data["status"]["conditions"].as_array();
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready");
    json!({machine.name_any(): ready})
}

fn objects(client: &Client, namespace: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}
