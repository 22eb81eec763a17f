//! Somebody else writes the object while the driver is being called.

use anyhow::{Result, ensure};
use capcmi::api::conditions;
use capcmi::driver::Operation;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// CTL-02, CTL-CR-07: a call that failed waits its time, whoever wrote a label meanwhile; and what it said is not lost, though
/// it was said of an older version of the object.
#[tokio::test]
async fn a_label_that_is_written_during_a_call_neither_repeats_it_nor_hides_its_failure() -> Result<()> {
    let world = World::new("conflict").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "code": "PermissionDenied", "latencyMs": 2000, "lastKnownState": "order-1"},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    eventually(DEADLINE, "a create", async || {
        let begun = cloud.count(Operation::CreateMachine, "m")? > 0;
        ensure!(begun, "not yet");
        Ok(())
    })
    .await?;
    let label = json!({"metadata": {"labels": {"example.com/team": "a"}}});
    let written = machine.patch(label).await?;
    let told = written.status.and_then(|status| status.last_operation);
    ensure!(told.is_none(), "the label came too late: {told:?}");
    machine
        .until("the failure", |machine| {
            says(machine, conditions::READY, "False", "PermissionDenied")
        })
        .await?;
    // Whatever the label and the writes of the provider trigger has happened once a later change is seen.
    machine
        .patch(json!({"metadata": {"labels": {"example.com/team": "b"}}}))
        .await?;
    machine.delete().await?;
    machine.gone().await?;
    let creates = cloud.count(Operation::CreateMachine, "m")?;
    ensure!(creates == 1, "{creates} creates");
    Ok(())
}
