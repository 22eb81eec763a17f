//! A Machine that is being deleted, and whose InfraMachine waits: for a hook, a drain or a volume.

use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi::api::conditions;
use cmi_driver::Operation;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// Deletes the Machine, which a finalizer keeps.
async fn delete_machine(world: &World, name: &str) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/drain"]}}));
    machines.patch(name, &PatchParams::default(), &finalizer).await?;
    machines.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

async fn is_spared(machine: &ByHand, condition: &str) -> Result<()> {
    machine
        .until("a machine whose deletion is awaited", |machine| {
            says(machine, condition, "False", "MachineDeleted")
        })
        .await
        .map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_machine_in_deletion_gets_no_vm() -> Result<()> {
    let world = World::without_core("no-vm").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let machine = stage
        .machine("m")
        .machine("/spec/bootstrap", json!({}))
        .create()
        .await?;
    machine
        .until("a wait for bootstrap data", |machine| {
            says(machine, conditions::READY, "False", "WaitingForBootstrapData")
        })
        .await?;
    delete_machine(&world, "m").await?;
    is_spared(&machine, conditions::READY).await?;
    let bootstrap = Patch::Merge(json!({"spec": {"bootstrap": {"dataSecretName": "boot"}}}));
    objects(&world, "cluster.x-k8s.io", "v1beta2", "Machine")
        .patch("m", &PatchParams::default(), &bootstrap)
        .await?;
    tokio::time::sleep(Duration::from_hours(1)).await;
    ensure!(cloud.calls_for("m")?.is_empty(), "the driver was called");
    machine.delete().await?;
    machine.gone().await
}

/// The VM of a failed create is still looked for once the InfraMachine itself is deleted.
#[tokio::test(start_paused = true)]
async fn a_machine_in_deletion_is_not_created_again() -> Result<()> {
    let world = World::without_core("no-retry").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    cloud.fail(json!([{"operation": "CreateMachine", "code": "Unavailable", "message": "no"}]))?;
    let machine = stage.machine("m").create().await?;
    machine
        .until("a failed create", |machine| {
            says(machine, conditions::READY, "False", "Unavailable")
        })
        .await?;
    delete_machine(&world, "m").await?;
    is_spared(&machine, conditions::READY).await?;
    let before = cloud.calls_for("m")?.len();
    cloud.fail(json!([]))?;
    tokio::time::sleep(Duration::from_hours(1)).await;
    ensure!(cloud.calls_for("m")?.len() == before, "the driver was called");
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_machine_in_deletion_is_not_updated() -> Result<()> {
    let world = World::without_core("no-update").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let machine = stage.machine("m").create().await?;
    machine.provisioned().await?;
    delete_machine(&world, "m").await?;
    machine.respecify("labels", json!({"round": "1"})).await?;
    is_spared(&machine, conditions::VIRTUAL_MACHINE_UP_TO_DATE).await?;
    tokio::time::sleep(Duration::from_hours(1)).await;
    ensure!(
        cloud.count(Operation::UpdateMachine, "m")? == 0,
        "the VM was updated"
    );
    let up = machine.get().await?;
    ensure!(says(&up, conditions::READY, "True", "Ready"), "Ready was touched");
    Ok(())
}
