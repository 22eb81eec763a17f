//! The scope of a provider: its namespaces, and its objects in them.

use anyhow::{Context, Result, ensure};
use capcmi::api::labels::WATCH_FILTER;
use capcmi::api::v1alpha1::InfraMachine;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, Stage, World};

/// A machine that a provider with `--watch-filter=mine` looks at, or not.
fn labelled(machine: ByHand, value: &str) -> ByHand {
    let pointer = format!("/metadata/labels/{}", WATCH_FILTER.replace('/', "~1"));
    machine.infra(&pointer, json!(value))
}

/// An InfraCluster of the stage's Cluster, or a template, with this value of the label.
async fn make(world: &World, kind: &str, name: &str, value: &str, stage: &Stage) -> Result<()> {
    let owner = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": stage.cluster_id,
    });
    let spec = match kind {
        "InfraCluster" => json!({}),
        _ => json!({"template": {"spec": {"providerSpec": {"vmPool": "default", "size": "small"}}}}),
    };
    let object = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {
            "name": name, "namespace": world.namespace, "labels": {WATCH_FILTER: value},
            "ownerReferences": [owner],
        },
    });
    management_cluster::apply(&world.admin, object).await?;
    Ok(())
}

fn kind(world: &World, kind: &str) -> Api<DynamicObject> {
    objects(world, "infrastructure.capcmi.io", "v1alpha1", kind)
}

async fn relabel(api: &Api<DynamicObject>, name: &str, value: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {WATCH_FILTER: value}}}));
    api.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn has_status(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    eventually(DEADLINE, &format!("the status of {name}"), async || {
        let object = api.get(name).await?;
        ensure!(
            object.data["status"]["conditions"].is_array(),
            "{:#}",
            object.data
        );
        Ok(())
    })
    .await
}

/// Several providers can share a management cluster: each has the objects that carry its label, and no other.
#[tokio::test(start_paused = true)]
async fn a_watch_filter_limits_a_provider_to_the_objects_with_its_label() -> Result<()> {
    let world = World::new("filter").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let provider = Provider::new(cloud.drivers(json!({})))
        .with(|options| options.watch_filter = Some("mine".to_owned()));
    let _provider = provider.start(&world).await?;
    let others = [
        stage.machine("unlabelled"),
        labelled(stage.machine("theirs"), "theirs"),
    ];
    for machine in &others {
        machine.clone().create().await?;
    }
    for (value, name) in [("theirs", "theirs"), ("mine", "mine")] {
        for kind in ["InfraCluster", "InfraMachineTemplate"] {
            make(&world, kind, name, value, &stage).await?;
        }
    }
    let mut before = Vec::new();
    for machine in &others {
        before.push(machine.get().await?);
    }
    // Made later than all of them.
    let mine = labelled(stage.machine("mine"), "mine").create().await?;
    mine.provisioned().await?;
    for kind_ in ["InfraCluster", "InfraMachineTemplate"] {
        let api = kind(&world, kind_);
        has_status(&api, "mine").await?;
        let theirs = api.get("theirs").await?;
        ensure!(
            theirs.data["status"].is_null(),
            "{kind_}: {:#}",
            theirs.data["status"]
        );
    }
    for (machine, before) in others.iter().zip(&before) {
        let now = machine.get().await?;
        ensure!(
            now.resource_version() == before.resource_version(),
            "written: {now:?}"
        );
        ensure!(cloud.calls_for(&machine.name)?.is_empty(), "{}", machine.name);
    }

    // Handed over: the label is all that it takes.
    let machines = kind(&world, "InfraMachine");
    relabel(&machines, "unlabelled", json!("mine")).await?;
    others[0].provisioned().await?;
    for kind_ in ["InfraCluster", "InfraMachineTemplate"] {
        let api = kind(&world, kind_);
        relabel(&api, "theirs", json!("mine")).await?;
        has_status(&api, "theirs").await?;
    }
    // And taken away: its deletion is for another provider now.
    relabel(&machines, "mine", Value::Null).await?;
    mine.delete().await?;
    others[0].delete().await?;
    others[0].gone().await?;
    let left = mine.get().await?;
    ensure!(left.metadata.deletion_timestamp.is_some() && !left.finalizers().is_empty());
    let vms = cloud.holds(1).await?;
    ensure!(vms[0].name == "mine", "{vms:?}");
    relabel(&machines, "mine", json!("mine")).await?;
    mine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// DRV-08: without `--namespace`, one process serves every namespace, and keeps them apart.
#[tokio::test(start_paused = true)]
async fn a_provider_without_a_namespace_serves_all_of_them() -> Result<()> {
    let here = World::new("here").await?;
    let there = here.beside("there").await?;
    let cloud = Cloud::new(&here);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&here).await?;
    let mut machines: Vec<(ByHand, InfraMachine)> = Vec::new();
    for world in [&here, &there] {
        let stage = Stage::set(world).await?;
        let machine = stage.machine("m").create().await?;
        let provisioned = machine.provisioned().await?;
        machines.push((machine, provisioned));
    }
    let vms = cloud.holds(2).await?;
    ensure!(
        vms[0].cluster() != vms[1].cluster(),
        "two Clusters, one id: {vms:?}"
    );
    let id = |index: usize| {
        let (_, machine): &(ByHand, InfraMachine) = &machines[index];
        machine.spec.provider_id.clone().context("no providerID")
    };
    ensure!(id(0)? != id(1)?, "two machines, one VM: {vms:?}");
    machines[0].0.delete().await?;
    machines[0].0.gone().await?;
    let left = cloud.holds(1).await?;
    ensure!(left[0].provider_id() == id(1)?, "the wrong VM was deleted");
    machines[1].0.delete().await?;
    machines[1].0.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}
