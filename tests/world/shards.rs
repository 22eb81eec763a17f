//! Two providers on one management cluster, each with the machines that its watch filter selects, and
//! machines whose label moves from one to the other.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi::api::annotations::CLUSTER_ID;
use capcmi::api::labels::WATCH_FILTER;
use cmi_driver::Operation;
use cmi_simulated::Phase;
use management_cluster::eventually;
use serde_json::json;
use tokio::time::sleep;

use crate::leadership::{elected, leads};
use crate::support::by_hand::{all_become, event, is_provisioned, patch_all};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, Stage, World};

const SHARDS: [&str; 2] = ["red", "blue"];
/// Enough for both shards to have some on their way up at any time.
const MACHINES: usize = 12;
/// Enough for each shard to find an orphan twice and to delete it.
const LOOKS_FOR_ORPHANS: Duration = Duration::from_secs(30);

/// A machine that is in this shard.
fn in_shard(machine: ByHand, shard: &str) -> ByHand {
    let pointer = format!("/metadata/labels/{}", WATCH_FILTER.replace('/', "~1"));
    machine.infra(&pointer, json!(shard))
}

/// Both shards, each with its Lease, and with a scan every second that deletes orphans.
async fn start(world: &World, drivers: [String; 2]) -> Result<[Replica; 2]> {
    let [red, blue] = drivers;
    let shard = async |name: &str, drivers: String| {
        let provider = Provider::new(drivers).with(|options| {
            options.watch_filter = Some(name.to_owned());
            options.orphans.delete = true;
            options.orphans.interval = Duration::from_secs(1);
            options.orphans.min_age = Duration::from_millis(1);
        });
        let replica = elected(world, &provider, name)?.start(world).await?;
        leads(&replica).await?;
        replica.trap().arm();
        anyhow::Ok(replica)
    };
    Ok([shard(SHARDS[0], red).await?, shard(SHARDS[1], blue).await?])
}

/// Moves these machines to a shard.
async fn move_to(world: &World, names: &[String], shard: &str) -> Result<()> {
    let label = json!({"metadata": {"labels": {WATCH_FILTER: shard}}});
    patch_all(world, names, &label).await
}

/// The calls of a shard about machines.
fn calls_of(shard: &Replica) -> Vec<Operation> {
    let mut calls = shard.trap().calls();
    calls.retain(|operation| *operation != Operation::ListMachines);
    calls
}

/// The old shard's create goes on when the new one already reconciles the machine.
#[tokio::test(start_paused = true)]
async fn a_machine_that_changes_its_shard_during_its_create_gets_one_vm() -> Result<()> {
    let world = World::without_core("shard-create").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let held = json!([{"operation": "CreateMachine", "hang": "held", "count": 1}]);
    cloud.fail(held)?;
    // Of the first shard's driver alone.
    let faultless = cloud.drivers(json!({"faultsFile": world.folder.join("no-faults.json")}));
    let [old, _new] = start(&world, [cloud.drivers(json!({})), faultless]).await?;
    let machine = in_shard(stage.machine("m"), SHARDS[0]).create().await?;
    eventually(DEADLINE, "the create of the first shard", async || {
        let calls = calls_of(&old);
        ensure!(calls.contains(&Operation::CreateMachine), "{calls:?}");
        Ok(())
    })
    .await?;
    move_to(&world, &["m".to_owned()], SHARDS[1]).await?;
    // The new shard does not wait for a process that may be dead.
    machine.provisioned().await?;
    ensure!(open_creates(&cloud)? == 1, "the first shard's create has ended");
    cloud.fail(json!([]))?;
    eventually(DEADLINE, "the end of the first shard's create", async || {
        ensure!(open_creates(&cloud)? == 0, "it has not ended");
        Ok(())
    })
    .await?;
    sleep(LOOKS_FOR_ORPHANS).await;
    let vms = cloud.holds(1).await?;
    let provisioned = machine.provisioned().await?;
    ensure!(
        provisioned.spec.provider_id == Some(vms[0].provider_id()),
        "{provisioned:?} is not of {vms:?}"
    );
    event(&world, "m", "Provisioned").await?;
    // The old shard has released it.
    let before = calls_of(&old).len();
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    let by_old = calls_of(&old).split_off(before);
    ensure!(by_old.is_empty(), "both shards have deleted it: {by_old:?}");
    Ok(())
}

/// The creates that have begun and not ended.
fn open_creates(cloud: &Cloud) -> Result<usize> {
    let calls = cloud.calls()?;
    let count = |phase| {
        let creates = calls
            .iter()
            .filter(|call| call.operation == Operation::CreateMachine && call.phase == phase);
        creates.count()
    };
    Ok(count(Phase::Started) - count(Phase::Ended))
}

/// On their way up, while they are up, and on their way down. Neither shard takes the VMs of the other, which
/// are of the same Cluster, for orphans.
#[tokio::test(start_paused = true)]
async fn machines_that_change_their_shard_have_one_vm_each_at_any_time() -> Result<()> {
    let world = World::without_core("shards").await?;
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
        // The driver sets the pace.
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
    move_to(&world, halves.0, SHARDS[0]).await?;
    move_to(&world, halves.1, SHARDS[1]).await?;
    sleep(LOOKS_FOR_ORPHANS).await;
    let vms = cloud.holds(MACHINES).await?;
    let owners: BTreeSet<_> = vms.iter().map(|vm| vm.name.clone()).collect();
    ensure!(owners == names.iter().cloned().collect(), "{owners:?}");
    for shard in &shards {
        let metrics = shard.metrics();
        let mut orphans = metrics.lines().filter(|line| line.starts_with("capcmi_orphans{"));
        ensure!(
            orphans.all(|line| line.ends_with(" 0")),
            "VMs of the other shard are orphans:\n{metrics}"
        );
    }
    for machine in &machines {
        machine.delete().await?;
    }
    move_to(&world, halves.0, SHARDS[1]).await?;
    move_to(&world, halves.1, SHARDS[0]).await?;
    for machine in &machines {
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    Ok(())
}

/// After a move the id of a Cluster is not its UID, and only the InfraCluster has it until a sibling comes.
#[tokio::test(start_paused = true)]
async fn both_shards_read_the_cluster_id_from_an_infra_cluster_of_one() -> Result<()> {
    let world = World::without_core("shard-id").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let infra_cluster = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster", "spec": {},
        "metadata": {
            "name": "c", "namespace": world.namespace, "labels": {WATCH_FILTER: SHARDS[0]},
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
