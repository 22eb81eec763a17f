//! `capcmi orphans list` as the shipped ServiceAccount. `tests/world` covers the scans of a provider.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use cmi_simulated::PlantedVm;
use serde_json::{Value, json};

use crate::support::provider::service_account;
use crate::support::world::run;
use crate::support::{Cloud, Provider, Stage, World};

/// CLI-LM-00, CLI-GS-11.
#[tokio::test]
async fn the_command_lists_orphans_and_no_vm_of_others() -> Result<()> {
    let world = World::new("orphan").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    stage.machine("stays").create().await?.provisioned().await?;
    let plant = |cluster: &str, machine: &str| {
        let planted = PlantedVm::new(cluster, "gone", machine);
        cloud.console()?.plant(planted).context("planting a VM")
    };
    let orphan = plant(&stage.cluster_id, "of-no-machine")?;
    let unknown = plant("unknown-cluster", "unknown")?;

    let listed: Value = serde_json::from_str(&listed(&world, &["--output=json"]).await?)?;
    let [row] = listed.as_array().map(Vec::as_slice).unwrap_or_default() else {
        anyhow::bail!("{listed:#}")
    };
    for (field, value) in [
        ("finding", "orphan"),
        ("driver", "simulated"),
        ("namespace", &world.namespace),
        ("cluster", "c"),
        ("providerId", &orphan),
        ("name", "gone"),
        ("machineId", "of-no-machine"),
    ] {
        ensure!(row[field] == value, "{field} is not {value}: {row:#}");
    }
    let table = self::listed(&world, &["--all"]).await?;
    ensure!(
        table.contains("owned") && table.contains("stays") && !table.contains(&unknown),
        "{table}"
    );
    Ok(())
}

async fn listed(world: &World, flags: &[&str]) -> Result<String> {
    let mut command = Command::new(testbed::program("capcmi")?);
    command
        .args(["orphans", "list", "--namespace", &world.namespace])
        .arg("--drivers-config")
        .arg(world.folder.join("provider-drivers.yaml"))
        .arg("--kubeconfig")
        .arg(service_account(world).await?)
        .args(flags);
    run(&mut command)
}
