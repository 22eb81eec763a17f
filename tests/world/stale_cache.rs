//! A provider that sees everything seconds late, while others write the same objects.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi::api::annotations::VM_RECORD;
use capcmi::api::identity::{self, VmState};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::{Phase, Vm};
use fake_apiserver::FakeApiServer;
use kube::ResourceExt;
use management_cluster::eventually;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::provider::Replica;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

/// How late the provider sees what happens, at most.
const LAG: Duration = Duration::from_secs(3);
/// Conflicts for each time that another client wrote: retried after 100 ms, doubling,
/// until the cache has caught up.
const CONFLICTS_PER_WRITE: usize = 8;
const FOREIGN_FINALIZER: &str = "example.com/slow";

struct Lagging {
    world: World,
    cloud: Cloud,
    stage: Stage,
    _provider: Replica,
    lag: JoinHandle<()>,
}

impl Drop for Lagging {
    fn drop(&mut self) {
        self.lag.abort();
    }
}

impl Lagging {
    async fn new(case: &str) -> Result<Self> {
        let world = World::without_core(case).await?;
        let cloud = Cloud::new(&world);
        let stage = Stage::set(&world).await?;
        // The driver's cache lags longer than the provider's: a new VM is not found for five seconds. A
        // create is slow enough for other clients to write during the call.
        cloud.fail(json!([{"operation": "CreateMachine", "latencyMs": 1000}]))?;
        let late = json!({"hideNewSeconds": 5, "consistencyWindowSeconds": 5});
        let provider = Provider::new(cloud.drivers(late)).start(&world).await?;
        Ok(Self {
            lag: tokio::spawn(hold_back(world.management.clone())),
            world,
            cloud,
            stage,
            _provider: provider,
        })
    }

    /// A write of another client.
    async fn meddle(&self, name: &str, patch: Value) -> Result<InfraMachine> {
        self.stage.machine(name).patch(patch).await
    }

    /// An annotation of another client.
    async fn note(&self, name: &str, text: &str) -> Result<()> {
        let annotations = json!({"example.com/note": text});
        self.meddle(name, json!({"metadata": {"annotations": annotations}}))
            .await?;
        Ok(())
    }

    /// The conflicts that the provider got.
    fn conflicts(&self) -> usize {
        let recorded = self.world.management.recorded();
        let conflicts = recorded
            .iter()
            .filter(|request| request.client == "provider" && request.code == 409);
        conflicts.count()
    }

    /// The creates that the driver was called for, by machine.
    fn creates(&self) -> Result<BTreeMap<String, usize>> {
        let mut creates = BTreeMap::new();
        for line in self.cloud.calls()? {
            if line.operation == Operation::CreateMachine && line.phase == Phase::Started {
                *creates.entry(line.machine).or_default() += 1;
            }
        }
        Ok(creates)
    }
}

