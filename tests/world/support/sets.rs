//! Cluster API's controllers of MachineSets and MachineDeployments, as far as a migration needs them: owners,
//! replicas, pauses and deletions.
//!
//! They create each missing Machine and delete each surplus one immediately. `tests/suite` runs the real
//! ones.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::World;
use super::fleet::objects;

const PAUSED: &str = "cluster.x-k8s.io/paused";
const DISABLE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";
const FINALIZERS: [(&str, &str); 2] = [
    ("MachineSet", "cluster.x-k8s.io/machineset"),
    ("MachineDeployment", "cluster.x-k8s.io/machinedeployment"),
];
const INTERVAL: Duration = Duration::from_millis(100);

/// A stand-in for the controllers of one namespace that runs until it is dropped.
pub struct Sets(JoinHandle<()>);

impl Sets {
    /// Starts it.
    pub fn start(world: &World) -> Self {
        let world = world.clone();
        Self(tokio::spawn(async move {
            loop {
                let written = world.next_write();
                let ended = round(&world).await;
                tokio::time::sleep(INTERVAL).await;
                match ended {
                    Ok(()) => written.await,
                    // Another client has written in between: the next round sees it.
                    Err(error) => tracing::debug!("{error:#}"),
                }
            }
        }))
    }
}

impl Drop for Sets {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn round(world: &World) -> Result<()> {
    for kind in ["Machine", "MachineSet", "MachineDeployment"] {
        for object in list(world, kind).await? {
            show_pause(world, kind, &object).await?;
        }
    }
    for (kind, finalizer) in FINALIZERS {
        for object in list(world, kind).await?.into_iter().filter(|one| !is_paused(one)) {
            let kept = object.finalizers().iter().any(|own| own == finalizer);
            match (object.metadata.deletion_timestamp.is_some(), kept) {
                (true, _) => delete_with_dependents(world, kind, &object).await?,
                (false, false) => {
                    let patch = json!({"metadata": {"finalizers": [finalizer]}});
                    write(world, kind, &object, patch).await?;
                }
                (false, true) if kind == "MachineSet" => keep_machines(world, &object).await?,
                (false, true) => keep_set(world, &object).await?,
            }
        }
    }
    Ok(())
}

/// Reports whether an object is paused.
async fn show_pause(world: &World, kind: &str, object: &DynamicObject) -> Result<()> {
    let status = if is_paused(object) { "True" } else { "False" };
    let all = object.data["status"]["conditions"].as_array();
    let (own, mut others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .flatten()
        .cloned()
        .partition(|condition| condition["type"] == "Paused");
    if own
        .first()
        .map_or("False", |own| own["status"].as_str().unwrap_or_default())
        == status
    {
        return Ok(());
    }
    others.push(json!({"type": "Paused", "status": status}));
    report(world, kind, object, json!({"conditions": others})).await
}

/// Deletes the objects that an object owns, and then removes its finalizer.
async fn delete_with_dependents(world: &World, kind: &str, owner: &DynamicObject) -> Result<()> {
    let dependent = if kind == "MachineSet" {
        "Machine"
    } else {
        "MachineSet"
    };
    let mut dependents = list(world, dependent).await?;
    dependents.retain(|object| is_owned(object, owner));
    if dependents.is_empty() {
        return write(world, kind, owner, json!({"metadata": {"finalizers": null}})).await;
    }
    for object in dependents {
        api(world, dependent)
            .delete(&object.name_any(), &DeleteParams::default())
            .await?;
    }
    Ok(())
}

/// Adopts Machines without a controller, and creates or deletes one if their number is not as wanted.
async fn keep_machines(world: &World, set: &DynamicObject) -> Result<()> {
    let machines = list(world, "Machine").await?;
    for orphan in machines
        .iter()
        .filter(|machine| is_selected(machine, set) && has_no_controller(machine))
    {
        adopt(world, "Machine", orphan, "MachineSet", set).await?;
    }
    let members: Vec<_> = list(world, "Machine")
        .await?
        .into_iter()
        .filter(|machine| is_owned(machine, set) && machine.metadata.deletion_timestamp.is_none())
        .collect();
    let wanted = usize::try_from(set.data["spec"]["replicas"].as_u64().unwrap_or(1))?;
    let may_create = set
        .annotations()
        .get(DISABLE_CREATE)
        .is_none_or(|disabled| disabled != "true");
    if members.len() < wanted && may_create {
        return create_machine(world, set).await;
    }
    if let Some(surplus) = members.get(wanted) {
        api(world, "Machine")
            .delete(&surplus.name_any(), &DeleteParams::default())
            .await?;
        return Ok(());
    }
    let observed = json!({"observedGeneration": set.metadata.generation});
    if set.data["status"]["observedGeneration"] != observed["observedGeneration"] {
        report(world, "MachineSet", set, observed).await?;
    }
    Ok(())
}

async fn create_machine(world: &World, set: &DynamicObject) -> Result<()> {
    let template = &set.data["spec"]["template"];
    let from = &template["spec"]["infrastructureRef"];
    let infra = |kind| objects(world, "infrastructure.capcmi.io", "v1alpha1", kind);
    let mould = from["name"].as_str().context("a template without a name")?;
    let mould = infra("InfraMachineTemplate").get(mould).await?;
    let version = world.management.version();
    let name = format!("{}-{version:05}", set.name_any());
    let metadata = json!({
        "name": name, "namespace": world.namespace, "labels": template["metadata"]["labels"],
    });
    let mut machine = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
        "spec": template["spec"],
    });
    machine["spec"]["infrastructureRef"]["kind"] = json!("InfraMachine");
    machine["spec"]["infrastructureRef"]["name"] = json!(name);
    machine["metadata"]["ownerReferences"] = json!([controller("MachineSet", set)]);
    let infra = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine", "metadata": metadata,
        "spec": mould.data["spec"]["template"]["spec"],
    });
    for object in [infra, machine] {
        management_cluster::apply(&world.admin, object).await?;
    }
    Ok(())
}

