//! Watches of a real API server whose events are late, or that can't go on from their version.
//!
//! `tests/world` has many more such cases, in its modules `stale_cache` and `relist`.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use http::Method;
use kube::ResourceExt;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use management_cluster::{ManagementCluster, eventually};
use serde_json::json;
use tokio::time::timeout;

use crate::support::provider::service_account;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World, audit};

/// An annotation of another client.
const NOTE: &str = "example.com/note";

/// DRV-12: the API server refuses a write from an old copy. The provider then reads the machine, keeps the
/// change of another client, and calls CreateMachine once.
#[tokio::test]
async fn a_machine_whose_events_are_late_gets_one_vm() -> Result<()> {
    let world = World::new("late-events").await?;
    let (cloud, stage) = (Cloud::new(&world), Stage::set(&world).await?);
    let (events, write_2) = (Gate::new(), Gate::new());
    events.open();
    let hook = {
        let (events, write_2, patches) = (events.clone(), write_2.clone(), AtomicUsize::new(0));
        move |request: &ProxiedRequest| {
            if request.path.ends_with("/inframachines") {
                return Fault::HoldBody(events.clone());
            }
            if request.method != Method::PATCH || !request.path.ends_with("/inframachines/m") {
                return Fault::None;
            }
            match patches.fetch_add(1, Ordering::SeqCst) {
                0 => events.close(),
                1 => return Fault::HoldBefore(write_2.clone()),
                _ => {}
            }
            Fault::None
        }
    };
    let proxy = Proxy::start(&world.management, hook).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let provider = Provider::new(cloud.drivers(json!({}))).through(kubeconfig);
    let _provider = provider.start(&world).await?;
    let machine = stage.machine("m").create().await?;
    timeout(DEADLINE, write_2.reached())
        .await
        .context("write 2 does not come")?;
    cloud.holds(1).await?;

    let annotations = json!({NOTE: "kept"});
    machine
        .patch(json!({"metadata": {"annotations": annotations}}))
        .await?;
    write_2.open();
    let provisioned = machine.provisioned().await?;
    eventually(DEADLINE, "an event that is held", async || {
        ensure!(events.held() > 0, "no event");
        Ok(())
    })
    .await?;
    ensure!(conflicts(&world)? > 0, "no write was refused");
    ensure!(
        provisioned
            .annotations()
            .get(NOTE)
            .is_some_and(|note| note == "kept")
    );
    let vms = cloud.holds(1).await?;
    ensure!(provisioned.spec.provider_id == Some(vms[0].provider_id()));
    ensure!(
        cloud.count(Operation::CreateMachine, "m")? == 1,
        "several creates"
    );

    machine.delete().await?;
    events.open();
    machine.gone().await?;
    cloud.holds(0).await?;
    ensure!(cloud.count(Operation::CreateMachine, "m")? == 1, "another create");
    Ok(())
}

/// The provider's writes of InfraMachines that the API server refused because another client had written.
fn conflicts(world: &World) -> Result<usize> {
    let writes = audit::writes(world)?.into_iter();
    Ok(writes
        .filter(|write| write.resource == "inframachines" && write.code == 409)
        .count())
}

/// A restarted API server has no events from before its start. So a provider that missed some lists
/// everything. Three starts of an API server take most of the time.
#[tokio::test]
async fn changes_before_the_api_servers_start_are_seen_in_a_list() -> Result<()> {
    let world = alone("missed-events").await?;
    let (cloud, stage) = (Cloud::new(&world), Stage::set(&world).await?);
    let mut provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let (stays, goes) = (
        stage.machine("stays").create().await?,
        stage.machine("goes").create().await?,
    );
    stays.provisioned().await?;
    goes.provisioned().await?;

    provider.process.signal("STOP")?;
    // Ends the watches: events would reach the stopped process, too.
    restart_api_server(&world).await?;
    goes.delete().await?;
    let new = stage.machine("new").create().await?;
    restart_api_server(&world).await?;
    let (reads, calls) = (
        audit::reads(&world, "inframachines")?.len(),
        cloud.calls_for("stays")?.len(),
    );
    provider.process.signal("CONT")?;
    goes.gone().await?;
    new.provisioned().await?;
    let vms = cloud.holds(2).await?;
    let machines = [&stays.get().await?, &new.get().await?];
    for machine in machines {
        let id = machine.spec.provider_id.clone().unwrap_or_default();
        ensure!(
            vms.iter().any(|vm| vm.provider_id() == id),
            "{id} is no VM of {vms:?}"
        );
    }
    let reads = audit::reads(&world, "inframachines")?.split_off(reads);
    ensure!(
        reads.iter().any(|uri| uri.contains("sendInitialEvents=true")),
        "the provider did not list: {reads:#?}"
    );
    let since = cloud.calls_for("stays")?.split_off(calls);
    ensure!(
        since.is_empty(),
        "calls for a machine that is as it was: {since:?}"
    );
    Ok(())
}

async fn restart_api_server(world: &World) -> Result<()> {
    world.management.kill_api_server().await;
    world.management.start_api_server().await
}

/// A world with an API server of its own, without Cluster API's core.
async fn alone(case: &str) -> Result<World> {
    let management = ManagementCluster::builder()
        .manifests(testbed::definitions()?)
        .core(false)
        .audit_log(true)
        .start()
        .await?;
    testbed::install(&management).await?;
    let namespace = management.namespace(case).await?;
    World::own(management, &namespace).await
}
