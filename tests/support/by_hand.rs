//! Machines without a MachineDeployment, each with its own spec.

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, GetParams, ListParams, Patch, PatchParams, PostParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use super::fleet::objects;
use super::{DEADLINE, World};

/// Concurrent requests.
const AT_ONCE: usize = 16;

/// A Machine and its InfraMachine with the same name.
#[derive(Clone)]
pub struct ByHand {
    world: World,
    /// The name of both.
    pub name: String,
    infra: Value,
    machine: Value,
    controller: Controller,
}

/// The controller of the Machine. It also makes the Machine the owner of its InfraMachine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Controller {
    /// Cluster API's core.
    Core,
    /// The case. Only the provider writes, too.
    Case,
}

/// A provider spec that is valid in every simulated cloud.
pub fn small() -> Value {
    json!({"vmPool": "default", "size": "small", "tags": {"team": "a"}})
}

impl ByHand {
    /// A small machine of a Cluster, with the bootstrap data `boot`. Its VM is deleted without a shutdown.
    /// This does not create any object.
    pub fn new(world: &World, cluster: &str, name: impl Into<String>) -> Self {
        let name = name.into();
        let labels = json!({"cluster.x-k8s.io/cluster-name": cluster});
        let metadata = json!({"name": name, "namespace": world.namespace, "labels": labels});
        let infra = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine", "metadata": metadata,
            "spec": {"driver": "simulated", "providerSpec": small(), "shutdownTimeoutSeconds": 0},
        });
        let reference = json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine", "name": name});
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
            "spec": {
                "clusterName": cluster, "bootstrap": {"dataSecretName": "boot"},
                "infrastructureRef": reference, "deletion": {"nodeDeletionTimeoutSeconds": 10},
            },
        });
        Self {
            world: world.clone(),
            name,
            infra,
            machine,
            controller: Controller::Core,
        }
    }

    /// Keeps Cluster API from reconciling the Machine.
    pub fn controlled_by_the_case(mut self) -> Self {
        self.controller = Controller::Case;
        self.machine("/metadata/annotations", json!({"cluster.x-k8s.io/paused": ""}))
    }

    /// Sets a value in the InfraMachine, given its JSON pointer. The parent must exist, and null removes the
    /// value.
    pub fn infra(mut self, pointer: &str, value: Value) -> Self {
        put(&mut self.infra, pointer, value);
        self
    }

    /// Sets a value in the Machine, like [`ByHand::infra`].
    pub fn machine(mut self, pointer: &str, value: Value) -> Self {
        put(&mut self.machine, pointer, value);
        self
    }

    /// Creates many machines concurrently.
    pub async fn create_all(machines: &[Self]) -> Result<()> {
        stream::iter(machines)
            .map(|machine| machine.clone().create())
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Creates the InfraMachine and the Machine.
    pub async fn create(self) -> Result<Self> {
        match self.controller {
            Controller::Core => {
                self.create_infra().await?;
                self.create_machine().await?;
            }
            Controller::Case => {
                let machine = self.create_machine().await?;
                self.machine_is_watched().await?;
                let owner = json!({
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": self.name,
                    "uid": machine.metadata.uid, "controller": true, "blockOwnerDeletion": true,
                });
                let infra = self.clone().infra("/metadata/ownerReferences", json!([owner]));
                infra.create_infra().await?;
            }
        }
        Ok(self)
    }

    /// Creates only the InfraMachine.
    pub async fn create_infra(&self) -> Result<DynamicObject> {
        let object = serde_json::from_value(self.infra.clone())?;
        let created = self.untyped().create(&PostParams::default(), &object).await;
        created.with_context(|| format!("creating InfraMachine {}", self.name))
    }

    /// Creates only the Machine, unless it exists.
    pub async fn create_machine(&self) -> Result<DynamicObject> {
        management_cluster::apply(&self.world.admin, self.machine.clone()).await
    }

    /// Waits until the API server's watch cache has the Machine. A server that is short of CPU may send it a
    /// minute after the InfraMachine. The provider would then consider the InfraMachine ownerless.
    async fn machine_is_watched(&self) -> Result<()> {
        let what = format!("a Machine in the watch cache ({})", self.name);
        eventually(DEADLINE, &what, async || {
            let cached = self.machines().get_with(&self.name, &GetParams::any()).await;
            Ok(cached.map(drop)?)
        })
        .await
    }

    /// The InfraMachines of the case.
    pub fn api(&self) -> Api<InfraMachine> {
        infra_machines(&self.world)
    }

    /// The InfraMachines of the case, including invalid ones.
    fn untyped(&self) -> Api<DynamicObject> {
        objects(
            &self.world,
            "infrastructure.capcmi.io",
            "v1alpha1",
            "InfraMachine",
        )
    }

    fn machines(&self) -> Api<DynamicObject> {
        objects(&self.world, "cluster.x-k8s.io", "v1beta2", "Machine")
    }

    /// The InfraMachine.
    pub async fn get(&self) -> Result<InfraMachine> {
        Ok(self.api().get(&self.name).await?)
    }

    /// Waits until the InfraMachine is as wanted.
    pub async fn until(&self, what: &str, holds: impl Fn(&InfraMachine) -> bool) -> Result<InfraMachine> {
        let what = format!("{what} ({})", self.name);
        eventually(DEADLINE, &what, async || {
            let mut machine = self.get().await?;
            machine.metadata.managed_fields = None;
            let seen = json!({"metadata": machine.metadata, "spec": machine.spec, "status": machine.status});
            ensure!(holds(&machine), "{seen}");
            Ok(machine)
        })
        .await
    }

    /// Waits until it is provisioned and ready, with its providerID.
    pub async fn provisioned(&self) -> Result<InfraMachine> {
        self.until("a provisioned machine", is_provisioned).await
    }

    /// Applies a merge patch to the InfraMachine.
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

    /// Deletes the Machine, and Cluster API then deletes its InfraMachine. If Cluster API does not reconcile
    /// it, deletes the InfraMachine instead.
    pub async fn delete(&self) -> Result<()> {
        let api = match self.controller {
            Controller::Core => self.machines(),
            Controller::Case => self.untyped(),
        };
        api.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the InfraMachine no longer exists, and neither does the Machine if Cluster API controls
    /// it.
    pub async fn gone(&self) -> Result<()> {
        let (infra_machines, machines) = (self.untyped(), self.machines());
        eventually(DEADLINE, &format!("the end of {}", self.name), async || {
            let infra = infra_machines.get_opt(&self.name).await?;
            let infra = infra.map(|left| json!({"metadata": left.metadata, "status": left.data["status"]}));
            ensure!(infra.is_none(), "{}", infra.unwrap_or_default());
            if self.controller == Controller::Core {
                let machine = machines.get_opt(&self.name).await?.map(|left| left.data);
                ensure!(machine.is_none(), "{:#}", machine.unwrap_or_default());
            }
            Ok(())
        })
        .await
    }
}

fn put(object: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        let key = key.replace("~1", "/");
        if value.is_null() {
            fields.remove(&key);
        } else {
            fields.insert(key, value);
        }
    }
}

