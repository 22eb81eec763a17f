//! The writes of an undo. An interrupted run can be repeated without harm.

use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use super::class::drop_class;
use super::{MigratedObjects, api_of, delete_found, list};
use crate::migration::controller::Stopped;
use crate::migration::error::WriteError;
use crate::migration::plan::{Destination, Group, Migration, Object, UNDOING};
use crate::migration::source::{condition, text};
use crate::migration::write::{OF_INFRA_MACHINES, PAUSE, differences_at, read, unmark_one, until_none};
use capcmi::api::{annotations, conditions};

/// How often a write is repeated after conflicts.
const TRIES: u32 = 20;

/// Pauses Machines, and the MachineSets and MachineDeployments that own them, so that Cluster API neither
/// drains a Node nor creates a machine. Waits until Cluster API reports the pause. Each paused object also
/// gets the annotation [`UNDOING`].
///
/// # Errors
/// The API server's, core does not pause, or one of the objects is being deleted.
pub async fn pause(
    client: &Client,
    migration: &Migration,
    remains: &MigratedObjects,
) -> Result<(), WriteError> {
    for group in &migration.groups {
        let own = || paused_of(group).filter(|object| remains.has(object));
        for object in own() {
            let is_marked = |found: &DynamicObject| {
                let annotations = found.annotations();
                annotations.contains_key(annotations::PAUSED) && annotations.contains_key(UNDOING)
            };
            let found = read(client, object).await?;
            let is_new = |found: &DynamicObject| !is_marked(found);
            if let Some(found) = found.filter(is_new) {
                // With the annotation, this undo would appear to have deleted the object.
                if found.metadata.deletion_timestamp.is_some() {
                    return Err(WriteError::BeingDeleted(object.to_string()));
                }
                let body =
                    json!({"metadata": {"annotations": {annotations::PAUSED: "true", UNDOING: "true"}}});
                patch(client, object, &body, "pausing").await?;
            }
        }
        let left = async || {
            let mut left = Vec::new();
            for object in own() {
                let found = read(client, object).await?;
                if found.is_some_and(|found| !is_paused(&found)) {
                    left.push(object.to_string());
                }
            }
            Ok(left)
        };
        until_none(PAUSE, left, |left| WriteError::NotPaused(left.join(", "))).await?;
    }
    Ok(())
}

/// Returns the objects of a group that core reconciles, owners first.
fn paused_of(group: &Group) -> impl Iterator<Item = &Object> {
    let owners = group.deployment.iter().chain(&group.set);
    owners.chain(group.of_kind("Machine"))
}

fn is_paused(found: &DynamicObject) -> bool {
    condition(&found.data, conditions::PAUSED).is_some_and(|paused| paused["status"] == "True")
}

/// Releases the VMs and deletes the objects that the migration created. `print_line` reports each object.
/// Removes the marks from the objects in `old`.
///
/// # Guarantees
/// An InfraMachine is deleted only while it has the annotation that stops the provider from calling the
/// driver for its VM. Its Machine is deleted next, and only while Cluster API has paused it. The owner of the
/// machines is deleted last, and is marked as being undone until then.
///
/// # Errors
/// The first failure, which stops the release.
pub async fn release(
    client: &Client,
    migration: &Migration,
    target: &Destination,
    old: &Stopped,
    print_line: impl Fn(&str),
) -> Result<(), WriteError> {
    let unmark = async |kind: &str, name: &str| {
        unmark_one(&old.client, &old.namespace, kind, name, &target.mark()).await
    };
    for group in &migration.groups {
        old.confirm().await?;
        let infra: Vec<_> = group.of_kind("InfraMachine").collect();
        for object in &infra {
            if let_go(client, object).await? {
                print_line(&format!("released {}", object.name));
            }
        }
        gone(client, &infra).await?;
        // The object that marks the group as being undone stays until the end.
        let mut rest: Vec<_> = group.of_kind("Machine").collect();
        rest.extend(&group.set);
        rest.extend(&group.deployment);
        let last = if group.head().is_some() { rest.len() - 1 } else { 0 };
        for object in &rest[..last] {
            delete(client, object, target, &print_line).await?;
        }
        // The original that keeps the machines is last: while it is marked, the group counts as migrated.
        for original in group.originals.iter().rev() {
            unmark(original.kind, &original.name).await?;
        }
        for object in &rest[last..] {
            delete(client, object, target, &print_line).await?;
        }
    }
    for class in &migration.classes {
        drop_class(client, class, target, &print_line).await?;
        unmark(&class.key.kind, &class.key.name).await?;
    }
    Ok(())
}

