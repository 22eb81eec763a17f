//! Machines through a driver of machine-controller-manager (MCM): its fake driver, behind the bridge of the
//! kit for Go.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use capcmi::api::annotations;
use cmi_driver::tags;
use serde_json::{Value, json};
use testbed::{GoDriver, mcm_driver};

use crate::support::{ByHand, Provider, World};

const TOKEN: &str = "the-right-token";

async fn started(world: &World) -> Result<(GoDriver, Provider)> {
    let driver = mcm_driver(world.management.folder(), &format!("{}-mcm", world.namespace)).await?;
    let drivers = json!({"drivers": [{"name": "mcm", "grpc": {"endpoint": driver.served.endpoint}}]});
    let credentials = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mcm", "namespace": world.namespace},
        "stringData": {"token": TOKEN},
    });
    management_cluster::apply(&world.admin, credentials).await?;
    Ok((driver, Provider::new(drivers.to_string())))
}

fn machine(world: &World, name: &str) -> ByHand {
    ByHand::new(world, "one", name)
        .infra("/spec/driver", json!("mcm"))
        .infra("/spec/secretRef", json!({"name": "mcm"}))
        .infra(
            "/spec/providerSpec",
            json!({"size": "small", "tags": {"team": "a"}}),
        )
}

/// The VMs of the platform.
fn vms(cloud: &Path) -> Result<Vec<Value>> {
    let mut vms = Vec::new();
    for entry in fs::read_dir(cloud)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            vms.push(serde_json::from_slice(&fs::read(path)?)?);
        }
    }
    Ok(vms)
}

#[tokio::test]
async fn a_machine_comes_up_and_goes_through_a_driver_of_mcm() -> Result<()> {
    let world = World::new("mcm").await?;
    let (driver, provider) = started(&world).await?;
    let provider = provider.start(&world).await?;
    world.cluster("one").await?;
    let machine = machine(&world, "m").create().await?;
    let up = machine.provisioned().await?;
    let vms_up = vms(&driver.cloud)?;
    let [vm] = vms_up.as_slice() else {
        anyhow::bail!("{vms_up:?}")
    };
    ensure!(vm["ProviderID"] == json!(up.spec.provider_id), "{vm}");
    ensure!(vm["Initialized"] == true, "{vm}");
    let tags = vm["Tags"].as_object().context("no tags")?;
    ensure!(
        tags["team"] == "a" && tags.contains_key(tags::MACHINE),
        "{tags:?}"
    );
    ensure!(tags.contains_key("kubernetes.io/role/node"), "{tags:?}");
    let addresses = up.status.map(|status| status.addresses).unwrap_or_default();
    ensure!(
        addresses.iter().any(|address| address.address == "10.0.0.7"),
        "{addresses:?}"
    );

    machine.delete().await?;
    machine.gone().await?;
    let left = vms(&driver.cloud)?;
    ensure!(left.is_empty(), "{left:?}");
    for log in [provider.log()?, fs::read_to_string(driver.served.process.log())?] {
        ensure!(!log.contains(TOKEN), "a log has the secret");
    }
    Ok(())
}

/// `capcmi migrate` leaves VMs with the tags of MCM.
#[tokio::test]
async fn a_vm_that_mcm_made_is_adopted_and_deleted() -> Result<()> {
    let world = World::new("mcm-adopted").await?;
    let (driver, provider) = started(&world).await?;
    let _provider = provider.start(&world).await?;
    world.cluster("one").await?;
    let id = "fake:///made-by-mcm";
    let vm = json!({
        "ProviderID": id, "Name": "old", "Size": "small", "Initialized": true,
        "Tags": {"kubernetes.io/cluster/shoot--old": "1", "kubernetes.io/role/node": "1", "team": "a"},
    });
    fs::write(driver.cloud.join("made-by-mcm.json"), vm.to_string())?;
    let carried = json!({tags::CLUSTER: "shoot--old", tags::ROLE: "node"}).to_string();
    let machine = machine(&world, "old")
        .infra("/metadata/annotations", json!({annotations::ADOPT: carried}))
        .infra("/spec/providerID", json!(id));
    let machine = machine.create().await?;
    machine.provisioned().await?;
    ensure!(vms(&driver.cloud)? == [vm], "the VM is changed");
    machine.delete().await?;
    machine.gone().await?;
    let left = vms(&driver.cloud)?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
