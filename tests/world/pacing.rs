//! How often a driver that is in trouble is called, which machine is next, and what all of
//! that costs the API server.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DRIVER_REACHABLE, READY};
use capcmi::api::wall_clock;
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase};
use jiff::Timestamp;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{all_become, says};
use crate::support::checks::{condition, provisioned};
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Plugin, Provider, World, audit};

/// The requested delay is a lower bound: a driver that always asks for a second is called after 5 s, 10 s
/// and so on. A repeated failure is not written to the status each time.
#[tokio::test(start_paused = true)]
async fn a_driver_that_always_asks_for_a_second_gets_back_off() -> Result<()> {
    const MACHINES: usize = 20;
    const CREATES: usize = 3;
    let world = World::new("second").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    // A machine without a ready cluster would publish that, which is another write.
    ByHand::new(&world, "c", "before")
        .create()
        .await?
        .provisioned()
        .await?;
    cloud.fail(json!([{"operation": "CreateMachine", "code": "Unavailable", "retryAfterMs": 1000}]))?;
    let names: Vec<_> = (0..MACHINES).map(|n| format!("m-{n}")).collect();
    let machines: Vec<_> = names.iter().map(|name| ByHand::new(&world, "c", name)).collect();
    ByHand::create_all(&machines).await?;
    eventually(DEADLINE, "three creates of each machine", async || {
        for name in &names {
            let creates = cloud.count(Operation::CreateMachine, name)?;
            ensure!(creates >= CREATES, "{creates} creates of {name}");
        }
        Ok(())
    })
    .await?;
    for name in &names {
        let creates: Vec<_> = cloud.calls_for(name)?.into_iter().filter(is_create).collect();
        let took = creates[CREATES - 1].at.since(creates[0].at);
        // 5 s and 10 s, less a fifth.
        ensure!(
            took >= Duration::from_secs(12),
            "{CREATES} creates of {name} in {took:?}"
        );
    }
    let writes = audit::writes(&world);
    let count = |resource: &str| {
        let of = writes
            .iter()
            .filter(|write| write.resource == resource && write.name.starts_with("m-"));
        of.count()
    };
    let (statuses, events) = (count("inframachines/status"), count("events"));
    ensure!(
        statuses == 2 * MACHINES && events == MACHINES,
        "{statuses} statuses and {events} events of {MACHINES} machines that failed {CREATES} times"
    );
    Ok(())
}

