//! The writes of the way back, each of which a cut off run repeats without harm.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Remains, api_of};
use crate::api::{self, conditions, labels};
use crate::migration::controller::Stopped;
use crate::migration::error::WriteError;
use crate::migration::plan::{Class, Group, MIGRATED_FROM, Migration, Object, Target, UNDOING};
use crate::migration::source::text;
use crate::migration::write::{marker, read, unmark_one};

/// How long core gets to pause, and the provider to let go of one more object.
const LET_GO: Duration = Duration::from_mins(2);
/// How often a write is repeated that another's has come before.
const TRIES: u32 = 20;

/// Pauses Machines and what keeps them, so that Cluster API neither drains a Node nor makes a machine, and
/// waits until it says so. What is paused so says that it is being undone.
///
/// # Errors
/// The API server's, or core does not pause.
pub async fn pause(client: &Client, migration: &Migration, remains: &Remains) -> Result<(), WriteError> {
    for group in &migration.groups {
        let own = || paused_of(group).filter(|object| remains.has(object));
        for object in own() {
            let is_marked = |found: &DynamicObject| {
                let annotations = found.annotations();
                annotations.contains_key(labels::PAUSED) && annotations.contains_key(UNDOING)
            };
            if !read(client, object).await?.is_none_or(|found| is_marked(&found)) {
                let body = json!({"metadata": {"annotations": {labels::PAUSED: "true", UNDOING: "true"}}});
                patch(client, object, &body, "pausing").await?;
            }
        }
        let (mut before, mut deadline) = (usize::MAX, Instant::now() + LET_GO);
        loop {
            let mut left = Vec::new();
            for object in own() {
                if read(client, object)
                    .await?
                    .is_some_and(|found| !is_paused(&found))
                {
                    left.push(format!("{} {}", object.kind, object.name));
                }
            }
            if left.is_empty() {
                break;
            }
            if left.len() < before {
                (before, deadline) = (left.len(), Instant::now() + LET_GO);
            }
            if Instant::now() >= deadline {
                return Err(WriteError::NotPaused(left.join(", ")));
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
    Ok(())
}

/// What core works on of a group; what keeps the others comes first.
fn paused_of(group: &Group) -> impl Iterator<Item = &Object> {
    let machines = group.machines.iter().filter(|object| object.kind == "Machine");
    group.deployment.iter().chain(&group.set).chain(machines)
}

fn is_paused(found: &DynamicObject) -> bool {
    let conditions = found.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == conditions::PAUSED && condition["status"] == "True")
}

/// Lets go of the VMs and deletes what the migration has made; `say` tells of each object. With `old`, its
/// objects lose their marks.
///
/// # Guarantees
/// An InfraMachine is deleted only as long as it carries the annotation by which the provider makes no call
/// for its VM; its Machine goes after it, and as long as Cluster API has paused it. What keeps the machines
/// goes last and says until then that the group is being undone.
///
/// # Errors
/// What stopped it.
pub async fn release(
    client: &Client,
    migration: &Migration,
    target: &Target,
    old: Option<&Stopped>,
    say: impl Fn(&str),
) -> Result<(), WriteError> {
    let unmark = async |kind: &str, name: &str| match old {
        Some(old) => unmark_one(&old.client, &old.namespace, kind, name, &target.mark()).await,
        None => Ok(()),
    };
    for group in &migration.groups {
        if let Some(old) = old {
            old.confirm().await?;
        }
        let of_kind = |kind| group.machines.iter().filter(move |object| object.kind == kind);
        let (infra, machines): (Vec<_>, Vec<_>) =
            (of_kind("InfraMachine").collect(), of_kind("Machine").collect());
        for object in &infra {
            if let_go(client, object).await? {
                say(&format!("released {}", object.name));
            }
        }
        gone(client, &infra).await?;
        // What says that the group is being undone stays to the end.
        let mut rest = Vec::new();
        rest.extend(machines);
        rest.extend(&group.set);
        rest.extend(&group.deployment);
        let last = if group.head().is_some() { rest.len() - 1 } else { 0 };
        for object in &rest[..last] {
            delete(client, object, &say).await?;
        }
        for original in &group.originals {
            unmark(original.kind, &original.name).await?;
        }
        for object in &rest[last..] {
            delete(client, object, &say).await?;
        }
    }
    let used = names_in_use(client, target).await?;
    for class in &migration.classes {
        drop_class(client, class, &used, &say).await?;
        unmark(&class.key.kind, &class.key.name).await?;
    }
    Ok(())
}

/// Deletes an InfraMachine that the provider lets go without a call for its VM. Whether there was one.
async fn let_go(client: &Client, object: &Object) -> Result<bool, WriteError> {
    let api = api_of(client, object);
    let name = &object.name;
    let is_forced = |found: &DynamicObject| {
        let forced = found.annotations().get(labels::FORCE_DELETE);
        forced.is_some_and(|forced| forced == "true")
    };
    for _ in 0..TRIES {
        let Some(mut marked) = read(client, object).await? else {
            return Ok(false);
        };
        if !is_forced(&marked) {
            let body =
                json!({"metadata": {"uid": marked.uid(), "annotations": {labels::FORCE_DELETE: "true"}}});
            marked = patch(client, object, &body, "annotating").await?;
        }
        if !is_forced(&marked) {
            return Err(WriteError::NotForced(name.clone()));
        }
        if marked.metadata.deletion_timestamp.is_some() {
            return Ok(false);
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
            // The provider has written its status meanwhile.
            Err(kube::Error::Api(refused)) if refused.code == 409 => {}
            Err(error) => return Err(WriteError::api(format!("deleting InfraMachine {name}"), error)),
        }
    }
    Err(WriteError::NotForced(name.clone()))
}

/// Waits until objects that are deleted are gone.
async fn gone(client: &Client, objects: &[&Object]) -> Result<(), WriteError> {
    let (mut before, mut deadline) = (usize::MAX, Instant::now() + LET_GO);
    loop {
        let mut left = Vec::new();
        for object in objects {
            if let Some(found) = read(client, object).await? {
                let why = held_by(&found);
                left.push(format!("{} {} ({why})", object.kind, object.name));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if left.len() < before {
            (before, deadline) = (left.len(), Instant::now() + LET_GO);
        }
        if Instant::now() >= deadline {
            return Err(WriteError::NotGone(left.join("; ")));
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// What keeps an object that is deleted.
fn held_by(found: &DynamicObject) -> String {
    let conditions = found.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let finalizers = format!("finalizers {}", found.finalizers().join(", "));
    conditions
        .find(|condition| condition["type"] == conditions::DELETING)
        .map_or(finalizers.clone(), |deleting| {
            format!("{finalizers}; {}", text(deleting, "/message"))
        })
}

/// Deletes an object of core that is paused, whose finalizer core therefore never takes away.
async fn delete(client: &Client, object: &Object, say: &impl Fn(&str)) -> Result<(), WriteError> {
    let Some(found) = read(client, object).await? else {
        return Ok(());
    };
    let what = format!("{} {}", object.kind, object.name);
    if found.metadata.deletion_timestamp.is_none() {
        let deleted = api_of(client, object).delete(&object.name, &this(&found)).await;
        match deleted {
            Ok(_) => {}
            Err(kube::Error::Api(refused)) if refused.code == 404 => return Ok(()),
            Err(error) => return Err(WriteError::api(format!("deleting {what}"), error)),
        }
    }
    // Core would put it back before the deletion.
    let body = json!({"metadata": {"uid": found.uid(), "finalizers": null}});
    match patch(client, object, &body, "taking the finalizers away of").await {
        Ok(_) => gone(client, &[object]).await?,
        Err(WriteError::Api {
            source: kube::Error::Api(refused),
            ..
        }) if refused.code == 404 => {}
        Err(error) => return Err(error),
    }
    say(&format!("deleted {what}"));
    Ok(())
}

/// Deletes Secrets and template of a class, but for those that others have come to use.
async fn drop_class(
    client: &Client,
    class: &Class,
    used: &BTreeSet<String>,
    say: &impl Fn(&str),
) -> Result<(), WriteError> {
    for object in &class.objects {
        let Some(found) = read(client, object).await? else {
            continue;
        };
        if found.annotations().get(MIGRATED_FROM) != Some(&marker(&object.body)) {
            continue;
        }
        let what = format!("{} {}", object.kind, object.name);
        if used.contains(&object.name) {
            say(&format!("kept {what}: objects that were made since use it"));
            continue;
        }
        match api_of(client, object).delete(&object.name, &this(&found)).await {
            Ok(_) => say(&format!("deleted {what}")),
            Err(kube::Error::Api(refused)) if refused.code == 404 => {}
            Err(error) => return Err(WriteError::api(format!("deleting {what}"), error)),
        }
    }
    Ok(())
}

/// This object, and none that has come in its place.
fn this(found: &DynamicObject) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    }
}

/// The names of Secrets and templates that machines, and what makes them, name in the namespace.
async fn names_in_use(client: &Client, target: &Target) -> Result<BTreeSet<String>, WriteError> {
    let mut used = BTreeSet::new();
    for (group, version, kind) in [
        ("cluster.x-k8s.io", "v1beta2", "Machine"),
        ("cluster.x-k8s.io", "v1beta2", "MachineSet"),
        ("cluster.x-k8s.io", "v1beta2", "MachineDeployment"),
        (api::GROUP, api::VERSION, "InfraMachine"),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &target.namespace, &resource);
        let all = api.list(&ListParams::default()).await;
        let all = all.map_err(|error| WriteError::api(format!("listing the {kind}s"), error))?;
        for found in all {
            for place in [
                "/spec/template/spec/infrastructureRef/name",
                "/spec/template/spec/bootstrap/dataSecretName",
                "/spec/bootstrap/dataSecretName",
                "/spec/secretRef/name",
            ] {
                used.insert(text(&found.data, place));
            }
            used.extend(found.annotations().get(labels::SECRET).cloned());
        }
    }
    Ok(used)
}

async fn patch(
    client: &Client,
    object: &Object,
    body: &Value,
    doing: &str,
) -> Result<DynamicObject, WriteError> {
    let patched = api_of(client, object)
        .patch(&object.name, &PatchParams::default(), &Patch::Merge(body))
        .await;
    patched.map_err(|error| WriteError::api(format!("{doing} {} {}", object.kind, object.name), error))
}
