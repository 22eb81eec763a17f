//! Machines come up and go.

use anyhow::{Result, ensure};
use capcmi::api::conditions::VIRTUAL_MACHINE_UP_TO_DATE;
use cmi_driver::{Capabilities, Operation};
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// CTL-01, DRV-10: a machine comes up with one VM, and goes with it.
#[tokio::test(start_paused = true)]
async fn a_machine_comes_up_and_goes_with_its_vm() -> Result<()> {
    let world = World::new("lifecycle").await?;
    let cloud = Cloud::new(&world);
    let mut provider = Provider::new(cloud.drivers(json!({"bootSeconds": 30})))
        .start(&world)
        .await?;
    world.cluster("c").await?;
    let machine = ByHand::new(&world, "c", "m").create().await?;
    machine.provisioned().await?;
    cloud.holds(1).await?;
    machine.delete().await?;
    machine.gone().await?;
    ensure!(cloud.vms()?.is_empty(), "{:?}", cloud.vms()?);
    provider.terminate().await
}

/// DRV-18, INI-11, UPD-02: a driver with CreateMachine and DeleteMachine alone.
#[tokio::test(start_paused = true)]
async fn create_and_delete_are_all_that_a_driver_needs() -> Result<()> {
    let world = World::new("least").await?;
    let cloud = Cloud::new(&world);
    let others: Vec<_> = Operation::ALL
        .into_iter()
        .filter(|operation| !Capabilities::minimal().supports(*operation))
        .map(Operation::name)
        .collect();
    let drivers = cloud.drivers(json!({"disabledCalls": others}));
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("c").await?;
    let names = ["a", "b", "d"].map(str::to_owned);
    let machines = names.clone().map(|name| ByHand::new(&world, "c", name));
    ByHand::create_all(&machines).await?;
    for machine in &machines {
        machine.provisioned().await?;
    }
    cloud.holds(3).await?;
    machines[0].respecify("labels", json!({"tier": "gold"})).await?;
    machines[0]
        .until("a change that can't be made", |machine| {
            says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "False", "NotHotUpdatable")
        })
        .await?;
    for machine in &machines {
        machine.delete().await?;
    }
    for machine in &machines {
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    let calls = cloud.calls()?;
    let other = calls.iter().find(|call| others.contains(&call.operation.name()));
    ensure!(other.is_none(), "{other:?} was called");
    Ok(())
}

/// A provider that is killed and restarted adopts the existing state without any call.
#[tokio::test(start_paused = true)]
async fn a_restart_takes_over_what_is_there() -> Result<()> {
    let world = World::new("restart").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let stage = Stage::set(&world).await?;
    let mut first = provider.start(&world).await?;
    let machine = stage.machine("m").create().await?;
    machine.provisioned().await?;
    first.kill();
    let calls = cloud.calls_for("m")?.len();
    let _second = provider.start(&world).await?;
    machine
        .patch(json!({"metadata": {"annotations": {"a": "b"}}}))
        .await?;
    tokio::time::sleep(std::time::Duration::from_mins(1)).await;
    ensure!(
        cloud.calls_for("m")?.len() == calls,
        "{:?}",
        cloud.calls_for("m")?
    );
    cloud.holds(1).await?;
    Ok(())
}
