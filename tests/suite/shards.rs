//! Two providers on one management cluster, each with the machines that its `--watch-filter` shows, and
//! machines whose label moves from one to the other.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations::CLUSTER_ID;
use capcmi::api::labels::WATCH_FILTER;
use cmi_driver::Operation;
use cmi_simulated::Phase;
use management_cluster::eventually;
use serde_json::json;

use crate::leadership::{elected, leads};
use crate::support::by_hand::{all_become, event, is_provisioned, patch_all};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, Stage, World};

const SHARDS: [&str; 2] = ["red", "blue"];
/// Enough for both shards to have some on their way up at any time.
const MACHINES: usize = 12;

/// A machine that is in this shard.
fn in_shard(machine: ByHand, shard: &str) -> ByHand {
    let pointer = format!("/metadata/labels/{}", WATCH_FILTER.replace('/', "~1"));
    machine.infra(&pointer, json!(shard))
}

/// Both shards, each with a Lease of its own, and each with a look for orphans every second that deletes what
/// it may.
async fn start(world: &World, drivers: [String; 2]) -> Result<[Replica; 2]> {
    let [red, blue] = drivers;
    let provider = elected(world, red.clone()).await?;
    let shard = |name: &str, drivers: String| {
        let mut provider = provider.clone().named(name);
        provider.drivers = drivers;
        let flags = [
            "--orphans=delete",
            "--orphans-interval=1s",
            "--orphans-min-age=1ms",
        ];
        flags
            .into_iter()
            .fold(provider, Provider::flag)
            .flag(format!("--watch-filter={name}"))
    };
    let (red, blue) = (shard(SHARDS[0], red), shard(SHARDS[1], blue));
    let replicas = tokio::try_join!(red.start(world), blue.start(world))?;
    leads(&replicas.0).await?;
    leads(&replicas.1).await?;
    Ok([replicas.0, replicas.1])
}

/// Has these machines looked after by a shard.
async fn move_to(world: &World, names: &[String], shard: &str) -> Result<()> {
    patch_all(
        world,
        names,
        &json!({"metadata": {"labels": {WATCH_FILTER: shard}}}),
    )
    .await
}

/// Waits until so many processes have each made so many more lists: time enough to find an orphan twice.
async fn looks_for_orphans(cloud: &Cloud, processes: usize, looks: usize) -> Result<()> {
    let lists = || -> Result<Vec<u32>> {
        let calls = cloud.calls()?;
        let lists = calls
            .iter()
            .filter(|call| call.operation == Operation::ListMachines && call.phase == Phase::Ended);
        Ok(lists.map(|call| call.pid).collect())
    };
    let before = lists()?.len();
    eventually(DEADLINE, "lists", async || {
        let since = lists()?.split_off(before);
        let pids: BTreeSet<u32> = since.iter().copied().collect();
        let fewest = pids
            .iter()
            .map(|pid| since.iter().filter(|other| *other == pid).count())
            .min();
        ensure!(pids.len() >= processes && fewest >= Some(looks), "{since:?}");
        Ok(())
    })
    .await
}

/// The old shard's create goes on when the new one already looks after the machine.
#[tokio::test]
async fn a_machine_that_changes_its_shard_in_the_middle_of_its_create_gets_one_vm() -> Result<()> {
    let world = World::new("shard-create").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let held = json!([{"operation": "CreateMachine", "hang": "held", "count": 1}]);
    cloud.fail(held)?;
    // Of the first shard's driver alone.
    let faultless = cloud.drivers(json!({"faultsFile": world.folder.join("no-faults.json")}));
    let _shards = start(&world, [cloud.drivers(json!({})), faultless]).await?;
    let machine = in_shard(stage.machine("m"), "red").create().await?;
    let created_by = eventually(DEADLINE, "the create of the first shard", async || {
        let calls = cloud.calls_for("m")?;
        let create = calls
            .iter()
            .find(|call| call.operation == Operation::CreateMachine);
        Ok(create.context("there is none")?.pid)
    })
    .await?;
    move_to(&world, &["m".to_owned()], "blue").await?;
    // The new shard does not wait for a process that may be dead.
    machine.provisioned().await?;
    cloud.fail(json!([]))?;
    eventually(DEADLINE, "the end of the first shard's create", async || {
        let calls = cloud.calls()?;
        let has_ended = calls.iter().any(|call| {
            call.pid == created_by && call.operation == Operation::CreateMachine && call.phase == Phase::Ended
        });
        ensure!(has_ended, "it has not ended");
        Ok(())
    })
    .await?;
    looks_for_orphans(&cloud, 1, 4).await?;
    let vms = cloud.holds(1).await?;
    let provisioned = machine.provisioned().await?;
    ensure!(
        provisioned.spec.provider_id == Some(vms[0].provider_id()),
        "{provisioned:?} is not of {vms:?}"
    );
    event(&world, "m", "Provisioned").await?;
    // The old shard has let go of it.
    let calls_before = cloud.calls()?.len();
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    let by_old = cloud.calls()?.split_off(calls_before);
    let by_old: Vec<_> = by_old
        .iter()
        .filter(|call| call.pid == created_by && call.machine == "m")
        .collect();
    ensure!(by_old.is_empty(), "both shards have deleted it: {by_old:?}");
    Ok(())
}

