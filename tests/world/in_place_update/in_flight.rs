//! Updates that are under way or half done when their machine is moved or deleted.

use anyhow::{Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::Phase;
use serde_json::{Value, json};

use super::{InPlace, LOOKS, both, half, tier};
use crate::support::hooks::begin_update;
use crate::support::{ByHand, Cloud, World};

/// A move does not cut an update in two: it waits for the call, and the target finds the update done.
#[tokio::test(start_paused = true)]
async fn a_move_waits_for_the_call_of_an_update() -> Result<()> {
    let in_place = patient("in-place-block").await?;
    let target = under_way(&in_place).await?.elsewhere().await?;
    let mut there = in_place.provider.start(&target).await?;

    let at_target = ByHand::new(&target, "one", "m");
    let meanwhile = async {
        tokio::time::sleep(LOOKS).await;
        ensure!(
            is_in_flight(&in_place.cloud)?,
            "the move waited for something else"
        );
        let moved = at_target.api().get_opt("m").await?;
        ensure!(moved.is_none(), "moved in the middle of the call: {moved:?}");
        in_place.cloud.fail(json!([]))
    };
    tokio::try_join!(in_place.world.move_when_unblocked(&target), meanwhile)?;
    let moved = InPlace {
        hooks: there.hooks().await?,
        world: target,
        machine: at_target,
        ..in_place
    };
    moved.finish().await?;
    moved.is_updated_to(&json!({"tier": "gold"})).await?;
    ensure!(moved.updates()? == 1, "{} updates", moved.updates()?);
    Ok(())
}

/// A deletion waits for the call, and takes the VM. It is neither updated again nor left.
#[tokio::test(start_paused = true)]
async fn a_machine_deleted_during_its_update_takes_its_vm_along() -> Result<()> {
    let in_place = patient("in-place-deleted").await?;
    under_way(&in_place).await?;
    let (cloud, machine) = (&in_place.cloud, &in_place.machine);
    machine.delete().await?;
    tokio::time::sleep(LOOKS).await;
    let deleted = machine.get().await?;
    ensure!(deleted.metadata.deletion_timestamp.is_some(), "it is not deleted");
    ensure!(is_in_flight(cloud)?, "the call has ended");
    let delete_calls = cloud.count(Operation::DeleteMachine, "m")?;
    ensure!(delete_calls == 0, "two calls change the VM at a time");

    cloud.fail(json!([]))?;
    machine.gone().await?;
    cloud.holds(0).await?;
    ensure!(in_place.updates()? == 1, "{} updates", in_place.updates()?);
    Ok(())
}

/// UPD-03: the rest of a failed update is done where the machine was moved to.
#[tokio::test(start_paused = true)]
async fn a_failed_update_goes_on_after_a_move() -> Result<()> {
    let lost = json!([{"operation": "UpdateMachine", "loseResponse": "Internal"}]);
    moved_in_the_middle("in-place-move", lost, "Internal", &tier("gold")).await
}

/// UPD-03: a VM that has one of two new values when it is moved gets both at the target.
#[tokio::test(start_paused = true)]
async fn a_half_done_update_is_finished_after_a_move() -> Result<()> {
    moved_in_the_middle("in-place-half-move", half(), "Aborted", &both("gold")).await
}

/// Moves a machine whose update ends with a failure of this code, and waits for its end at the target.
async fn moved_in_the_middle(case: &str, failures: Value, code: &str, spec: &Value) -> Result<()> {
    let in_place = InPlace::new(case).await?;
    let target = in_place.world.elsewhere().await?;
    let mut there = in_place.provider.start(&target).await?;
    in_place.cloud.fail(failures)?;
    begin_update(&in_place.machine, spec.clone()).await?;
    in_place.answers(&format!("{code}: UpdateMachine")).await?;
    let left = in_place.cloud.vms()?;

    in_place.world.move_when_unblocked(&target).await?;
    ensure!(
        in_place.cloud.vms()? == left,
        "updated before the driver was well again"
    );
    in_place.cloud.fail(json!([]))?;
    let moved = InPlace {
        machine: ByHand::new(&target, "one", "m"),
        hooks: there.hooks().await?,
        world: target,
        ..in_place
    };
    moved.finish().await?;
    moved.is_updated_to(&spec["labels"]).await
}

/// With a driver whose updates are waited for.
async fn patient(case: &str) -> Result<InPlace> {
    let entry = json!({"timeouts": {"updateMachine": "1h"}});
    InPlace::with(case, entry, |provider| provider).await
}

/// Has the driver begin an update that it does not end.
async fn under_way(in_place: &InPlace) -> Result<&World> {
    in_place
        .cloud
        .fail(json!([{"operation": "UpdateMachine", "hang": "held"}]))?;
    begin_update(&in_place.machine, tier("gold")).await?;
    in_place
        .asked_until("an update that is under way", |_| {
            in_place.updates().is_ok_and(|calls| calls == 1)
        })
        .await?;
    Ok(&in_place.world)
}

/// Whether one update has begun and not ended.
fn is_in_flight(cloud: &Cloud) -> Result<bool> {
    let calls = cloud.calls()?;
    let of_update = |phase| {
        calls
            .iter()
            .filter(move |call| call.operation == Operation::UpdateMachine && call.phase == phase)
            .count()
    };
    Ok(of_update(Phase::Started) == 1 && of_update(Phase::Ended) == 0)
}
