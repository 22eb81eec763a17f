//! Machines whose InfraMachine core has deleted.
//!
//! Most cases run core without `ReconcilerRateLimiting`. With it, core reconciles an object only once a
//! second, and the suite takes more than half as long again. It also makes core wait until its caches contain
//! its own last writes. Without it, a MachineSet may miss a Machine that it has just created. It then deletes
//! the Machine's InfraMachine as an orphan, and the Machine waits forever.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::{Resource as _, ResourceExt};
use management_cluster::eventually;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::fleet::objects;
use super::{DEADLINE, Fleet, World};

/// How long a Machine must lack its InfraMachine: a move creates one before the other.
const LOST_AFTER: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(1);

/// Deletes the lost Machines of a namespace until it is dropped, like a MachineHealthCheck. Their MachineSets
/// then create others.
#[derive(Debug)]
pub struct LostMachines(JoinHandle<()>);

impl LostMachines {
    /// Starts with the namespace of this world.
    pub fn replaced_in(world: World) -> Self {
        Self(tokio::spawn(async move {
            let mut lost_since = HashMap::new();
            loop {
                tokio::time::sleep(INTERVAL).await;
                // Ignored, since a case may stop the API server. A lasting error fails the case anyway.
                if let Err(error) = replace(&world, &mut lost_since).await {
                    eprintln!("looking for lost Machines in {}: {error:#}", world.namespace);
                }
            }
        }))
    }
}

impl Drop for LostMachines {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn replace(world: &World, lost_since: &mut HashMap<String, Instant>) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let infra_machines = objects(world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine");
    for machine in machines.list(&ListParams::default()).await? {
        let (name, Some(uid)) = (machine.name_any(), machine.uid()) else {
            continue;
        };
        let wanted = machine.data["spec"]["infrastructureRef"]["name"].as_str();
        let is_lost = match wanted.filter(|_| waits_for_first_vm(&machine)) {
            Some(wanted) => infra_machines.get_opt(wanted).await?.is_none(),
            None => false,
        };
        if !is_lost {
            lost_since.remove(&uid);
            continue;
        }
        if lost_since
            .entry(uid.clone())
            .or_insert_with(Instant::now)
            .elapsed()
            < LOST_AFTER
        {
            continue;
        }
        eprintln!("core has deleted the InfraMachine of Machine {name} as an orphan: deleting the Machine");
        let same = Preconditions {
            uid: Some(uid),
            ..Preconditions::default()
        };
        let params = DeleteParams {
            preconditions: Some(same),
            ..DeleteParams::default()
        };
        machines.delete(&name, &params).await?;
    }
    Ok(())
}

/// Whether this Machine of a MachineSet, as core creates it, has never had a VM.
fn waits_for_first_vm(machine: &DynamicObject) -> bool {
    let owners = machine.owner_references();
    owners.iter().any(|owner| owner.kind == "MachineSet")
        && machine.meta().deletion_timestamp.is_none()
        && machine.data["spec"]["infrastructureRef"]["kind"] == "InfraMachine"
        && machine.data["status"]["initialization"]["infrastructureProvisioned"] != true
}

/// Without a provider, a deleted InfraMachine vanishes immediately.
#[tokio::test]
async fn a_machine_that_lost_its_infra_machine_before_the_create_is_replaced() -> Result<()> {
    let world = World::new("lost").await?;
    let fleet = Fleet::create(&world, "one", 1).await?;
    let name = async || {
        let all = fleet.infra_machines().await?;
        let name: Option<String> = all.first().map(ResourceExt::name_any);
        name.context("there is no InfraMachine")
    };
    let lost = eventually(DEADLINE, "an InfraMachine", name).await?;
    let infra_machines = objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine");
    infra_machines.delete(&lost, &DeleteParams::default()).await?;
    eventually(DEADLINE, "another InfraMachine", async || {
        let other = name().await?;
        ensure!(other != lost, "{other} is there");
        Ok(())
    })
    .await
}
