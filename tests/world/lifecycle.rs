//! Machines come up and go.

use anyhow::{Result, ensure};
use serde_json::json;

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

/// A provider that is killed and started again takes over what it finds, and calls nothing for it.
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
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    ensure!(
        cloud.calls_for("m")?.len() == calls,
        "{:?}",
        cloud.calls_for("m")?
    );
    cloud.holds(1).await?;
    Ok(())
}
