//! A MachineDeployment of InfraMachines, and its state.

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use super::{DEADLINE, World};

/// A MachineDeployment, its template, and the Cluster around them.
pub struct Fleet<'a> {
    world: &'a World,
    /// Name of the Cluster and of the MachineDeployment.
    pub name: String,
}

impl<'a> Fleet<'a> {
    /// Makes Cluster, template and MachineDeployment.
    pub async fn create(world: &'a World, name: &str, replicas: u32) -> Result<Self> {
        world.cluster(name).await?;
        let fleet = Self::of(world, name);
        fleet
            .template(
                &format!("{name}-1"),
                json!({"vmPool": "default", "size": "small", "tags": {"team": "a"}}),
            )
            .await?;
        fleet.deployment(&format!("{name}-1"), replicas).await?;
        Ok(fleet)
    }

    /// The fleet in a Cluster that the caller creates.
    pub fn of(world: &'a World, name: &str) -> Self {
        Self {
            world,
            name: name.to_owned(),
        }
    }

    /// The fleet's world.
    pub fn world(&self) -> &World {
        self.world
    }

    /// Creates a template for the simulated driver.
    pub async fn template(&self, name: &str, provider_spec: Value) -> Result<()> {
        let spec = json!({"driver": "simulated", "providerSpec": provider_spec, "shutdownTimeoutSeconds": 0});
        self.template_with(name, spec).await
    }

    /// Creates a template with this spec of InfraMachines.
    pub async fn template_with(&self, name: &str, spec: Value) -> Result<()> {
        let template = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
            "metadata": {"name": name, "namespace": self.world.namespace},
            "spec": {"template": {"spec": spec}},
        });
        management_cluster::apply(&self.world.admin, template).await?;
        Ok(())
    }

    /// Creates the MachineDeployment from this template.
    pub async fn deployment(&self, template: &str, replicas: u32) -> Result<()> {
        self.deployment_with(template, replicas, &json!({})).await
    }

    /// Creates the MachineDeployment, changed by a merge patch.
    pub async fn deployment_with(&self, template: &str, replicas: u32, patch: &Value) -> Result<()> {
        let mut deployment = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": self.name, "namespace": self.world.namespace},
            "spec": {
                "clusterName": self.name, "replicas": replicas,
                "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1,
                "maxUnavailable": 0}}},
                "template": {"spec": {
                    "clusterName": self.name,
                    "bootstrap": {"dataSecretName": "boot"},
                    "infrastructureRef": {"apiGroup": "infrastructure.capcmi.io",
                    "kind": "InfraMachineTemplate", "name": template},
                    "deletion": {"nodeDeletionTimeoutSeconds": 10, "nodeDrainTimeoutSeconds": 5},
                }},
            },
        });
        json_patch::merge(&mut deployment, patch);
        management_cluster::apply(&self.world.admin, deployment).await?;
        Ok(())
    }

    /// Waits until exactly this number of Machines is Running, each with a Node.
    pub async fn running(&self, count: usize) -> Result<Vec<DynamicObject>> {
        let machines = objects(self.world, "cluster.x-k8s.io", "v1beta2", "Machine");
        eventually(
            DEADLINE,
            &format!("{count} Running Machines of {}", self.name),
            async || {
                let all = machines.list(&of(&self.name)).await?.items;
                let phases: Vec<_> = all
                    .iter()
                    .map(|m| m.data["status"]["phase"].as_str().unwrap_or("none").to_owned())
                    .collect();
                let named = all
                    .iter()
                    .all(|machine| machine.data["status"]["nodeRef"]["name"].is_string());
                ensure!(
                    all.len() == count && named && phases.iter().all(|phase| phase == "Running"),
                    "phases {phases:?}, nodes {named}"
                );
                Ok(all)
            },
        )
        .await
    }

    /// The InfraMachines.
    pub async fn infra_machines(&self) -> Result<Vec<InfraMachine>> {
        Ok(
            Api::<InfraMachine>::namespaced(self.world.admin.clone(), &self.world.namespace)
                .list(&of(&self.name))
                .await?
                .items,
        )
    }

    /// Waits until no Machine and no InfraMachine of the Cluster is left.
    pub async fn gone(&self) -> Result<()> {
        let machines = objects(self.world, "cluster.x-k8s.io", "v1beta2", "Machine");
        eventually(
            DEADLINE,
            &format!("the end of all machines of {}", self.name),
            async || {
                let left: Vec<_> = machines
                    .list(&of(&self.name))
                    .await?
                    .items
                    .iter()
                    .map(ResourceExt::name_any)
                    .collect();
                let infra: Vec<_> = self
                    .infra_machines()
                    .await?
                    .iter()
                    .map(ResourceExt::name_any)
                    .collect();
                ensure!(left.is_empty() && infra.is_empty(), "left: {left:?}, {infra:?}");
                Ok(())
            },
        )
        .await
    }

    /// The Nodes that Machines name.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let workload = self.world.management.workload().await?.admin_client().await?;
        let nodes = Api::<Node>::all(workload)
            .list(&ListParams::default())
            .await?
            .items;
        let machines = self.infra_machines().await?;
        let ours = |node: &Node| {
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref());
            id.is_some()
                && machines
                    .iter()
                    .any(|machine| machine.spec.provider_id.as_ref() == id)
        };
        Ok(nodes.into_iter().filter(ours).collect())
    }

    /// Changes the number of replicas.
    pub async fn scale(&self, replicas: u32) -> Result<()> {
        let deployments = objects(self.world, "cluster.x-k8s.io", "v1beta2", "MachineDeployment");
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
            .context("scaling")?;
        Ok(())
    }
}

/// Objects of a kind in the namespace of the case.
pub fn objects(world: &World, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(world.admin.clone(), &world.namespace, &resource)
}

fn of(cluster: &str) -> ListParams {
    ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={cluster}"))
}

/// Creates the bootstrap data that lets a guest join the workload cluster.
pub async fn bootstrap_secret(world: &World, name: &str) -> Result<()> {
    let data = world.management.workload().await?.bootstrap_data()?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": name, "namespace": world.namespace},
        "stringData": {"value": data, "format": "cloud-config"},
    });
    management_cluster::apply(&world.admin, secret).await?;
    Ok(())
}

/// Copies bootstrap data without an owner. A move leaves it behind, and a user has to copy it.
pub async fn copy_bootstrap_secret(source: &World, target: &World, name: &str) -> Result<()> {
    let mut secret = objects(source, "", "v1", "Secret").get(name).await?;
    secret.metadata = ObjectMeta {
        name: secret.metadata.name,
        namespace: secret.metadata.namespace,
        ..ObjectMeta::default()
    };
    management_cluster::apply(&target.admin, serde_json::to_value(secret)?).await?;
    Ok(())
}