/// On their way up, while they are up, and on their way down. Neither shard takes the VMs of the other, which
/// are of the same Cluster, for orphans.
#[tokio::test]
async fn whatever_shard_machines_move_to_none_is_left_out_and_none_has_two_vms() -> Result<()> {
    let world = World::new("shards").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let slow = json!({"latencyMs": 200, "bootSeconds": 0.5, "deleteSeconds": 0.5});
    let shards = start(&world, [cloud.drivers(slow.clone()), cloud.drivers(slow)]).await?;
    let names: Vec<String> = (0..MACHINES).map(|index| format!("m-{index}")).collect();
    let machines: Vec<_> = names
        .iter()
        .zip(SHARDS.iter().cycle())
        .map(|(name, shard)| in_shard(stage.machine(name), shard))
        .collect();
    ByHand::create_all(&machines).await?;
    // Each time half of them changes its shard.
    for round in 0..4 {
        let half: Vec<_> = names.iter().skip(round % 2).step_by(2).cloned().collect();
        move_to(&world, &half, SHARDS[(round / 2 + round + 1) % 2]).await?;
        // The pace is that of the driver.
        let made = cloud.calls()?.len();
        eventually(DEADLINE, "a call", async || {
            ensure!(cloud.calls()?.len() > made, "there is none");
            Ok(())
        })
        .await?;
    }
    all_become(&world, "machines that are up", &names, |_, machine| {
        ensure!(machine.is_some_and(is_provisioned), "{machine:?}");
        Ok(())
    })
    .await?;
    let halves = names.split_at(MACHINES / 2);
    move_to(&world, halves.0, "red").await?;
    move_to(&world, halves.1, "blue").await?;
    looks_for_orphans(&cloud, 2, 6).await?;
    let vms = cloud.holds(MACHINES).await?;
    let owners: BTreeSet<_> = vms.iter().map(|vm| vm.name.clone()).collect();
    ensure!(owners == names.iter().cloned().collect(), "{owners:?}");
    for shard in &shards {
        let metrics = shard.metrics().await?;
        let mut orphans = metrics.lines().filter(|line| line.starts_with("capcmi_orphans{"));
        ensure!(
            orphans.all(|line| line.ends_with(" 0")),
            "VMs of the other shard are orphans:\n{metrics}"
        );
    }
    for machine in &machines {
        machine.delete().await?;
    }
    move_to(&world, halves.0, "blue").await?;
    move_to(&world, halves.1, "red").await?;
    for machine in &machines {
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    Ok(())
}

/// After a move the id of a Cluster is not its UID, and only the InfraCluster says so until a sibling comes.
#[tokio::test]
async fn the_id_of_a_cluster_is_the_same_for_a_shard_that_does_not_reconcile_its_infracluster() -> Result<()>
{
    let world = World::new("shard-id").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let infra_cluster = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster", "spec": {},
        "metadata": {
            "name": "c", "namespace": world.namespace, "labels": {WATCH_FILTER: "red"},
            "annotations": {CLUSTER_ID: "moved"},
        },
    });
    management_cluster::apply(&world.admin, infra_cluster).await?;
    let _shards = start(&world, SHARDS.map(|_| cloud.drivers(json!({})))).await?;
    for shard in SHARDS {
        let machine = in_shard(stage.machine(shard), shard).create().await?;
        machine.provisioned().await?;
    }
    for vm in cloud.holds(2).await? {
        ensure!(vm.cluster() == "moved", "{vm:?}");
    }
    Ok(())
}
