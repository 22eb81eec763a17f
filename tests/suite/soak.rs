//! The soak: `make soak`, which does not belong to the gate. It kills two replicas, a plugin and the API
//! server at random while machines are created, changed, replaced and deleted. The cloud's journal shows
//! whether a VM was lost or created twice.
//!
//! `SOAK_SECONDS` is the duration (600). `SOAK_SEED` repeats the choice of actions, but not their timing.
//! With `SOAK_ORPHANS=delete` the provider deletes orphans as early as it can. A machine that loses its VM is
//! still reported, but a lost VM is deleted.

mod chaos;
pub mod dice;
mod fleet;
mod ledger;
mod observer;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cmi_simulated::{Clock as _, PlantedVm, WallClock};
use serde_json::json;

use self::chaos::Chaos;
use self::dice::Dice;
use self::fleet::{Wanted, nothing_is_left};
use self::observer::Observer;
use self::parts::Parts;
use crate::leadership::elected;
use crate::support::provider::service_account;
use crate::support::{Cloud, Plugin, World};

const SECONDS: &str = "SOAK_SECONDS";
const SEED: &str = "SOAK_SEED";
const ORPHANS: &str = "SOAK_ORPHANS";
/// How long the Clusters may take to converge after the last failure: the longest wait between two attempts,
/// and the rollout of a whole deployment.
const CONVERGENCE: Duration = Duration::from_mins(8);
/// How long the deletion of everything may take.
const END: Duration = Duration::from_mins(6);
/// How long nothing may reappear after the deletion: longer than a late create can take.
const QUIET: Duration = Duration::from_secs(12);

/// DRV-12, CLI-CR-04, CLI-CR-14
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten minutes: make soak"]
async fn each_machine_has_one_vm_whatever_is_killed_and_nothing_is_left() -> Result<()> {
    let seconds = number(SECONDS)?.unwrap_or(600);
    let seed = seed(SEED)?;
    println!("soak: {SEED}={seed} {SECONDS}={seconds}");
    let world = World::new("soak").await?;
    let outcome = soak(&world, Duration::from_secs(seconds), seed).await;
    match &outcome {
        Ok(()) => println!("soak: passed"),
        Err(error) => {
            println!("soak: FAILED with {SEED}={seed}: {error:#}");
            println!(
                "soak: files of the cloud and drivers are in {}",
                world.folder.display()
            );
            world.management.folder().keep();
        }
    }
    outcome
}

/// The seed in an environment variable, or else another one for each run.
pub fn seed(variable: &str) -> Result<u64> {
    Ok(number(variable)?.unwrap_or_else(|| WallClock.now().as_millis()))
}

fn number(variable: &str) -> Result<Option<u64>> {
    let Some(text) = std::env::var_os(variable).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    Ok(Some(
        text.parse()
            .with_context(|| format!("{variable}={text} is no number"))?,
    ))
}

