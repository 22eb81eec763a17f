//! Machines whose InfraMachine core has deleted.
//!
//! Most cases run core without `ReconcilerRateLimiting`: with it, core reconciles an object once in a second,
//! and the suite takes more than half as long again. But with it, core also reconciles no owner before its
//! caches hold what it wrote last. Without it, a MachineSet may go by a cache that lacks the Machine that it
//! has just made. It then deletes the InfraMachine of that Machine as an orphan, and the Machine waits for
//! one for ever.

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

/// How long a Machine has to be without its InfraMachine: a move makes the one before the other.
const LOST_AFTER: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(1);

/// Deletes the lost Machines of a namespace while it lives, as a MachineHealthCheck would, so that their
/// MachineSets make others.
#[derive(Debug)]
pub struct LostMachines(JoinHandle<()>);

impl LostMachines {
    /// Begins with the namespace of this world.
    pub fn replaced_in(world: World) -> Self {
        Self(tokio::spawn(async move {
            let mut lost_since = HashMap::new();
            loop {
                tokio::time::sleep(INTERVAL).await;
                // A case may stop the API server, and what is wrong for longer fails the case itself.
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

/// Whether this is a Machine of a MachineSet, as core makes it, that has had no VM yet.
fn waits_for_first_vm(machine: &DynamicObject) -> bool {
    let owners = machine.owner_references();
    owners.iter().any(|owner| owner.kind == "MachineSet")
        && machine.meta().deletion_timestamp.is_none()
        && machine.data["spec"]["infrastructureRef"]["kind"] == "InfraMachine"
        && machine.data["status"]["initialization"]["infrastructureProvisioned"] != true
}

/// Without a provider, an InfraMachine goes as soon as it is deleted.
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
