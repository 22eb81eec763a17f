//! A provider that is asked to stop in the middle of a call.

use anyhow::{Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::Vm;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::is_provisioned;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

/// DRV-10, DRV-12
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_call_in_flight_and_writes_its_result() -> Result<()> {
    let world = World::without_core("drain").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    cloud.fail(json!([{"operation": "CreateMachine", "machine": "m", "latencyMs": 4000}]))?;
    let provider = Provider::new(cloud.drivers(json!({})));
    let mut first = provider.start(&world).await?;
    stage.machine("m").create().await?;
    eventually(DEADLINE, "the create", async || {
        ensure!(cloud.count(Operation::CreateMachine, "m")? == 1, "no create yet");
        Ok(())
    })
    .await?;
    ensure!(cloud.vms()?.is_empty(), "the call is over already");
    first.terminate().await?;
    let machine = stage.machine("m").get().await?;
    let ids: Vec<_> = cloud.vms()?.iter().map(Vm::provider_id).collect();
    ensure!(
        is_provisioned(&machine) && machine.spec.provider_id.as_slice() == ids,
        "the result was not written: {:?} {:?}",
        machine.spec,
        machine.status
    );
    let _second = provider.start(&world).await?;
    // Machines are reconciled in their order.
    stage.machine("n").create().await?;
    stage.machine("n").provisioned().await?;
    ensure!(
        cloud.count(Operation::CreateMachine, "m")? == 1,
        "it was created again"
    );
    Ok(())
}
