//! A MachineDeployment from its first machine to the last trace of it.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::support::{Cloud, Fleet, Provider, World};

/// DRV-13, DRV-14, CTL-CR-00: providerID and Node name are those of the VM, and one create per machine is enough.
#[tokio::test]
async fn a_deployment_comes_up_scales_and_goes_without_a_trace() -> Result<()> {
    let world = World::new("lifecycle").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let _kubelets = cloud.kubelets();
    let fleet = Fleet::create(&world, "md", 3).await?;
    fleet.running(3).await?;
    let vms = cloud.holds(3).await?;
    for machine in fleet.infra_machines().await? {
        let id = machine.spec.provider_id.clone().unwrap_or_default();
        ensure!(vms.iter().any(|vm| vm.provider_id() == id), "{id} is no VM");
    }
    ensure!(fleet.nodes().await?.len() == 3, "every VM is a Node");
    fleet.scale(5).await?;
    fleet.running(5).await?;
    cloud.holds(5).await?;
    fleet.scale(1).await?;
    fleet.running(1).await?;
    cloud.holds(1).await?;
    world.kubectl(&["delete", "machinedeployment", "md", "--wait=false"])?;
    fleet.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}
