//! A provider process that is really killed in the middle of a call reaches the same end once it runs again.
//!
//! Every other crash point, and every scenario, is a case of `tests/world`.

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use management_cluster::eventually;
use serde_json::json;

use crate::support::provider::Replica;
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Provider, Stage, World};

/// DRV-10, DRV-12, DRV-21, DRV-22: killed when a create, and later a deletion, is carried out and not
/// answered.
#[tokio::test]
async fn a_killed_process_takes_up_its_create_and_its_deletion() -> Result<()> {
    let world = World::new("crash").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let driver = Backing::Plugin.of(&world, &cloud, json!({})).await?;
    let provider = Provider::new(&driver.drivers);
    let mut first = provider.clone().named("first").start(&world).await?;
    unanswered(&cloud, Operation::CreateMachine)?;
    let machine = stage.machine("m").create().await?;
    killed_in(&cloud, &machine, Operation::CreateMachine, &mut first).await?;
    let vms = cloud.vms()?;
    ensure!(vms.len() == 1, "the create was not carried out: {vms:?}");

    let mut second = provider.clone().named("second").start(&world).await?;
    let provisioned = machine.provisioned().await?;
    ensure!(
        cloud.vms()? == vms && provisioned.spec.provider_id == Some(vms[0].provider_id()),
        "{provisioned:?} is not of {vms:?}"
    );
    unanswered(&cloud, Operation::DeleteMachine)?;
    machine.delete().await?;
    killed_in(&cloud, &machine, Operation::DeleteMachine, &mut second).await?;
    ensure!(
        !machine
            .get()
            .await?
            .metadata
            .finalizers
            .unwrap_or_default()
            .is_empty(),
        "it is released before the deletion was answered"
    );

    let _third = provider.named("third").start(&world).await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// Has a call carried out, and never answered.
fn unanswered(cloud: &Cloud, operation: Operation) -> Result<()> {
    cloud.fail(json!([{"operation": operation.name(), "hang": "after"}]))
}

/// Kills the provider when the call is carried out.
async fn killed_in(
    cloud: &Cloud,
    machine: &ByHand,
    operation: Operation,
    replica: &mut Replica,
) -> Result<()> {
    let wanted = usize::from(operation == Operation::CreateMachine);
    eventually(DEADLINE, &format!("{operation:?}, carried out"), async || {
        let call = cloud.calls_for(&machine.name)?.pop().context("no call")?;
        let vms = cloud.vms()?.len();
        ensure!(
            call.operation == operation && vms == wanted,
            "{:?}, {vms} VMs",
            call.operation
        );
        Ok(())
    })
    .await?;
    replica.process.kill();
    cloud.fail(json!([]))
}
