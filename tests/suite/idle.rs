//! The writes for a fleet at a real API server. `tests/world` has the other costs, and an idle day.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::all_become;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World, audit};

const MACHINES: usize = 10;
/// Lists of the inventory that are waited for: the clock of these cases.
const LISTS: usize = 5;

/// INI-08, and the budget: three patches and one Event bring a machine up, and none keep it there. A restart
/// costs no call per machine, and a deletion one patch, of the finalizer.
#[tokio::test]
async fn a_machine_costs_three_writes_and_an_event_by_the_audit_log() -> Result<()> {
    const PATCHES: usize = 2;
    let world = World::new("idle").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let mut first = provider.start(&world).await?;
    world.cluster("c").await?;
    cluster_is_ready(&world).await?;
    first.process.terminate(DEADLINE).await?;

    // All that a machine waits for is there before the provider looks.
    let names: Vec<_> = (0..MACHINES).map(|n| format!("m-{n}")).collect();
    let machines: Vec<_> = names.iter().map(|name| ByHand::new(&world, "c", name)).collect();
    ByHand::create_all(&machines).await?;
    all_become(&world, "owners", &names, |_, machine| {
        let owners = machine.and_then(|machine| machine.metadata.owner_references.as_ref());
        owners.map(drop).context("no owner")
    })
    .await?;
    let before = audit::writes(&world)?.len();
    let mut second = provider.clone().named("second").start(&world).await?;
    cloud.holds(MACHINES).await?;
    quiet(&world, &cloud).await?;
    let writes = audit::writes(&world)?.split_off(before);
    let mut costs = BTreeMap::<_, usize>::new();
    for write in &writes {
        *costs
            .entry((write.verb.as_str(), write.resource.as_str()))
            .or_default() += 1;
    }
    let expected = BTreeMap::from([
        (("patch", "inframachines"), PATCHES * MACHINES),
        (("patch", "inframachines/status"), MACHINES),
        (("create", "events"), MACHINES),
    ]);
    ensure!(costs == expected, "{costs:?}, not {expected:?}");
    let creates = count(&cloud.calls()?, Operation::CreateMachine);
    ensure!(creates == MACHINES, "{creates} creates");

    lists(&cloud, LISTS).await?;
    let idle = audit::writes(&world)?.split_off(before + writes.len());
    ensure!(idle.is_empty(), "an idle fleet was written: {idle:?}");

    second.process.terminate(DEADLINE).await?;
    let calls = cloud.calls()?.len();
    let _third = provider.named("third").start(&world).await?;
    lists(&cloud, LISTS).await?;
    let restarted = audit::writes(&world)?.split_off(before + writes.len());
    ensure!(restarted.is_empty(), "a restart wrote: {restarted:?}");
    let since: Vec<_> = cloud.calls()?.split_off(calls);
    let about_one: Vec<_> = since.iter().filter(|call| !call.machine.is_empty()).collect();
    ensure!(
        about_one.is_empty(),
        "a restart asked about single machines: {about_one:?}"
    );
    for machine in &machines {
        machine.delete().await?;
    }
    for machine in &machines {
        machine.gone().await?;
    }
    let writes = audit::writes(&world)?.split_off(before + writes.len());
    let patches = writes
        .iter()
        .filter(|write| write.resource == "inframachines")
        .count();
    ensure!(
        patches == MACHINES,
        "more than the finalizer was written: {writes:?}"
    );
    Ok(())
}

async fn cluster_is_ready(world: &World) -> Result<()> {
    eventually(DEADLINE, "the Cluster's infrastructure", async || {
        let path = "jsonpath={.status.initialization.infrastructureProvisioned}";
        let provisioned = world.kubectl(&["get", "clusters.cluster.x-k8s.io", "c", "-o", path])?;
        ensure!(provisioned == "true", "it is `{provisioned}`");
        Ok(())
    })
    .await
}

/// Waits until nothing was written from one list of the inventory to the second next.
async fn quiet(world: &World, cloud: &Cloud) -> Result<()> {
    eventually(DEADLINE, "quiet", async || {
        let before = audit::writes(world)?.len();
        ensure!(before > 0, "nothing was written yet");
        lists(cloud, 2).await?;
        let after = audit::writes(world)?.len();
        ensure!(before == after, "{} writes", after - before);
        Ok(())
    })
    .await
}

/// Waits for so many further lists.
async fn lists(cloud: &Cloud, further: usize) -> Result<()> {
    let before = count(&cloud.calls()?, Operation::ListMachines);
    eventually(DEADLINE, "lists of the inventory", async || {
        let now = count(&cloud.calls()?, Operation::ListMachines);
        ensure!(now >= before + further, "{now} after {before}");
        Ok(())
    })
    .await
}

fn count(calls: &[CallLine], operation: Operation) -> usize {
    calls
        .iter()
        .filter(|call| call.operation == operation && call.phase == Phase::Ended)
        .count()
}
