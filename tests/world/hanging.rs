//! Drivers that take a call and never answer.

use anyhow::{Result, ensure};
use capcmi::api::conditions::READY;
use cmi_driver::Operation;
use cmi_simulated::Phase;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// Calls at a time of the driver that hangs: one is kept from creates, and one from a single namespace.
const CALLS: usize = 4;
/// The calls that are left for creates of one namespace.
const CREATES: usize = CALLS - 2;

/// CTL-02: a driver that hangs holds its own permits only. Machines that wait for a permit report
/// `WaitingForDriver`.
#[tokio::test(start_paused = true)]
async fn a_hanging_driver_blocks_no_other_and_no_deletion() -> Result<()> {
    let world = World::new("hanging").await?;
    let (stuck, fine) = (Cloud::named(&world, "stuck"), Cloud::named(&world, "fine"));
    let entry = json!({"name": "stuck", "maxConcurrentCalls": CALLS, "timeouts": {"createMachine": "1m"}});
    let drivers = Cloud::several([
        stuck.drivers_with(entry, json!({})),
        fine.drivers_with(json!({"name": "fine"}), json!({})),
    ])?;
    let _provider = Provider::new(drivers)
        .with(|options| options.machine_concurrency = 1)
        .start(&world)
        .await?;
    world.cluster("one").await?;
    let on = |driver: &str, name: &str| ByHand::new(&world, "one", name).infra("/spec/driver", json!(driver));
    let old = on("stuck", "old").create().await?;
    old.provisioned().await?;
    stuck.fail(json!([{"operation": "CreateMachine", "hang": "before"}]))?;
    let mut new = Vec::new();
    for number in 0..2 * CALLS {
        new.push(on("stuck", &format!("new-{number}")).create().await?);
    }
    let creates = || -> Result<usize> {
        let is_new = |machine: &str| machine.starts_with("new-");
        let calls = stuck.calls()?.into_iter().filter(|call| {
            call.operation == Operation::CreateMachine
                && call.phase == Phase::Started
                && is_new(&call.machine)
        });
        Ok(calls.count())
    };
    eventually(DEADLINE, "creates that hang", async || {
        ensure!(creates()? == CREATES, "{} creates", creates()?);
        Ok(())
    })
    .await?;

    let other = on("fine", "other").create().await?;
    other.provisioned().await?;
    old.delete().await?;
    old.gone().await?;
    ensure!(
        creates()? == CREATES,
        "they came when creates had timed out, and not before"
    );

    eventually(DEADLINE, "machines that say that they wait", async || {
        let mut waiting = 0;
        for machine in &new {
            let machine = machine.get().await?;
            let waits = says(&machine, READY, "False", "WaitingForDriver");
            waiting += usize::from(waits && machine.metadata.finalizers.is_none());
        }
        ensure!(waiting > CALLS, "only {waiting} machines say that they wait");
        Ok(())
    })
    .await?;
    stuck.fail(json!([]))?;
    for machine in &new {
        machine.provisioned().await?;
    }
    stuck.holds(new.len()).await?;
    Ok(())
}

/// Its capabilities are not known, so each of its machines asks for them.
#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_from_the_start_blocks_no_other() -> Result<()> {
    let world = World::new("mute").await?;
    let (mute, fine) = (Cloud::named(&world, "mute"), Cloud::named(&world, "fine"));
    mute.fail(json!([
        {"operation": "GetPluginCapabilities", "hang": "before"}, {"operation": "Probe", "hang": "before"},
    ]))?;
    let timeouts = json!({"getPluginCapabilities": "10m", "probe": "10m"});
    let drivers = Cloud::several([
        mute.drivers_with(
            json!({"name": "mute", "maxConcurrentCalls": 2, "timeouts": timeouts}),
            json!({}),
        ),
        fine.drivers_with(json!({"name": "fine"}), json!({})),
    ])?;
    let _provider = Provider::new(drivers)
        .with(|options| options.machine_concurrency = 1)
        .start(&world)
        .await?;
    world.cluster("one").await?;
    let on = |driver: &str, name: &str| ByHand::new(&world, "one", name).infra("/spec/driver", json!(driver));
    for number in 0..4 {
        on("mute", &format!("mute-{number}")).create().await?;
    }
    eventually(DEADLINE, "a question that hangs", async || {
        let asked = |call: &cmi_simulated::CallLine| call.operation == Operation::GetPluginCapabilities;
        ensure!(mute.calls()?.iter().any(asked), "it was not asked");
        Ok(())
    })
    .await?;
    on("fine", "other").create().await?.provisioned().await?;
    Ok(())
}
