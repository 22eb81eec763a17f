//! The status when a driver is away, and when a VM has failed. A MachineHealthCheck decides by it.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DRIVER_REACHABLE, READY};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::{Condition, VmId};
use serde_json::{Value, json};
use std::time::Duration;

use crate::support::by_hand::{condition, is_provisioned, message, says};
use crate::support::fleet::node_is;
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// Many times as long as the grace of an outage and the interval of the inventory, which are a second.
const A_WHILE: Duration = Duration::from_mins(1);

/// DRV-30, CTL-GS-14, CMI-74: a driver that cannot be reached reports nothing about its VMs.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_driver_leaves_machines_ready() -> Result<()> {
    survives("outage", &json!({"code": "Unavailable"})).await
}

/// DRV-30, CTL-GS-04: a driver that never answers its calls reports nothing either.
#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_leaves_machines_ready() -> Result<()> {
    survives("hanging", &json!({"hang": "before"})).await
}

/// Lets every call of the driver fail for a while.
async fn survives(case: &str, fault: &Value) -> Result<()> {
    let world = World::new(case).await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let machines = three(&world).await?;
    let (before, vms) = (status_of(&machines).await?, cloud.vms()?);

    let mut faults = vec![fault.clone()];
    faults.extend(
        ["Probe", "GetPluginInfo", "GetPluginCapabilities"].map(|operation| {
            let mut fault = fault.clone();
            fault["operation"] = json!(operation);
            fault
        }),
    );
    cloud.fail(Value::Array(faults))?;
    for machine in &machines {
        let what = "a machine whose driver is away";
        let is_away = |machine: &InfraMachine| {
            condition(machine, DRIVER_REACHABLE).is_some_and(|shown| shown.status == "False")
        };
        machine.until(what, is_away).await?;
    }
    tokio::time::sleep(A_WHILE).await;
    ensure!(
        status_of(&machines).await? == before,
        "{:?}",
        status_of(&machines).await?
    );
    ensure!(cloud.vms()? == vms, "VMs were touched");

    cloud.fail(json!([]))?;
    for machine in &machines {
        let is_back = |machine: &InfraMachine| {
            says(machine, DRIVER_REACHABLE, "True", "Reachable") && is_provisioned(machine)
        };
        machine.until("a driver that is back", is_back).await?;
    }
    ensure!(cloud.vms()? == vms, "VMs were touched");
    Ok(())
}

/// Three machines that run.
async fn three(world: &World) -> Result<Vec<ByHand>> {
    let stage = Stage::set(world).await?;
    let mut machines = Vec::new();
    for name in ["a", "b", "c"] {
        let machine = stage.machine(name).create().await?;
        machine.provisioned().await?;
        machines.push(machine);
    }
    Ok(machines)
}

/// The part of the status that Cluster API reads.
async fn status_of(machines: &[ByHand]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for machine in machines {
        let machine = machine.get().await?;
        let provisioned = machine
            .status
            .as_ref()
            .and_then(|status| status.initialization.clone());
        all.push(json!([condition(&machine, READY), provisioned]));
    }
    Ok(all)
}

/// CTL-LM-00, CTL-GS-05: a VM that the driver confirms to be gone is not made again under its machine.
#[tokio::test(start_paused = true)]
async fn a_vanished_vm_is_reported_and_not_made_again() -> Result<()> {
    let vanish = async |_: &World, cloud: &Cloud, id| Ok(cloud.console()?.vanish(id)?);
    reported("vanished", "VirtualMachineVanished", vanish).await
}

/// When a Node is silent, the provider asks the driver, which confirms that the VM has crashed.
#[tokio::test(start_paused = true)]
async fn a_crash_that_the_node_shows_is_confirmed_by_the_driver() -> Result<()> {
    let crash = async |world: &World, cloud: &Cloud, id| {
        cloud.console()?.set_condition(id, Condition::Crashed)?;
        node_is(world, "a", "True").await?;
        node_is(world, "a", "Unknown").await
    };
    reported("crashed", "VirtualMachineFailed", crash).await
}

/// Lets the VM of machine `a` fail, and waits until the status reports this reason.
async fn reported(
    case: &str,
    reason: &str,
    happen: impl AsyncFnOnce(&World, &Cloud, VmId) -> Result<()>,
) -> Result<()> {
    let world = World::new(case).await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let machines = three(&world).await?;
    let before = status_of(&machines).await?;
    let (lost, others): (Vec<_>, Vec<_>) = cloud.vms()?.into_iter().partition(|vm| vm.name == "a");
    happen(&world, &cloud, lost.first().context("no VM")?.id).await?;
    let shown = machines[0]
        .until(reason, |machine| says(machine, READY, "False", reason))
        .await?;
    ensure!(!message(&shown, READY).is_empty(), "no message");

    tokio::time::sleep(A_WHILE).await;
    let now = status_of(&machines).await?;
    ensure!(
        now[0][1] == before[0][1],
        "provisioned was taken back: {}",
        now[0]
    );
    ensure!(now[1..] == before[1..], "{now:?}");
    let creates = cloud.count(Operation::CreateMachine, "a")?;
    ensure!(creates == 1, "{creates} creates: it was made again in silence");
    machines[0].delete().await?;
    machines[0].gone().await?;
    ensure!(cloud.holds(2).await? == others, "the other VMs were touched");
    Ok(())
}

/// The driver has not reported its capabilities yet when the provider sees the Machine.
#[tokio::test(start_paused = true)]
async fn a_node_silent_since_before_the_start_has_the_driver_asked() -> Result<()> {
    let world = World::new("unwatched").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})))
        .with(|options| options.inventory_interval = Duration::from_hours(24));
    let mut first = provider.start(&world).await?;
    let machine = Stage::set(&world).await?.machine("m").create().await?;
    machine.provisioned().await?;
    first.kill();
    let vms = cloud.holds(1).await?;
    cloud.console()?.set_condition(vms[0].id, Condition::Crashed)?;
    node_is(&world, "m", "Unknown").await?;
    let _second = provider.start(&world).await?;
    let has_failed = |machine: &InfraMachine| says(machine, READY, "False", "VirtualMachineFailed");
    machine.until("a VM that failed", has_failed).await?;
    Ok(())
}