/// Adopts MachineSets without a controller. Gives all replicas to the MachineSet with the same template, and
/// creates it if necessary.
async fn keep_set(world: &World, deployment: &DynamicObject) -> Result<()> {
    let sets = list(world, "MachineSet").await?;
    for orphan in sets
        .iter()
        .filter(|set| is_selected(set, deployment) && has_no_controller(set))
    {
        adopt(world, "MachineSet", orphan, "MachineDeployment", deployment).await?;
    }
    let mut sets = list(world, "MachineSet").await?;
    sets.retain(|set| is_owned(set, deployment));
    let template = &deployment.data["spec"]["template"];
    let is_new = |set: &&DynamicObject| set.data["spec"]["template"]["spec"] == template["spec"];
    let Some(new) = sets.iter().find(is_new) else {
        return create_set(world, deployment).await;
    };
    for set in &sets {
        let replicas = if set.name_any() == new.name_any() {
            deployment.data["spec"]["replicas"].clone()
        } else {
            json!(0)
        };
        let is_disabled = set.annotations().contains_key(DISABLE_CREATE) && is_new(&set);
        if set.data["spec"]["replicas"] != replicas || is_disabled {
            let patch = json!({
                "metadata": {"annotations": {DISABLE_CREATE: null}}, "spec": {"replicas": replicas},
            });
            write(world, "MachineSet", set, patch).await?;
        }
    }
    Ok(())
}

async fn create_set(world: &World, deployment: &DynamicObject) -> Result<()> {
    let template = &deployment.data["spec"]["template"];
    let set = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
        "metadata": {
            "name": format!("{}-{:05}", deployment.name_any(), world.management.version()),
            "namespace": world.namespace, "labels": template["metadata"]["labels"],
            "ownerReferences": [controller("MachineDeployment", deployment)],
        },
        "spec": {
            "clusterName": deployment.data["spec"]["clusterName"],
            "replicas": deployment.data["spec"]["replicas"],
            "selector": deployment.data["spec"]["selector"], "template": template,
        },
    });
    management_cluster::apply(&world.admin, set).await.map(drop)
}

async fn adopt(
    world: &World,
    kind: &str,
    orphan: &DynamicObject,
    owner_kind: &str,
    owner: &DynamicObject,
) -> Result<()> {
    let mut owners = serde_json::to_value(orphan.owner_references())?;
    if let Some(owners) = owners.as_array_mut() {
        owners.push(controller(owner_kind, owner));
    }
    write(
        world,
        kind,
        orphan,
        json!({"metadata": {"ownerReferences": owners}}),
    )
    .await
}

fn controller(kind: &str, owner: &DynamicObject) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": owner.name_any(),
        "uid": owner.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    })
}

fn is_paused(object: &DynamicObject) -> bool {
    object.annotations().contains_key(PAUSED)
}

fn is_owned(object: &DynamicObject, owner: &DynamicObject) -> bool {
    let mut owners = object.owner_references().iter();
    owners.any(|reference| Some(&reference.uid) == owner.metadata.uid.as_ref())
}

fn has_no_controller(object: &DynamicObject) -> bool {
    let mut owners = object.owner_references().iter();
    object.metadata.deletion_timestamp.is_none() && !owners.any(|owner| owner.controller == Some(true))
}

fn is_selected(object: &DynamicObject, owner: &DynamicObject) -> bool {
    let wanted = &owner.data["spec"]["selector"]["matchLabels"];
    let wanted: BTreeMap<String, String> = serde_json::from_value(wanted.clone()).unwrap_or_default();
    !wanted.is_empty()
        && wanted
            .iter()
            .all(|(key, value)| object.labels().get(key) == Some(value))
}

fn api(world: &World, kind: &str) -> kube::Api<DynamicObject> {
    objects(world, "cluster.x-k8s.io", "v1beta2", kind)
}

async fn list(world: &World, kind: &str) -> Result<Vec<DynamicObject>> {
    Ok(api(world, kind).list(&ListParams::default()).await?.items)
}

/// Patches the very version of an object that was read.
async fn write(world: &World, kind: &str, object: &DynamicObject, mut patch: Value) -> Result<()> {
    patch["metadata"]["resourceVersion"] = json!(object.resource_version());
    api(world, kind)
        .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

async fn report(world: &World, kind: &str, object: &DynamicObject, status: Value) -> Result<()> {
    let patch = json!({
        "metadata": {"resourceVersion": object.resource_version()}, "status": status,
    });
    api(world, kind)
        .patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}
