//! Machines that no MachineDeployment makes: each with a spec of its own.

use anyhow::{Context, Result, bail};
use capcmi::api::v1alpha1::InfraMachine;
use futures::{StreamExt, TryStreamExt, stream};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use super::fleet::objects;
use super::{DEADLINE, World};

/// Requests at the same time.
const AT_ONCE: usize = 16;

/// A Machine and its InfraMachine of the same name.
#[derive(Clone, Debug)]
pub struct ByHand {
    /// Name of both.
    pub name: String,
    /// Spec of the InfraMachine.
    pub spec: Value,
    /// The Secret with the bootstrap data.
    pub bootstrap: &'static str,
}

impl ByHand {
    /// A small machine whose VM is deleted without a shutdown.
    pub fn new(name: impl Into<String>) -> Self {
        let provider_spec = json!({"vmPool": "default", "size": "small", "tags": {}});
        Self {
            name: name.into(),
            spec: json!({"provider": "simulated", "providerSpec": provider_spec, "shutdownTimeoutSeconds": 0}),
            bootstrap: "boot",
        }
    }

    /// With another value in the spec, at a JSON pointer whose parent is there.
    pub fn with(mut self, place: &str, value: Value) -> Self {
        let (parent, field) = place.rsplit_once('/').unwrap_or_default();
        if let Some(parent) = self.spec.pointer_mut(parent) {
            parent[field] = value;
        }
        self
    }

    /// Makes the objects, many at a time; core sets the owner.
    pub async fn create_all(world: &World, cluster: &str, machines: &[Self]) -> Result<()> {
        stream::iter(machines)
            .map(|machine| machine.create(world, cluster))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Makes the objects.
    pub async fn create(&self, world: &World, cluster: &str) -> Result<()> {
        let metadata = json!({"name": self.name, "namespace": world.namespace});
        let infra = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": metadata, "spec": self.spec,
        });
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
            "spec": {
                "clusterName": cluster, "bootstrap": {"dataSecretName": self.bootstrap},
                "infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine", "name": self.name},
            },
        });
        for (group, version, kind, object) in [
            ("infrastructure.capcmi.io", "v1alpha1", "InfraMachine", infra),
            ("cluster.x-k8s.io", "v1beta2", "Machine", machine),
        ] {
            let object = serde_json::from_value(object)?;
            let api = objects(world, group, version, kind);
            let created = api.create(&PostParams::default(), &object).await;
            created.with_context(|| format!("creating {kind} {}", self.name))?;
        }
        Ok(())
    }
}

/// The InfraMachines of the namespace.
pub fn infra_machines(world: &World) -> Api<InfraMachine> {
    Api::namespaced(world.admin.clone(), &world.namespace)
}

/// A merge patch on many InfraMachines.
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

/// Deletes many Machines, and with them their InfraMachines.
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

/// Waits until `check` has no objection to any of the machines, each of which may be gone.
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
