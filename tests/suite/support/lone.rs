//! A Machine of its own, without a MachineDeployment around it.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use super::fleet::{bootstrap_secret, objects};
use super::{DEADLINE, World};

/// A Machine with its InfraMachine of the same name.
pub struct Lone<'a> {
    world: &'a World,
    /// Name of both.
    pub name: String,
    infra: Value,
    machine: Value,
}

/// A provider spec that every simulated cloud takes.
pub fn small() -> Value {
    json!({"vmPool": "default", "size": "small", "tags": {"team": "a"}})
}

impl<'a> Lone<'a> {
    /// A machine of a Cluster; nothing is made yet.
    pub fn new(world: &'a World, cluster: &str, name: &str) -> Self {
        let labels = json!({"cluster.x-k8s.io/cluster-name": cluster});
        let infra = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": {"name": name, "namespace": world.namespace, "labels": labels},
            "spec": {"provider": "simulated", "providerSpec": small(), "shutdownTimeoutSeconds": 0},
        });
        let reference = json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine", "name": name});
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": name, "namespace": world.namespace, "labels": labels},
            "spec": {
                "clusterName": cluster, "bootstrap": {"dataSecretName": "boot"},
                "infrastructureRef": reference, "deletion": {"nodeDeletionTimeoutSeconds": 10},
            },
        });
        Self {
            world,
            name: name.to_owned(),
            infra,
            machine,
        }
    }

    /// With another value in the InfraMachine, by its JSON pointer; the parent has to be there.
    pub fn infra(mut self, pointer: &str, value: Value) -> Self {
        put(&mut self.infra, pointer, value);
        self
    }

    /// With another value in the Machine, by its JSON pointer; the parent has to be there.
    pub fn machine(mut self, pointer: &str, value: Value) -> Self {
        put(&mut self.machine, pointer, value);
        self
    }

    /// Makes the InfraMachine alone.
    pub async fn create_infra(&self) -> Result<DynamicObject> {
        management_cluster::apply(&self.world.admin, self.infra.clone()).await
    }

    /// Makes the Machine alone.
    pub async fn create_machine(&self) -> Result<DynamicObject> {
        management_cluster::apply(&self.world.admin, self.machine.clone()).await
    }

    /// Makes bootstrap data, InfraMachine and Machine.
    pub async fn create(self) -> Result<Self> {
        bootstrap_secret(self.world, "boot").await?;
        self.create_infra().await?;
        self.create_machine().await?;
        Ok(self)
    }

    /// The InfraMachines of the case.
    pub fn api(&self) -> Api<InfraMachine> {
        Api::namespaced(self.world.admin.clone(), &self.world.namespace)
    }

    /// The InfraMachine.
    pub async fn get(&self) -> Result<InfraMachine> {
        Ok(self.api().get(&self.name).await?)
    }

    /// Waits until the InfraMachine is as wanted.
    pub async fn until(&self, what: &str, holds: impl Fn(&InfraMachine) -> bool) -> Result<InfraMachine> {
        let what = format!("{what} ({})", self.name);
        eventually(DEADLINE, &what, async || {
            let machine = self.get().await?;
            let seen = json!({"metadata": machine.metadata, "spec": machine.spec, "status": machine.status});
            ensure!(holds(&machine), "{seen}");
            Ok(machine)
        })
        .await
    }

    /// Waits until it is provisioned, with its providerID.
    pub async fn provisioned(&self) -> Result<InfraMachine> {
        self.until("a provisioned machine", |machine| {
            machine.spec.provider_id.is_some() && says(machine, conditions::READY, "True", "Ready")
        })
        .await
    }

    /// Changes the InfraMachine by a merge patch.
    pub async fn patch(&self, patch: Value) -> Result<InfraMachine> {
        self.api()
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("patching {}", self.name))
    }

    /// Changes a field of the provider spec; null removes it.
    pub async fn respecify(&self, field: &str, value: Value) -> Result<InfraMachine> {
        self.patch(json!({"spec": {"providerSpec": {field: value}}}))
            .await
    }

    /// Deletes the Machine; Cluster API deletes the InfraMachine.
    pub async fn delete(&self) -> Result<()> {
        let machines = objects(self.world, "cluster.x-k8s.io", "v1beta2", "Machine");
        machines.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until neither Machine nor InfraMachine is left.
    pub async fn gone(&self) -> Result<()> {
        let machines = objects(self.world, "cluster.x-k8s.io", "v1beta2", "Machine");
        eventually(DEADLINE, &format!("the end of {}", self.name), async || {
            let infra = self.api().get_opt(&self.name).await?;
            let infra = infra.map(|left| json!({"metadata": left.metadata, "status": left.status}));
            ensure!(infra.is_none(), "{}", infra.unwrap_or_default());
            let machine = machines.get_opt(&self.name).await?.map(|left| left.data);
            ensure!(machine.is_none(), "{:#}", machine.unwrap_or_default());
            Ok(())
        })
        .await
    }
}

fn put(object: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        fields.insert(key.replace("~1", "/"), value);
    }
}

/// A condition of an InfraMachine.
pub fn condition<'a>(machine: &'a InfraMachine, type_: &str) -> Option<&'a Condition> {
    conditions::get(&machine.status.as_ref()?.conditions, type_)
}

/// Whether a condition has this status and reason.
pub fn says(machine: &InfraMachine, type_: &str, status: &str, reason: &str) -> bool {
    condition(machine, type_)
        .is_some_and(|condition| condition.status == status && condition.reason == reason)
}

/// The message of a condition.
pub fn message<'a>(machine: &'a InfraMachine, type_: &str) -> &'a str {
    condition(machine, type_).map_or("", |condition| condition.message.as_str())
}