/// Deletes an InfraMachine so that the provider removes its finalizer without a driver call. Returns whether
/// an InfraMachine was left to delete.
///
/// # Guarantees
/// The VM of the annotated and deleted object is unchanged since the migration, and nothing else deletes the
/// object. Each write carries the resource version that was checked.
async fn let_go(client: &Client, object: &Object) -> Result<bool, WriteError> {
    let api = api_of(client, object);
    let name = &object.name;
    let is_forced = |found: &DynamicObject| {
        let forced = found.annotations().get(annotations::FORCE_DELETE);
        forced.is_some_and(|forced| forced == "true")
    };
    for _ in 0..TRIES {
        let Some(mut marked) = read(client, object).await? else {
            return Ok(false);
        };
        let is_deleted = marked.metadata.deletion_timestamp.is_some();
        match (is_forced(&marked), is_deleted) {
            (true, true) => return Ok(false),
            // Its VM may be being deleted.
            (false, true) => return Err(WriteError::BeingDeleted(format!("InfraMachine {name}"))),
            (true | false, false) => {}
        }
        let differ = differences_at(&OF_INFRA_MACHINES, object, &marked.data);
        if !differ.is_empty() {
            return Err(WriteError::Changed(differ.join("; ")));
        }
        if !is_forced(&marked) {
            let body = json!({"metadata": {
                "uid": marked.uid(), "resourceVersion": marked.resource_version(),
                "annotations": {annotations::FORCE_DELETE: "true"},
            }});
            marked = match patch(client, object, &body, "annotating").await {
                Ok(marked) => marked,
                Err(error) if error.is_conflict() => continue,
                Err(error) => return Err(error),
            };
        }
        if !is_forced(&marked) {
            return Err(WriteError::NotForced(name.clone()));
        }
        // The very object that carries the annotation, or none.
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: marked.uid(),
                resource_version: marked.resource_version(),
            }),
            ..DeleteParams::default()
        };
        match api.delete(name, &params).await {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(refused)) if refused.code == 404 => return Ok(true),
            // The provider has written the status in between.
            Err(kube::Error::Api(refused)) if refused.code == 409 => {}
            Err(error) => return Err(WriteError::api(format!("deleting InfraMachine {name}"), error)),
        }
    }
    Err(WriteError::Contended(name.clone()))
}

/// Waits until objects that are deleted are gone.
async fn gone(client: &Client, objects: &[&Object]) -> Result<(), WriteError> {
    let left = async || {
        let mut left = Vec::new();
        for object in objects {
            if let Some(found) = read(client, object).await? {
                let why = held_by(&found);
                left.push(format!("{object} ({why})"));
            }
        }
        Ok(left)
    };
    let pause = Duration::from_millis(200);
    until_none(pause, left, |left| WriteError::NotGone(left.join("; "))).await
}

/// Why a deleted object still exists.
fn held_by(found: &DynamicObject) -> String {
    let finalizers = format!("finalizers {}", found.finalizers().join(", "));
    match condition(&found.data, conditions::DELETING) {
        Some(deleting) => format!("{finalizers}; {}", text(deleting, "/message")),
        None => finalizers,
    }
}

/// Deletes a paused object of core, with the finalizer that core therefore never removes.
async fn delete(
    client: &Client,
    object: &Object,
    target: &Destination,
    print_line: &impl Fn(&str),
) -> Result<(), WriteError> {
    let Some(found) = read(client, object).await? else {
        return Ok(());
    };
    let what = object.to_string();
    if !is_paused(&found) || !found.annotations().contains_key(UNDOING) {
        return Err(WriteError::NotPaused(what));
    }
    if object.kind != "Machine" {
        ensure_owns_nothing(client, &found, &what, target).await?;
    }
    if found.metadata.deletion_timestamp.is_none() && !delete_found(client, object, &found).await? {
        return Ok(());
    }
    // Core would put its own back before the deletion.
    let others = found.finalizers().iter();
    let others: Vec<_> = others
        .filter(|name| !CORE_FINALIZERS.contains(&name.as_str()))
        .collect();
    let body = json!({"metadata": {"uid": found.uid(), "finalizers": others}});
    match patch(client, object, &body, "removing the finalizers of").await {
        Ok(_) => gone(client, &[object]).await?,
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    print_line(&format!("deleted {what}"));
    Ok(())
}

/// Ensures that an object that is about to be deleted owns nothing: the garbage collector would delete its
/// Machines with it, and core their VMs.
async fn ensure_owns_nothing(
    client: &Client,
    deleted: &DynamicObject,
    what: &str,
    target: &Destination,
) -> Result<(), WriteError> {
    for kind in ["Machine", "MachineSet"] {
        let all = list(client, target, kind, &ListParams::default()).await?;
        let dependents = all.into_iter().filter(|found| {
            let owners = found.owner_references();
            let is_owned = owners
                .iter()
                .any(|owner| Some(&owner.uid) == deleted.metadata.uid.as_ref());
            // A MachineSet of an earlier template keeps no Machines.
            is_owned && found.data["spec"]["replicas"] != 0
        });
        let names: Vec<_> = dependents
            .map(|found| format!("{kind} {}", found.name_any()))
            .collect();
        if !names.is_empty() {
            return Err(WriteError::HasOtherDependents {
                owner: what.to_owned(),
                dependents: names.join(", "),
            });
        }
    }
    Ok(())
}

/// Finalizers of Cluster API on the deleted objects.
const CORE_FINALIZERS: [&str; 4] = [
    "machine.cluster.x-k8s.io",
    "cluster.x-k8s.io/machineset",
    "cluster.x-k8s.io/machinedeployment",
    "foregroundDeletion",
];

async fn patch(
    client: &Client,
    object: &Object,
    body: &Value,
    doing: &str,
) -> Result<DynamicObject, WriteError> {
    let patched = api_of(client, object)
        .patch(&object.name, &PatchParams::default(), &Patch::Merge(body))
        .await;
    patched.map_err(|error| WriteError::api(format!("{doing} {object}"), error))
}