async fn soak(world: &World, long: Duration, seed: u64) -> Result<()> {
    let cloud = Cloud::new(world);
    let config = cloud.config(json!({
        "bootSeconds": 0.5, "bootJitterSeconds": 1, "deleteSeconds": 1, "deleteWaitSeconds": 3,
        "hideNewSeconds": 0.5, "consistencyWindowSeconds": 1,
        // Applied in every life of the plugin: some answers of creates are lost, and some creates take effect
        // when no call waits for them.
        "faults": [
            {"operation": "CreateMachine", "after": 1, "count": 1, "hang": "after"},
            {"operation": "CreateMachine", "after": 2, "count": 2, "loseResponse": "Unavailable"},
            {"operation": "CreateMachine", "after": 3, "count": 1, "hang": "after"},
            {"operation": "CreateMachine", "after": 2, "count": 2, "hang": "after", "carryOutAfterMs": 8000},
        ],
    }));
    let plugin = Plugin::start(world, "simulated", &config).await?;
    let entry = json!({
        "timeouts": {"default": "4s", "createMachine": "6s", "initializeMachine": "4s",
        "deleteMachine": "6s"},
        "createSettleTime": "10s",
    });
    let provider = elected(world, plugin.drivers(entry))
        .await?
        .through(service_account(world).await?)
        .flag("--log-level=info,capcmi=debug")
        .flag(format!(
            "--orphans={}",
            std::env::var(ORPHANS).unwrap_or("report".to_owned())
        ))
        .flag("--orphans-interval=2s")
        .flag("--orphans-min-age=1s")
        .flag("--leader-elect-lease-duration=6s")
        .flag("--leader-elect-renew-deadline=4s")
        .flag("--leader-elect-retry-period=500ms");
    // A VM of an unknown Cluster. It must survive the soak.
    let stranger = cloud
        .console()?
        .plant(PlantedVm::new("elsewhere", "stranger", "stranger"))?;
    let observer = Observer::start(world, cloud.journal().to_owned());
    let _kubelets = world.kubelets(&cloud);
    let mut chaos = Chaos {
        world,
        cloud: &cloud,
        observer: &observer,
        wanted: Vec::new(),
        parts: Parts::new(world, provider, plugin),
        dice: Dice::new(seed),
        done: BTreeMap::new(),
        started: Instant::now(),
    };
    for name in ["red", "blue"] {
        chaos.wanted.push(Wanted::create(world, name, 3).await?);
    }
    chaos.say("begins");
    chaos.rage(long).await?;

    chaos.heal()?;
    chaos.say("nothing goes wrong any more");
    let ((), took) = chaos
        .until(
            CONVERGENCE,
            "an API server that has what is wanted",
            async |chaos| {
                ensure!(chaos.parts.has_api_server(), "it does not run");
                for fleet in &chaos.wanted {
                    fleet.ask().await?;
                }
                Ok(())
            },
        )
        .await?;
    chaos.say(&format!("asked again for what is wanted, after {took:.1?}"));
    let expected = BTreeSet::from([stranger.clone()]);
    let (machines, took) = chaos
        .until(CONVERGENCE, "what is wanted, and no other VM", async |chaos| {
            all_is_there(chaos, &expected).await
        })
        .await?;
    observer.observe_again().await;
    chaos.tend().await?;
    chaos.say(&format!(
        "all {machines} machines are there after {took:.1?}, each with one VM"
    ));
    let converged = took;

    for fleet in &chaos.wanted {
        fleet.delete().await?;
    }
    let ((), took) = chaos
        .until(END, "the end of everything", async |chaos| {
            nothing_is_left(chaos.world).await?;
            no_vm_but(&cloud, &expected)
        })
        .await?;
    chaos.say(&format!("nothing is left after {took:.1?}"));
    let quiet = Instant::now() + QUIET;
    chaos
        .until(2 * QUIET, "a while in which nothing comes back", async |_| {
            let alone = no_vm_but(&cloud, &expected);
            ensure!(alone.is_err() || Instant::now() >= quiet, "not over yet");
            Ok(alone)
        })
        .await?
        .0?;
    report(&chaos, &cloud, converged, took)
}

/// Checks that every Cluster has its machines, and that no other VM exists. Returns the number of machines.
async fn all_is_there(chaos: &Chaos<'_>, others: &BTreeSet<String>) -> Result<usize> {
    let mut ids = others.clone();
    for fleet in &chaos.wanted {
        ids.extend(fleet.is_there(chaos.cloud).await?);
    }
    no_vm_but(chaos.cloud, &ids)?;
    Ok(ids.len() - others.len())
}

fn no_vm_but(cloud: &Cloud, ids: &BTreeSet<String>) -> Result<()> {
    let vms: Vec<_> = cloud
        .vms()?
        .into_iter()
        .map(|vm| (vm.provider_id(), vm.name))
        .collect();
    let more: Vec<_> = vms.iter().filter(|(id, _)| !ids.contains(id)).collect();
    ensure!(more.is_empty(), "VMs of no machine: {more:?}");
    ensure!(vms.len() == ids.len(), "VMs {vms:?} for {ids:?}");
    Ok(())
}

/// Prints the figures of a successful soak.
fn report(chaos: &Chaos<'_>, cloud: &Cloud, converged: Duration, ended: Duration) -> Result<()> {
    println!("soak: done at random:");
    for (what, times) in &chaos.done {
        println!("  {times:>5}  {what}");
    }
    let (creates, late, deletes, unseen, comparisons) = chaos.observer.observations(|observations| {
        let ledger = &observations.ledger;
        (
            ledger.creates,
            ledger.late,
            ledger.deletes,
            ledger.unseen,
            observations.comparisons,
        )
    });
    println!("soak: {} replicas ended by themselves", chaos.parts.gave_up);
    println!(
        "soak: {creates} VMs made, {late} of them late, and {deletes} deleted in {} lines of calls",
        cloud.calls()?.len()
    );
    println!(
        "soak: machines held against VMs {comparisons} times; {unseen} deletions were over before they were \
            seen"
    );
    println!("soak: as wanted after {converged:.1?}; nothing left {ended:.1?} after the delete");
    // One VM was planted.
    if creates < 2 || late == 0 || comparisons == 0 {
        bail!("nothing happened, so nothing is shown");
    }
    Ok(())
}
