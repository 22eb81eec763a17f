//! An update that is under way when its machine is moved, by the real clusterctl.

use anyhow::{Context as _, Result, ensure};
use capcmi::api::annotations;
use cmi_driver::Operation;
use cmi_simulated::Phase;
use kube::ResourceExt as _;
use management_cluster::stand_in::StandInController;
use management_cluster::{Process, eventually};
use serde_json::json;

use super::{InPlace, called, ids, retemplate, settled, tier};
use crate::support::{Backing, Cloud, DEADLINE, Extension, Fleet, Provider, bootstrap};

/// `clusterctl move` does not cut an update in two: it waits for the call, and the target finds it done.
#[tokio::test]
async fn clusterctl_waits_for_the_call_of_an_update() -> Result<()> {
    // The call is held, and has to end by its release alone.
    let patient = json!({"timeouts": {"updateMachine": "1h"}});
    let source = InPlace::with("in-place-block", Backing::InProcess, patient).await?;
    let (world, cloud) = (&source.world, &source.cloud);
    let target = world.elsewhere().await?;
    target.apply(bootstrap::KINDS).await?;
    let _serving = source.serve().await?;
    let extension = Extension::new(&target)?;
    let at_target = extension.of(Provider::new(cloud.drivers(json!({}))));
    let _at_target = at_target.named("target").start(&target).await?;
    extension.register(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let fleet = source.fleet(1).await?;
    let before = cloud.holds(1).await?;
    cloud.fail(json!([{"operation": "UpdateMachine", "hang": "held"}]))?;
    retemplate(&fleet, "md-2", tier("gold")).await?;
    called(cloud, &before[0].name).await?;
    blocks_its_move(&fleet).await?;

    let mut moving = world.begin_move_to(&target)?;
    let log = moving.log().to_owned();
    let is_blocked = async || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Move blocked by"));
    moving.wait_until(DEADLINE, is_blocked).await?;
    ensure!(is_in_flight(cloud)?, "clusterctl waited for something else");
    blocks_its_move(&fleet).await?;
    let objects = target.cluster_api_objects()?;
    ensure!(objects.is_empty(), "moved in the middle of the call: {objects:?}");

    cloud.fail(json!([]))?;
    ended(&mut moving).await?;
    let moved = Fleet::of(&target, "md");
    settled(&target, cloud, &moved, "gold").await?;
    moved.running(1).await?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");
    let calls = cloud.count(Operation::UpdateMachine, &before[0].name)?;
    ensure!(calls == 1, "{calls} updates");
    Extension::unregister(world).await
}

/// Whether an update has begun and not ended.
fn is_in_flight(cloud: &Cloud) -> Result<bool> {
    let calls = cloud.calls()?;
    let of_update = |phase| {
        let is_one = calls
            .iter()
            .filter(move |call| call.operation == Operation::UpdateMachine && call.phase == phase);
        is_one.count()
    };
    Ok(of_update(Phase::Started) == 1 && of_update(Phase::Ended) == 0)
}

async fn blocks_its_move(fleet: &Fleet<'_>) -> Result<()> {
    for machine in fleet.infra_machines().await? {
        let value = machine.annotations().get(annotations::BLOCK_MOVE);
        ensure!(
            value.map(String::as_str) == Some(annotations::BLOCK_MOVE_VALUE),
            "{:?}",
            machine.annotations()
        );
    }
    Ok(())
}

/// Waits until clusterctl has moved everything.
async fn ended(moving: &mut Process) -> Result<()> {
    let what = "the end of the move";
    let status = eventually(DEADLINE, what, async || {
        moving.status()?.context("clusterctl still waits")
    })
    .await?;
    ensure!(status.success(), "clusterctl ended with {status}");
    Ok(())
}