/// The InfraMachines of the namespace.
pub fn infra_machines(world: &World) -> Api<InfraMachine> {
    Api::namespaced(world.admin.clone(), &world.namespace)
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

/// Whether the machine is provisioned and ready, with its providerID.
pub fn is_provisioned(machine: &InfraMachine) -> bool {
    let status = machine.status.as_ref();
    let provisioned = status.and_then(|status| status.initialization.as_ref()?.provisioned);
    provisioned == Some(true)
        && machine.spec.provider_id.is_some()
        && says(machine, conditions::READY, "True", "Ready")
}

/// Applies a merge patch to many InfraMachines.
pub async fn patch_all(world: &World, names: &[String], patch: &Value) -> Result<()> {
    let api = infra_machines(world);
    stream::iter(names)
        .map(|name| {
            let api = &api;
            async move {
                let patched = api
                    .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                    .await;
                match patched {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    other => other.map(drop).with_context(|| format!("patching {name}")),
                }
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Deletes many Machines, and so their InfraMachines.
pub async fn delete_all(world: &World, names: &[String]) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    stream::iter(names)
        .map(|name| {
            let machines = &machines;
            async move {
                let deleted = machines.delete(name, &DeleteParams::default()).await;
                deleted.map(drop).with_context(|| format!("deleting {name}"))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Waits until `check` accepts all machines. It gets `None` for a machine that no longer exists.
pub async fn all_become(
    world: &World,
    what: &str,
    names: &[String],
    check: impl Fn(&str, Option<&InfraMachine>) -> Result<()>,
) -> Result<()> {
    let api = infra_machines(world);
    eventually(DEADLINE, what, async || {
        let all = api.list(&ListParams::default()).await?.items;
        let objections: Vec<String> = names
            .iter()
            .filter_map(|name| {
                let machine = all.iter().find(|machine| machine.name_any() == *name);
                let error = check(name, machine).err()?;
                Some(format!("{name}: {error:#}"))
            })
            .collect();
        if !objections.is_empty() {
            bail!("{} object:\n{}", objections.len(), objections.join("\n"));
        }
        Ok(())
    })
    .await
}

/// The event with a reason about an InfraMachine.
pub async fn event(world: &World, name: &str, reason: &str) -> Result<Event> {
    let events: Api<Event> = Api::namespaced(world.admin.clone(), &world.namespace);
    let about = |event: &Event| {
        let regarding = event.regarding.clone().unwrap_or_default();
        event.reason.as_deref() == Some(reason)
            && regarding.name.as_deref() == Some(name)
            && regarding.kind.as_deref() == Some("InfraMachine")
    };
    eventually(DEADLINE, &format!("an event {reason} about {name}"), async || {
        let all = events.list(&ListParams::default()).await?.items;
        let reasons: Vec<_> = all.iter().filter_map(|event| event.reason.clone()).collect();
        all.into_iter()
            .find(about)
            .with_context(|| format!("{reasons:?}"))
    })
    .await
}
