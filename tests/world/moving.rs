//! The effects of `clusterctl move` at the source: objects may block a move, and the move deletes objects.
//! Also the parts that a backup lacks.

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{READY, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use cmi_driver::Operation;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// clusterctl pauses a Cluster and waits while an object of it has the annotation, so that a move interrupts
/// no create and no update. An update that has failed does not block a move.
#[tokio::test(start_paused = true)]
async fn a_create_or_an_update_under_way_blocks_a_move() -> Result<()> {
    let world = World::new("move-blocked").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let blocks = |machine: &InfraMachine| {
        let value = machine.annotations().get(annotations::BLOCK_MOVE);
        value.map(String::as_str) == Some(annotations::BLOCK_MOVE_VALUE)
    };
    let called = async |operation, count| {
        eventually(DEADLINE, "the call", async || {
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

/// DRV-07: clusterctl deletes machines at the source when the target has their VMs. At that time, the
/// provider's cache may not show the pause yet, or may have lost the Cluster.
#[tokio::test(start_paused = true)]
async fn a_machine_deleted_by_a_move_keeps_its_vm_without_a_pause() -> Result<()> {
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
    let add = json!([{"op": "add", "path": "/metadata/annotations",
        "value": {annotations::DELETE_FOR_MOVE: ""}}]);
    let add = Patch::<InfraMachine>::Json(serde_json::from_value(add)?);
    bare.api().patch("bare", &PatchParams::default(), &add).await?;
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

/// A backup may lack the status, and `clusterctl move --to-directory` leaves it out.
#[tokio::test(start_paused = true)]
async fn a_machine_without_its_status_finds_its_vm_and_makes_no_other() -> Result<()> {
    let world = World::new("restored").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let mut first = provider.start(&world).await?;
    world.cluster("one").await?;
    let (there, gone) = (
        ByHand::new(&world, "one", "there").create().await?,
        ByHand::new(&world, "one", "gone").create().await?,
    );
    let before = there.provisioned().await?;
    gone.provisioned().await?;
    first.terminate().await?;

    for machine in [&there, &gone] {
        let lost = Patch::Merge(json!({"status": null}));
        let restored = machine
            .api()
            .patch_status(&machine.name, &PatchParams::default(), &lost)
            .await?;
        ensure!(!restored.is_provisioned(), "{restored:?}");
    }
    let vms = cloud.vms()?;
    let vm = vms.iter().find(|vm| vm.name == "gone").context("no VM")?;
    cloud.console()?.vanish(vm.id)?;
    let _second = provider.start(&world).await?;
    let found = there.provisioned().await?;
    ensure!(found.spec.provider_id == before.spec.provider_id, "{found:?}");
    gone.until("a VM that is gone", |machine| {
        says(machine, READY, "False", "VirtualMachineVanished")
    })
    .await?;
    cloud.holds(1).await?;
    for machine in [&there, &gone] {
        let creates = cloud.count(Operation::CreateMachine, &machine.name)?;
        ensure!(creates == 1, "{}: {creates}", machine.name);
        machine.delete().await?;
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    Ok(())
}
