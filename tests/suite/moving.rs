//! `clusterctl move` to another management cluster: objects get new UIDs and lose their status, and
//! the VMs stay whose they are.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{NOT_READY_TAINT_REMOVED, READY, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use cmi_driver::Operation;
use kube::ResourceExt;
use management_cluster::eventually;
use management_cluster::stand_in::StandInController;
use serde_json::json;

use crate::support::by_hand::{says, small};
use crate::support::fleet::copy_bootstrap_secret;
use crate::support::{ByHand, Cloud, DEADLINE, Fleet, Provider, World};

/// DRV-07, DRV-08, INI-08: identity and cluster id live in what is moved, so the provider at the target finds
/// the VMs, makes none, and a machine that is made later belongs to the same cluster. INI-05: that a Node was
/// freed of its taint is moved as well, and shown again.
#[tokio::test]
async fn clusterctl_moves_a_cluster_and_every_vm_keeps_its_machine() -> Result<()> {
    let source = World::new("move").await?;
    let target = source.elsewhere().await?;
    let cloud = Cloud::new(&source);
    let provider = Provider::new(cloud.drivers(json!({})));
    let _at_source = provider.start(&source).await?;
    let _at_target = provider.clone().named("target").start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = world.kubelets(&cloud);
    source.cluster("md").await?;
    let fleet = Fleet::of(&source, "md");
    let spec = json!({"driver": "simulated", "providerSpec": small(), "shutdownTimeoutSeconds": 0,
        "notReadyTaint": {}});
    fleet.template_with("md-1", spec).await?;
    fleet.deployment("md-1", 2).await?;
    fleet.running(2).await?;
    let before = by_name(nodes_are_looked_at(&fleet).await?);
    let vms = cloud.holds(2).await?;

    source.move_to(&target)?;

    let left = source.cluster_api_objects()?;
    ensure!(left.is_empty(), "left at the source: {left:?}");
    let moved = Fleet::of(&target, "md");
    moved.running(2).await?;
    let after = by_name(nodes_are_looked_at(&moved).await?);
    ensure!(
        after.keys().eq(before.keys()),
        "{:?} became {:?}",
        before.keys(),
        after.keys()
    );
    for (name, old) in &before {
        let new = &after[name];
        ensure!(new.uid() != old.uid(), "not moved at all");
        ensure!(new.spec == old.spec, "{:?} became {:?}", old.spec, new.spec);
        for key in [
            annotations::CLUSTER_ID,
            annotations::MACHINE_ID,
            annotations::VM_EXISTENCE,
            annotations::APPLIED_PROVIDER_SPEC,
            annotations::NOT_READY_TAINT_REMOVED_FROM,
        ] {
            let (old, new) = (old.annotations().get(key), new.annotations().get(key));
            ensure!(old.is_some() && old == new, "{key}: {old:?} became {new:?}");
        }
        ensure!(says(new, READY, "True", "Ready"), "{:?}", new.status);
        let (old, new) = (
            old.status.clone().unwrap_or_default(),
            new.status.clone().unwrap_or_default(),
        );
        ensure!(
            old.addresses == new.addresses && old.node_name == new.node_name,
            "{new:?}"
        );
        ensure!(old.failure_domain == new.failure_domain, "{new:?}");
        ensure!(
            cloud.count(Operation::CreateMachine, name)? == 1,
            "{name} was made again"
        );
        ensure!(
            cloud.count(Operation::DeleteMachine, name)? == 0,
            "{name} was deleted"
        );
    }
    ensure!(cloud.vms()? == vms, "VMs were touched");

    copy_bootstrap_secret(&source, &target, "boot").await?;
    moved.scale(3).await?;
    moved.running(3).await?;
    let clusters: Vec<_> = cloud
        .holds(3)
        .await?
        .iter()
        .map(|vm| vm.cluster().to_owned())
        .collect();
    ensure!(clusters.iter().all(|id| *id == vms[0].cluster()), "{clusters:?}");
    target.kubectl(&["delete", "machinedeployment", "md", "--wait=false"])?;
    moved.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// clusterctl pauses a Cluster and waits while an object of it has the annotation: a create or an update that
/// is under way is not cut in two. One that has failed is under way no more.
#[tokio::test]
async fn clusterctl_has_to_wait_while_a_create_or_an_update_is_under_way() -> Result<()> {
    let world = World::new("move-blocked").await?;
    let cloud = Cloud::new(&world);
    // Of a VM whose id was named it waits for a pause as well.
    let drivers = cloud.drivers(json!({"namesProviderIds": false}));
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    let blocks = |machine: &InfraMachine| {
        let value = machine.annotations().get(annotations::BLOCK_MOVE);
        value.map(String::as_str) == Some(annotations::BLOCK_MOVE_VALUE)
    };
    let called = async |operation, count| {
        management_cluster::eventually(crate::support::DEADLINE, "the call", async || {
            let calls = cloud.count(operation, "m")?;
            ensure!(calls == count, "{calls} calls");
            Ok(())
        })
        .await
    };
    cloud.fail(json!([
        {"operation": "CreateMachine", "latencyMs": 2000},
        {"operation": "UpdateMachine", "latencyMs": 2000, "count": 1},
        {"operation": "UpdateMachine", "code": "Unavailable"},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    called(Operation::CreateMachine, 1).await?;
    ensure!(blocks(&machine.get().await?), "while it is made");
    ensure!(!blocks(&machine.provisioned().await?), "when it is made");

    machine.respecify("labels", json!({"round": "1"})).await?;
    called(Operation::UpdateMachine, 1).await?;
    ensure!(blocks(&machine.get().await?), "while it is updated");
    let updated = |machine: &InfraMachine| {
        let last = machine
            .status
            .as_ref()
            .and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| {
            last.type_ == OperationType::Update && last.state == OperationState::Successful
        })
    };
    ensure!(
        !blocks(&machine.until("the update", updated).await?),
        "when it is updated"
    );

    machine.respecify("labels", json!({"round": "2"})).await?;
    machine
        .until("an update that failed", |machine| {
            says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "False", "Unavailable") && blocks(machine)
        })
        .await?;
    machine
        .patch(json!({"metadata": {"annotations": {annotations::PAUSED: ""}}}))
        .await?;
    machine
        .until("a machine that may be moved", |machine| !blocks(machine))
        .await?;
    let by_a_user = json!({annotations::BLOCK_MOVE: "by-hand", annotations::PAUSED: null});
    machine
        .patch(json!({"metadata": {"annotations": by_a_user}}))
        .await?;
    cloud.fail(json!([]))?;
    machine.respecify("labels", json!({"round": "3"})).await?;
    let left = machine.until("the last update", updated).await?;
    let kept = left.annotations().get(annotations::BLOCK_MOVE);
    ensure!(kept.map(String::as_str) == Some("by-hand"), "{kept:?}");
    Ok(())
}

/// DRV-07: at the source, the provider's cache may not show yet that the Cluster is paused, or show no
/// Cluster any more, when clusterctl deletes a machine whose VM the target has by now.
#[tokio::test]
async fn what_clusterctl_deletes_at_the_source_keeps_its_vm_though_no_pause_is_seen() -> Result<()> {
    let world = World::new("move-source").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let by_hand = |name: &str| ByHand::new(&world, "one", name).controlled_by_the_case().create();
    let (bare, whole, other) = (
        by_hand("bare").await?,
        by_hand("whole").await?,
        by_hand("other").await?,
    );
    for machine in [&bare, &whole, &other] {
        machine.provisioned().await?;
    }
    // Bare, as clusterctl leaves it: its annotation stands in the place of all.
    let add = format!(
        r#"[{{"op": "add", "path": "/metadata/annotations", "value": {{"{}": ""}}}}]"#,
        annotations::DELETE_FOR_MOVE
    );
    world.kubectl(&["patch", "inframachine", "bare", "--type=json", "-p", &add])?;
    whole
        .patch(json!({"metadata": {"annotations": {annotations::DELETE_FOR_MOVE: ""}}}))
        .await?;
    let mut deleted = Vec::new();
    for machine in [&bare, &whole] {
        machine.delete().await?;
        deleted.push(machine.get().await?);
    }
    // Another one, deleted later.
    other.delete().await?;
    other.gone().await?;
    for (machine, before) in [&bare, &whole].into_iter().zip(&deleted) {
        let now = machine.get().await?;
        ensure!(now.metadata.deletion_timestamp.is_some() && !now.finalizers().is_empty());
        ensure!(
            now.resource_version() == before.resource_version(),
            "written: {now:?}"
        );
        machine.patch(json!({"metadata": {"finalizers": []}})).await?;
        machine.gone().await?;
        let calls = cloud.count(Operation::DeleteMachine, &machine.name)?;
        ensure!(calls == 0, "{} was deleted", machine.name);
    }
    cloud.holds(2).await?;
    Ok(())
}

/// Waits until of every machine it is said that its Node does not have the not-ready taint.
async fn nodes_are_looked_at(fleet: &Fleet<'_>) -> Result<Vec<InfraMachine>> {
    eventually(DEADLINE, "Nodes that were looked at", async || {
        let machines = fleet.infra_machines().await?;
        for machine in &machines {
            ensure!(
                says(machine, NOT_READY_TAINT_REMOVED, "True", "NotReadyTaintRemoved"),
                "{:?}",
                machine.status
            );
        }
        Ok(machines)
    })
    .await
}

fn by_name(machines: Vec<InfraMachine>) -> BTreeMap<String, InfraMachine> {
    machines
        .into_iter()
        .map(|machine| (machine.name_any(), machine))
        .collect()
}