/// CTL-02: creates hang in one namespace. Another namespace still gets permits, and waiting machines
/// report `WaitingForDriver`.
#[tokio::test(start_paused = true)]
async fn a_namespace_whose_creates_hang_blocks_no_other() -> Result<()> {
    const MANY: usize = 12;
    /// Of eight permits, one is kept from creates, and one from each namespace.
    const HANG: usize = 6;
    let many = World::new("many").await?;
    let few = many.beside("few").await?;
    let cloud = Cloud::new(&many);
    let limits = json!({"maxConcurrentCalls": 8, "timeouts": {"createMachine": "5m"}});
    let provider = Provider::new(cloud.drivers_with(limits, json!({})))
        .start(&many)
        .await?;
    cloud.fail(json!([{"operation": "CreateMachine", "machine": "many-*", "hang": "before"}]))?;
    let machine = |world: &World, name: &str| ByHand::new(world, "c", name);
    for world in [&many, &few] {
        world.cluster("c").await?;
    }
    // The machines don't wait for their Cluster first, and publish that.
    machine(&many, "before").create().await?.provisioned().await?;
    let names: Vec<_> = (0..MANY).map(|n| format!("many-{n}")).collect();
    let machines: Vec<_> = names.iter().map(|name| machine(&many, name)).collect();
    ByHand::create_all(&machines).await?;
    eventually(DEADLINE, "creates that hang", async || {
        let calls = cloud.calls()?;
        let hangs = |call: &&CallLine| is_create(call) && call.machine != "before";
        let creates = calls.iter().filter(hangs).count();
        ensure!(creates == HANG, "{creates} creates");
        Ok(())
    })
    .await?;
    machine(&few, "few").create().await?.provisioned().await?;

    let waiting = eventually(DEADLINE, "machines that say that they wait", async || {
        let mut waiting = Vec::new();
        for machine in &machines {
            let machine = machine.get().await?;
            if says(&machine, READY, "False", "WaitingForDriver") {
                waiting.push(machine.metadata.name.context("no name")?);
            }
        }
        ensure!(waiting.len() == MANY - HANG, "{waiting:?} wait");
        Ok(waiting)
    })
    .await?;
    let queue = format!(
        r#"capcmi_driver_queue{{driver="simulated",priority="create"}} {}"#,
        MANY - HANG
    );
    let metrics = provider.metrics();
    ensure!(metrics.contains(&queue), "no {queue} in {metrics}");
    let used = format!(r#"capcmi_driver_permits_in_use{{driver="simulated",priority="create"}} {HANG}"#);
    ensure!(metrics.contains(&used), "no {used} in {metrics}");
    let written: Vec<_> = audit::writes(&many)
        .into_iter()
        .filter(|write| waiting.contains(&write.name))
        .collect();
    ensure!(written.len() == waiting.len(), "one write each: {written:?}");
    cloud.fail(json!([]))?;
    Ok(())
}

/// A plugin that restarts costs a fleet nothing; one that stays away is reported once of the
/// InfraCluster, and of each machine.
#[tokio::test(start_paused = true)]
async fn a_plugin_restart_writes_nothing_and_an_outage_once() -> Result<()> {
    const MACHINES: usize = 10;
    const GRACE: Duration = Duration::from_secs(8);
    let world = World::new("outage-reported").await?;
    let cloud = Cloud::new(&world);
    let mut plugin = Plugin::start(&world, "simulated", &cloud.config(json!({})))?;
    let provider = Provider::new(plugin.drivers(json!({})))
        .with(|options| options.driver_unreachable_grace = GRACE)
        .start(&world)
        .await?;
    world.cluster("c").await?;
    let names: Vec<_> = (0..MACHINES).map(|n| format!("m-{n}")).collect();
    let machines: Vec<_> = names.iter().map(|name| ByHand::new(&world, "c", name)).collect();
    ByHand::create_all(&machines).await?;
    let is_up = |_: &str, machine: Option<&_>| provisioned(machine.context("is gone")?);
    all_become(&world, "machines", &names, is_up).await?;
    let clusters = objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraCluster");
    let reported = async |is: &str| {
        eventually(DEADLINE, "the InfraCluster's DriverReachable", async || {
            let cluster = clusters.get("c").await?;
            let all = cluster.data["status"]["conditions"].as_array();
            let mut all = all.into_iter().flatten();
            let shown = all.find(|condition| condition["type"] == DRIVER_REACHABLE);
            ensure!(
                shown.is_some_and(|shown| shown["status"] == is),
                "DriverReachable is {shown:?}"
            );
            Ok(())
        })
        .await
    };
    provider.finds_driver_reachable(true).await?;
    reported("True").await?;
    // The grace period is over, and the reconcile of the InfraCluster that follows.
    tokio::time::sleep(2 * GRACE).await;

    let before = audit::writes(&world).len();
    plugin.kill();
    provider.finds_driver_reachable(false).await?;
    plugin.listen(&world)?;
    provider.finds_driver_reachable(true).await?;
    // Every reconcile that the return causes has ended.
    tokio::time::sleep(2 * GRACE).await;
    let writes = audit::writes(&world).split_off(before);
    ensure!(writes.is_empty(), "a restart wrote: {writes:?}");

    plugin.kill();
    reported("False").await?;
    let says = |state: &'static str| {
        move |_: &str, machine: Option<&_>| {
            condition(machine.context("is gone")?, DRIVER_REACHABLE, state, None)
        }
    };
    all_become(&world, "an outage that all machines show", &names, says("False")).await?;
    plugin.listen(&world)?;
    reported("True").await?;
    all_become(&world, "its end", &names, says("True")).await?;
    let writes = audit::writes(&world).split_off(before);
    let count = |resource: &str| writes.iter().filter(|write| write.resource == resource).count();
    let (machines, clusters, events) = (
        count("inframachines/status"),
        count("infraclusters/status"),
        count("events"),
    );
    ensure!(
        machines == 2 * MACHINES && events == 2,
        "{machines} writes of {MACHINES} machines, {clusters} of the InfraCluster, {events} events: \
            {writes:?}"
    );
    Ok(())
}

/// Machines whose back-off has grown during an outage do not sit it out when the driver is back.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_back_ends_back_off() -> Result<()> {
    let world = World::new("back-again").await?;
    let cloud = Cloud::new(&world);
    let mut plugin = Plugin::start(&world, "simulated", &cloud.config(json!({})))?;
    let _provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let is_up = |_: &str, machine: Option<&_>| provisioned(machine.context("is gone")?);
    ByHand::new(&world, "c", "before").create().await?;
    all_become(
        &world,
        "a machine before the outage",
        &["before".to_owned()],
        is_up,
    )
    .await?;
    plugin.kill();
    let names: Vec<_> = (0..5).map(|n| format!("m-{n}")).collect();
    let machines: Vec<_> = names.iter().map(|name| ByHand::new(&world, "c", name)).collect();
    ByHand::create_all(&machines).await?;
    let waits: Mutex<HashMap<String, Timestamp>> = Mutex::default();
    all_become(&world, "waits of half a minute", &names, |name, machine| {
        let status = machine.context("is gone")?.status.clone().unwrap_or_default();
        let last = status.last_operation.context("has no operation")?;
        ensure!(last.attempts >= 4, "{} attempts", last.attempts);
        let next = last.next_retry_time.context("has no next try")?.0;
        waits.lock().unwrap().insert(name.to_owned(), next);
        Ok(())
    })
    .await?;
    plugin.listen(&world)?;
    all_become(&world, "machines", &names, is_up).await?;
    let now = wall_clock::now();
    let waits = waits.into_inner().unwrap();
    ensure!(
        waits.values().all(|next| now < *next),
        "at {now}, up at the end of {waits:?}"
    );
    Ok(())
}

fn is_create(call: &CallLine) -> bool {
    call.operation == Operation::CreateMachine && call.phase == Phase::Started
}
