//! Replica processes with one lease.
//!
//! `tests/world` also has leaders that are killed in the middle of a batch, cut off from the API server, or
//! robbed of their lease.

use std::collections::BTreeSet;
use std::process::ExitStatus;

use anyhow::{Context, Result, ensure};
use capcmi_manifests::{Part, stream};
use cmi_driver::Operation;
use cmi_simulated::Phase;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::provider::Replica;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World, audit};

const MACHINES: usize = 20;
/// Enough of the batch to be in the middle of it.
const A_FEW: usize = 4;

/// A provider that is elected, by a lease in the namespace of the case: other cases may use the shipped one.
pub async fn elected(world: &World, drivers: String) -> Result<Provider> {
    let shipped: Vec<Value> = serde_saphyr::from_multiple(&stream(&[Part::Rbac])?)?;
    let is_for_leases = |object: &&Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("capcmi-leader-election-")
    };
    let roles: Vec<_> = shipped.iter().filter(is_for_leases).collect();
    ensure!(roles.len() == 2, "a Role and its binding are shipped: {roles:?}");
    for role in roles {
        let mut here = role.clone();
        here["metadata"]["namespace"] = json!(world.namespace);
        management_cluster::apply(&world.admin, here).await?;
    }
    Ok(Provider::new(drivers)
        .flag("--leader-elect")
        .flag(format!("--leader-elect-resource-namespace={}", world.namespace)))
}

/// The leases of the case.
async fn leases(world: &World) -> Result<Vec<Lease>> {
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), &world.namespace);
    let mut all = leases.list(&ListParams::default()).await?.items;
    all.retain(|lease| lease.name_any().starts_with("controller-leader-election-capcmi"));
    Ok(all)
}

/// The lease of the replicas of a case, which look at its namespace alone.
async fn lease(world: &World) -> Result<Lease> {
    let mut all = leases(world).await?;
    let lease = all.pop().context("there is no lease")?;
    ensure!(all.is_empty(), "replicas of one provider have several leases");
    Ok(lease)
}

/// Waits until the replica leads.
pub async fn leads(replica: &Replica) -> Result<()> {
    eventually(DEADLINE, "leadership", async || {
        ensure!(replica.leads().await?, "it does not lead");
        Ok(())
    })
    .await
}

/// Waits until the replica has ended without a signal.
pub async fn ended(replica: &mut Replica) -> Result<ExitStatus> {
    eventually(DEADLINE, "the end of the replica", async || {
        replica
            .process
            .status()?
            .ok_or_else(|| anyhow::anyhow!("it still runs"))
    })
    .await
}

/// No machine was made twice, and the first process began no call once the second had begun one.
fn one_after_the_other(cloud: &Cloud) -> Result<()> {
    let mut calls = cloud.calls()?;
    calls.retain(|call| !call.machine.is_empty());
    let mut made = BTreeSet::new();
    for call in &calls {
        let is_made = call.operation == Operation::CreateMachine && call.code.as_deref() == Some("OK");
        ensure!(
            !is_made || made.insert(&call.machine),
            "{} was made twice",
            call.machine
        );
    }
    let first = calls.first().context("no replica called")?.pid;
    let begun_by_second = calls.iter().skip_while(|call| call.pid == first);
    let late: Vec<_> = begun_by_second
        .clone()
        .filter(|call| call.pid == first && call.phase == Phase::Started)
        .collect();
    ensure!(begun_by_second.count() > 0, "only one process called");
    ensure!(
        late.is_empty(),
        "the first process called after the second had begun: {late:?}"
    );
    Ok(())
}

/// Writes of providers to this namespace, but for leases.
fn writes(world: &World) -> Result<usize> {
    let writes = audit::writes(world)?.into_iter();
    Ok(writes.filter(|write| write.resource != "leases").count())
}

fn started_calls(cloud: &Cloud) -> Result<usize> {
    let calls = cloud.calls()?;
    Ok(calls.iter().filter(|call| call.phase == Phase::Started).count())
}

/// DRV-10, DRV-12: a stopped process does not notice the stop. When it goes on, another replica has acted.
/// A leader that is asked to end hands over. A killed leader is replaced.
#[tokio::test]
async fn a_leader_that_was_stopped_past_its_lease_does_nothing_more() -> Result<()> {
    let world = World::new("stopped").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    // A few at a time, so that the batch takes seconds.
    let drivers = cloud.drivers_with(json!({"maxConcurrentCalls": 3}), json!({"latencyMs": 200}));
    let provider = elected(&world, drivers)
        .await?
        .flag("--leader-elect-lease-duration=6s")
        .flag("--leader-elect-renew-deadline=4s")
        .flag("--leader-elect-retry-period=500ms");
    let mut first = provider.start(&world).await?;
    leads(&first).await?;
    // Ready, though another leads: a rollout must not wait for leadership.
    let mut second = provider.clone().named("second").start(&world).await?;
    ensure!(second.metrics().await?.contains("capcmi_leader 0\n"), "two lead");
    let names: Vec<_> = (0..MACHINES).map(|index| format!("m-{index}")).collect();
    for name in &names {
        stage.machine(name).create().await?;
    }
    eventually(DEADLINE, "the first VMs", async || {
        let count = cloud.vms()?.len();
        ensure!(count >= A_FEW, "{count} VMs");
        Ok(())
    })
    .await?;
    ensure!(cloud.vms()?.len() < MACHINES, "the batch is over already");
    first.process.signal("STOP")?;
    leads(&second).await?;
    for name in &names {
        stage.machine(name).provisioned().await?;
    }
    cloud.holds(MACHINES).await?;
    one_after_the_other(&cloud)?;
    let status = second.process.terminate(DEADLINE).await?;
    ensure!(
        status.is_some_and(|status| status.success()),
        "ended with {status:?}"
    );
    let holder = lease(&world).await?.spec.and_then(|spec| spec.holder_identity);
    ensure!(
        holder.unwrap_or_default().is_empty(),
        "the lease was not handed over"
    );

    // There is work for it to wake up to, and no other leader.
    stage.machine("late").create().await?;
    let (calls, written) = (started_calls(&cloud)?, writes(&world)?);
    first.process.signal("CONT")?;
    let status = ended(&mut first).await?;
    ensure!(status.code() == Some(1), "ended with {status}");
    ensure!(
        first.log()?.contains("lost the leader election lease"),
        "it does not say why it ended"
    );
    ensure!(started_calls(&cloud)? == calls, "it called the driver");
    ensure!(writes(&world)? == written, "it wrote");
    ensure!(cloud.vms()?.len() == MACHINES, "it made a VM");
    let mut third = provider.clone().named("third").start(&world).await?;
    stage.machine("late").provisioned().await?;
    cloud.holds(MACHINES + 1).await?;

    let _fourth = provider.named("fourth").start(&world).await?;
    ensure!(third.leads().await?, "the replica to kill does not lead");
    third.process.kill();
    stage.machine("last").create().await?;
    stage.machine("last").provisioned().await?;
    cloud.holds(MACHINES + 2).await?;
    Ok(())
}
