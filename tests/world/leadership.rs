//! Two replicas and one Lease: whatever becomes of the leader, every machine gets one VM, and the replicas
//! never act at the same time.
//!
//! A process that the system stops, and that goes on later, is a case of `tests/suite`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use capcmi::manager::{Election, Error, Timing, holder_identity};
use cmi_driver::Operation;
use cmi_simulated::Vm;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::json;
use tokio::time::Instant;

use crate::support::provider::Replica;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

const LEASE: &str = "capcmi";
const MACHINES: usize = 20;
/// Enough of the batch to be in the middle of it.
const A_FEW: usize = 4;

/// A provider that is elected by a Lease of this name, with the identity of one replica.
pub fn elected(world: &World, provider: &Provider, lease: &str) -> Result<Provider> {
    lasting(world, provider, lease, Duration::from_secs(10))
}

fn lasting(world: &World, provider: &Provider, lease: &str, duration: Duration) -> Result<Provider> {
    let timing = Timing::new(duration, duration.mul_f64(0.7), Duration::from_millis(1500));
    Ok(provider.clone().elected(Election {
        namespace: world.namespace.clone(),
        lease: lease.to_owned(),
        identity: holder_identity("replica"),
        timing: timing?,
    }))
}

/// Waits until a replica leads.
pub async fn leads(replica: &Replica) -> Result<()> {
    eventually(DEADLINE, "a leader", async || {
        let leader = replica.sample("capcmi_leader")?;
        ensure!(leader > 0.0, "it does not lead");
        Ok(())
    })
    .await
}

/// A batch of machines, and two replicas that are configured alike.
struct Batch {
    cloud: Cloud,
    stage: Stage,
    leader: Replica,
    standby: Replica,
}

impl Batch {
    /// Starts the replicas. A Lease lasts for this long.
    async fn new(case: &str, duration: Duration) -> Result<Self> {
        let world = World::without_core(case).await?;
        let cloud = Cloud::new(&world);
        let stage = Stage::set(&world).await?;
        // A few at a time, so that the batch takes seconds.
        let drivers = cloud.drivers_with(json!({"maxConcurrentCalls": 3}), json!({"latencyMs": 200}));
        let provider = Provider::new(drivers);
        let start = async || lasting(&world, &provider, LEASE, duration)?.start(&world).await;
        let leader = start().await?;
        leads(&leader).await?;
        let standby = start().await?;
        Ok(Self {
            cloud,
            stage,
            leader,
            standby,
        })
    }

    /// Makes the machines, and waits until a few of them have VMs.
    async fn begin(&self) -> Result<()> {
        for index in 0..MACHINES {
            self.stage.machine(&name(index)).create().await?;
        }
        let begun = eventually(DEADLINE, "the first VMs", async || {
            let count = self.cloud.vms()?.len();
            ensure!(count >= A_FEW, "{count} VMs");
            Ok(count)
        });
        ensure!(begun.await? < MACHINES, "the batch is over already");
        ensure!(
            self.standby.trap().called().is_none(),
            "the standby has called the driver"
        );
        Ok(())
    }

    /// Waits until all machines are provisioned, each with one VM that was made once. The new leader has
    /// called the driver only after the last call of the old one.
    async fn finish(&self) -> Result<()> {
        let mut ids = Vec::new();
        for index in 0..MACHINES {
            let machine = self.stage.machine(&name(index)).provisioned().await?;
            ids.extend(machine.spec.provider_id);
        }
        let mut vms: Vec<_> = self.cloud.vms()?.iter().map(Vm::provider_id).collect();
        ids.sort();
        vms.sort();
        ensure!(ids == vms, "providerIDs {ids:?}, VMs {vms:?}");
        let mut made: BTreeMap<String, usize> = BTreeMap::new();
        for line in self.cloud.calls()? {
            if line.operation == Operation::CreateMachine && line.code.as_deref() == Some("OK") {
                *made.entry(line.machine).or_default() += 1;
            }
        }
        ensure!(made.values().all(|creates| *creates == 1), "{made:?}");
        let (_, last) = self.leader.trap().called().context("the first never called")?;
        let (first, _) = self.standby.trap().called().context("the second never called")?;
        ensure!(last < first, "both replicas called the driver at the same time");
        Ok(())
    }
}

fn name(index: usize) -> String {
    format!("m-{index}")
}

/// DRV-10, DRV-12
#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_by_one_that_makes_nothing_twice() -> Result<()> {
    let mut batch = Batch::new("killed", Duration::from_secs(10)).await?;
    batch.begin().await?;
    let killed = Instant::now();
    batch.leader.kill();
    leads(&batch.standby).await?;
    let took = killed.elapsed();
    ensure!(took > Duration::from_secs(5), "{took:?}: the Lease was not over");
    batch.finish().await
}

/// The Lease is long, so that only a replica that hands it over lets the other begin.
#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_finishes_its_calls_and_hands_over() -> Result<()> {
    let mut batch = Batch::new("asked", Duration::from_mins(10)).await?;
    batch.begin().await?;
    batch.leader.terminate().await?;
    let calls = batch.cloud.calls()?;
    let open = calls.len() % 2;
    let canceled = calls.iter().find(|call| call.code.as_deref() == Some("Canceled"));
    ensure!(open == 0 && canceled.is_none(), "cut short: {canceled:?}");
    let ended = Instant::now();
    leads(&batch.standby).await?;
    let took = ended.elapsed();
    ensure!(took < Duration::from_secs(30), "{took:?} until the next leader");
    batch.finish().await
}

/// A replica that can't renew the Lease can't know whether another holds it.
#[tokio::test(start_paused = true)]
async fn a_leader_without_an_api_server_leaves_before_another_leads() -> Result<()> {
    let mut batch = Batch::new("cut-off", Duration::from_secs(10)).await?;
    batch.begin().await?;
    batch.leader.trap().cut_off();
    has_lost_leadership(&mut batch.leader).await?;
    ensure!(
        batch.standby.sample("capcmi_leader")? == 0.0,
        "another leads already"
    );
    leads(&batch.standby).await?;
    batch.finish().await
}

/// The API server says which replica leads.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_taken_by_force_ends() -> Result<()> {
    let world = World::without_core("robbed").await?;
    let provider = Provider::new(Cloud::new(&world).drivers(json!({})));
    let mut replica = elected(&world, &provider, LEASE)?.start(&world).await?;
    leads(&replica).await?;
    let leases = Api::<Lease>::namespaced(world.admin.clone(), &world.namespace);
    let robbery = Patch::Merge(json!({"spec": {"holderIdentity": "another-replica"}}));
    leases.patch(LEASE, &PatchParams::default(), &robbery).await?;
    has_lost_leadership(&mut replica).await?;
    let holder = leases
        .get(LEASE)
        .await?
        .spec
        .and_then(|spec| spec.holder_identity);
    ensure!(
        holder.as_deref() == Some("another-replica"),
        "it took the Lease back: {holder:?}"
    );
    Ok(())
}

async fn has_lost_leadership(replica: &mut Replica) -> Result<()> {
    let ended = tokio::time::timeout(DEADLINE, replica.ended()).await;
    match ended.context("it goes on")?? {
        Err(Error::LeadershipLost) => Ok(()),
        other => bail!("it ended with {other:?}"),
    }
}
