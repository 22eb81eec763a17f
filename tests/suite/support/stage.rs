//! Machines that Cluster API keeps its hands off: nobody writes but the provider and the case, so that the provider does
//! the same in every run.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use super::fleet::objects;
use super::{DEADLINE, World};

/// A Cluster whose infrastructure is up, and bootstrap data. Cluster and Machines are paused for Cluster API, by the
/// annotation that concerns the object alone: the provider does not look at it there.
pub struct Stage {
    /// The id that drivers know the Cluster by.
    pub cluster_id: String,
    namespace: String,
    admin: Client,
    infra_machines: Api<DynamicObject>,
    /// The InfraMachines.
    pub api: Api<InfraMachine>,
    /// Fields of `Machine.spec` besides the necessary.
    pub machine_spec: Value,
}

impl Stage {
    /// Sets it up.
    pub async fn set(world: &World) -> Result<Self> {
        let paused = json!({"cluster.x-k8s.io/paused": ""});
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": world.namespace},
            "stringData": {"value": "#cloud-config", "format": "cloud-config"},
        });
        management_cluster::apply(&world.admin, secret).await?;
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": world.namespace, "annotations": paused},
            "spec": {"infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": "c"}},
        });
        let cluster = management_cluster::apply(&world.admin, cluster).await?;
        let up = Patch::Merge(json!({"status": {"initialization": {"infrastructureProvisioned": true}}}));
        objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster")
            .patch_status("c", &PatchParams::default(), &up)
            .await
            .context("provisioning the Cluster")?;
        Ok(Self {
            cluster_id: cluster.metadata.uid.context("the Cluster has no UID")?,
            namespace: world.namespace.clone(),
            admin: world.admin.clone(),
            infra_machines: objects(world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine"),
            api: Api::namespaced(world.admin.clone(), &world.namespace),
            machine_spec: json!({}),
        })
    }

    /// Makes a Machine unless it is there, and an InfraMachine of the same name as Cluster API would own it.
    pub async fn create(&self, name: &str) -> Result<()> {
        let spec =
            json!({"vmPool": "default", "size": "small", "tags": {"team": "a"}, "labels": {"round": "0"}});
        self.create_with(name, json!({"provider": "simulated", "providerSpec": spec}))
            .await
    }

    /// As [`Stage::create`], with this spec of the InfraMachine.
    pub async fn create_with(&self, name: &str, infra_spec: Value) -> Result<()> {
        let reference = json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine", "name": name});
        let mut machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {
                "name": name, "namespace": self.namespace, "annotations": {"cluster.x-k8s.io/paused": ""},
                "labels": {"cluster.x-k8s.io/cluster-name": "c"},
            },
            "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "boot"}, "infrastructureRef": reference},
        });
        if let (Some(spec), Some(more)) = (machine["spec"].as_object_mut(), self.machine_spec.as_object()) {
            spec.extend(more.clone());
        }
        let machine = management_cluster::apply(&self.admin, machine).await?;
        let owner = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": machine.metadata.uid, "controller": true, "blockOwnerDeletion": true,
        });
        let infra = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": {
                "name": name, "namespace": self.namespace, "ownerReferences": [owner],
                "labels": {"cluster.x-k8s.io/cluster-name": "c"},
            },
            "spec": infra_spec,
        });
        self.infra_machines
            .create(&PostParams::default(), &serde_json::from_value(infra)?)
            .await
            .with_context(|| format!("creating InfraMachine {name}"))?;
        Ok(())
    }

    /// Waits until the InfraMachine passes `check`.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        check: impl Fn(&InfraMachine) -> bool,
    ) -> Result<InfraMachine> {
        eventually(DEADLINE, &format!("{what} ({name})"), async || {
            let mut machine = self.api.get(name).await?;
            machine.metadata.managed_fields = None;
            let seen = json!({"metadata": machine.metadata, "spec": machine.spec, "status": machine.status});
            ensure!(check(&machine), "{seen}");
            Ok(machine)
        })
        .await
    }

    /// Waits until the machine is provisioned and ready.
    pub async fn provisioned(&self, name: &str) -> Result<InfraMachine> {
        self.until(name, "a provisioned machine", is_provisioned).await
    }

    /// Asks for the deletion of the InfraMachine, whether or not it can be read.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.infra_machines.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the InfraMachine is gone.
    pub async fn gone(&self, name: &str) -> Result<()> {
        eventually(DEADLINE, &format!("the end of {name}"), async || {
            let left = self.infra_machines.get_opt(name).await?;
            let left = left
                .map(|left| json!({"finalizers": left.metadata.finalizers, "status": left.data["status"]}));
            ensure!(left.is_none(), "{}", left.unwrap_or_default());
            Ok(())
        })
        .await
    }
}

/// Whether the machine is provisioned and ready.
pub fn is_provisioned(machine: &InfraMachine) -> bool {
    let Some(status) = &machine.status else {
        return false;
    };
    let provisioned = status.initialization.as_ref().and_then(|all| all.provisioned);
    provisioned == Some(true) && conditions::is_true(&status.conditions, conditions::READY)
}