/// Lets events through every now and then.
async fn hold_back(server: FakeApiServer) {
    const KINDS: [&str; 3] = ["clusters", "machines", "inframachines"];
    loop {
        for kind in KINDS {
            server.hold_watches(kind, true);
        }
        sleep(LAG).await;
        for kind in KINDS {
            server.hold_watches(kind, false);
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// DRV-12, UPD-01: a provider that sees late neither makes a second VM nor undoes what others wrote.
#[tokio::test(start_paused = true)]
async fn a_cache_that_lags_makes_nothing_twice_and_takes_nothing_away() -> Result<()> {
    let lagging = Lagging::new("lag").await?;
    let (stage, cloud) = (&lagging.stage, &lagging.cloud);
    let names: Vec<_> = (0..4).map(|index| format!("m-{index}")).collect();
    for name in &names {
        stage.machine(name).create().await?;
    }
    // The provider has not seen the machines yet. When it writes its record, its copies are stale.
    for name in &names {
        let metadata = json!({"annotations": {"example.com/note": "0"}, "finalizers": [FOREIGN_FINALIZER]});
        lagging.meddle(name, json!({"metadata": metadata})).await?;
    }
    // Once more between that write and the end of the create.
    for name in &names {
        let is_owned = |machine: &InfraMachine| machine.annotations().contains_key(VM_RECORD);
        stage.machine(name).until("the ownership", is_owned).await?;
        lagging.note(name, "1").await?;
    }
    let mut made = BTreeMap::new();
    for name in &names {
        made.insert(name.clone(), stage.machine(name).provisioned().await?);
    }
    let vms = cloud.holds(names.len()).await?;

    // Two updates in a row, each seen late, with a foreign write in between.
    for round in ["1", "2"] {
        for name in &names {
            let labels = json!({"spec": {"providerSpec": {"labels": {"round": round}}}});
            lagging.meddle(name, labels).await?;
            lagging.note(name, round).await?;
        }
    }
    eventually(DEADLINE, "the update of every VM", async || {
        let rounds: Vec<_> = cloud.vms()?.iter().map(|vm| vm.labels["round"].clone()).collect();
        ensure!(rounds.iter().all(|round| round == "2"), "{rounds:?}");
        Ok(())
    })
    .await?;
    ensure!(ids(&cloud.vms()?) == ids(&vms), "other VMs than before");
    for name in &names {
        // The VM changes before the provider persists the update.
        let is_over =
            |machine: &InfraMachine| !matches!(identity::vm_state(machine), VmState::Updating { .. });
        let machine = stage.machine(name);
        let machine = machine.until("the end of the update", is_over).await?;
        keeps_identity(&made[name], &machine)?;
        ensure!(
            machine.finalizers().iter().any(|name| name == FOREIGN_FINALIZER),
            "another controller's finalizer was removed: {:?}",
            machine.finalizers()
        );
        ensure!(
            machine.annotations().get("example.com/note").map(String::as_str) == Some("2"),
            "another client's annotation was undone: {:?}",
            machine.annotations()
        );
    }

    for name in &names {
        stage.machine(name).delete().await?;
        lagging.note(name, "3").await?;
    }
    cloud.holds(0).await?;
    for name in &names {
        // Only the provider's is removed: the other finalizer is another controller's to remove.
        let is_released = |machine: &InfraMachine| machine.finalizers() == [FOREIGN_FINALIZER];
        let machine = stage.machine(name);
        let released = machine.until("the provider's release", is_released).await?;
        keeps_identity(&made[name], &released)?;
        lagging
            .meddle(name, json!({"metadata": {"finalizers": []}}))
            .await?;
        stage.machine(name).gone().await?;
    }
    let creates = lagging.creates()?;
    ensure!(
        names.iter().all(|name| creates.get(name) == Some(&1)),
        "creates: {creates:?}"
    );
    ensure!(cloud.vms()?.is_empty(), "a VM was left or made again");
    // Two around the ownership, two rounds of two, the deletion with its note, and the end.
    let foreign_writes = names.len() * 9;
    let conflicts = lagging.conflicts();
    ensure!(conflicts > 0, "nothing was seen late");
    ensure!(
        conflicts <= foreign_writes * CONFLICTS_PER_WRITE,
        "a storm of {conflicts} conflicts"
    );
    Ok(())
}

/// DRV-12: a machine that went and came again under its name is another machine, also for a
/// provider that has not seen it go.
#[tokio::test(start_paused = true)]
async fn a_machine_that_comes_again_under_its_name_gets_one_vm_of_its_own() -> Result<()> {
    let lagging = Lagging::new("again").await?;
    let (stage, cloud) = (&lagging.stage, &lagging.cloud);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let made = stage.machine("m").create().await?;
        let machine = made.provisioned().await?;
        let vms = cloud.holds(1).await?;
        ensure!(machine.spec.provider_id.as_deref() == Some(vms[0].provider_id().as_str()));
        seen.push(vms[0].id);
        made.delete().await?;
        made.gone().await?;
    }
    seen.dedup();
    ensure!(seen.len() == 3, "an old VM was taken for a new one: {seen:?}");
    ensure!(lagging.creates()?["m"] == 3, "creates: {:?}", lagging.creates()?);
    cloud.holds(0).await?;
    Ok(())
}

fn ids(vms: &[Vm]) -> Vec<String> {
    vms.iter().map(Vm::provider_id).collect()
}

/// providerID and identity are as they were; the spec that was applied may have changed, and
/// the guest may be shut down.
fn keeps_identity(before: &InfraMachine, after: &InfraMachine) -> Result<()> {
    ensure!(
        before.spec.provider_id == after.spec.provider_id,
        "providerID {:?} became {:?}",
        before.spec.provider_id,
        after.spec.provider_id
    );
    let kept = |machine: &InfraMachine| {
        let record = identity::record(machine)?;
        let made = record.made_from?;
        Some((record.machine, record.cluster, made.driver, made.secret))
    };
    let (was, is) = (kept(before), kept(after));
    ensure!(was.is_some() && was == is, "{was:?} became {is:?}");
    Ok(())
}
