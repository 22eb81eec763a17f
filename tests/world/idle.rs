//! The writes and the driver calls for a fleet.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase};
use serde_json::json;

use crate::support::fleet::found;
use crate::support::trap::name_of;
use crate::support::{Cloud, Provider, Stage, World};

const MACHINES: usize = 10;
/// The interval of lists that show the state of VMs.
const INTERVAL: Duration = Duration::from_mins(5);
/// The interval of lists that show orphans.
const ORPHANS: Duration = Duration::from_mins(10);
/// Far longer than all reconciles after a write.
const QUIET: Duration = Duration::from_mins(1);
/// Longer than every wait of the provider.
const HOURS: Duration = Duration::from_hours(4);

/// INI-08, and the budget: three writes and one Event bring a machine up, none keep it there, and a restart
/// costs no call per machine. A deletion costs one patch, of the finalizer.
#[tokio::test(start_paused = true)]
async fn a_machine_costs_three_writes_and_an_event_and_then_nothing() -> Result<()> {
    const PATCHES: usize = 2;
    let world = World::without_core("idle").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    // All that a machine waits for is there before the provider starts.
    let mut machines = Vec::new();
    for index in 0..MACHINES {
        let machine = stage.machine(&format!("m-{index}"));
        let without_shut_down = machine.infra("/spec/shutdownTimeoutSeconds", json!(0));
        machines.push(without_shut_down.create().await?);
    }
    let provider = Provider::new(cloud.drivers(json!({})));
    let provider = provider.with(|options| {
        options.inventory_interval = INTERVAL;
        options.orphans.interval = ORPHANS;
    });
    let mut first = provider.start(&world).await?;
    cloud.holds(MACHINES).await?;
    tokio::time::sleep(QUIET).await;
    let costs = writes(&world);
    let expected = BTreeMap::from([
        ("PATCH inframachines".to_owned(), PATCHES * MACHINES),
        ("PATCH inframachines/status".to_owned(), MACHINES),
        ("POST events".to_owned(), MACHINES),
    ]);
    ensure!(costs == expected, "{costs:?} and not {expected:?}");
    let creates = cloud.calls()?;
    let creates = creates
        .iter()
        .filter(|call| call.operation == Operation::CreateMachine && call.phase == Phase::Started);
    ensure!(creates.count() == MACHINES, "a machine was created twice");

    for machine in &machines {
        found(&world, machine).await?;
    }
    let calls = cloud.calls()?.len();
    tokio::time::sleep(HOURS).await;
    ensure!(
        writes(&world) == costs,
        "an idle fleet was written: {:?}",
        writes(&world)
    );
    let lists = calls_only_lists(&cloud, calls)?;
    let each = |interval: Duration| usize::try_from(HOURS.as_secs() / interval.as_secs());
    let expected = each(INTERVAL)? + each(ORPHANS)?;
    ensure!(lists == expected, "{lists} lists of one class and not {expected}");

    first.terminate().await?;
    let calls = cloud.calls()?.len();
    let _second = provider.start(&world).await?;
    tokio::time::sleep(QUIET * 10).await;
    ensure!(writes(&world) == costs, "a restart wrote: {:?}", writes(&world));
    calls_only_lists(&cloud, calls)?;

    for machine in &machines {
        machine.delete().await?;
    }
    for machine in &machines {
        machine.gone().await?;
    }
    let for_deletions = writes(&world)["PATCH inframachines"] - costs["PATCH inframachines"];
    ensure!(
        for_deletions == MACHINES,
        "more than the finalizer was written: {:?}",
        writes(&world)
    );
    Ok(())
}

/// Returns the number of lists since the first of these calls. The driver was asked about no single machine.
fn calls_only_lists(cloud: &Cloud, calls: usize) -> Result<usize> {
    let since = cloud.calls()?.split_off(calls);
    ensure!(!since.is_empty(), "the inventory was not listed");
    let about_one: Vec<_> = since.iter().filter(|call| !call.machine.is_empty()).collect();
    ensure!(about_one.is_empty(), "asked about single machines: {about_one:?}");
    let is_list =
        |call: &&CallLine| call.operation == Operation::ListMachines && call.phase == Phase::Started;
    Ok(since.iter().filter(is_list).count())
}

/// How often the provider has written what, in the namespace of the case.
fn writes(world: &World) -> BTreeMap<String, usize> {
    let here = format!("/namespaces/{}/", world.namespace);
    let mut writes = BTreeMap::new();
    for write in world.management.writes_of("provider") {
        if write.call.path.contains(&here) {
            *writes.entry(name_of(&write.call)).or_default() += 1;
        }
    }
    writes
}
