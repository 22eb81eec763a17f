//! A MachineDeployment from its first machine to the last trace of it.

use anyhow::{Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::Api;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::small;
use crate::support::{Backing, Cloud, DEADLINE, Fleet, Provider, World};

/// DRV-13, DRV-14, CTL-CR-00, CLI-CR-00: providerID and Node name identify the VM, and one
/// create per machine is enough.
///
/// DRV-07: deleting a machine deletes its VM and no other, so a rollout never has fewer than wanted. A
/// Cluster that goes takes its VMs and every object of the provider along, and no finalizer keeps anything.
/// Its Nodes are not touched: for Cluster API they are gone with their Cluster.
#[tokio::test]
async fn a_deployment_comes_up_scales_and_goes_without_a_trace() -> Result<()> {
    let world = World::new("lifecycle").await?;
    let cloud = Cloud::new(&world);
    let driver = Backing::Plugin.of(&world, &cloud, json!({})).await?;
    let _provider = Provider::new(&driver.drivers).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 3).await?;
    fleet.running(3).await?;
    let vms = cloud.holds(3).await?;
    for machine in fleet.infra_machines().await? {
        let id = machine.spec.provider_id.clone().unwrap_or_default();
        ensure!(vms.iter().any(|vm| vm.provider_id() == id), "{id} is no VM");
        let creates = cloud.count(Operation::CreateMachine, &machine.name_any())?;
        ensure!(creates == 1, "{creates} creates for one machine");
    }
    ensure!(fleet.nodes().await?.len() == 3, "every VM is a Node");
    rolls_without_a_gap(&fleet, &cloud).await?;

    let before = nodes(&fleet).await?;
    fleet.scale(4).await?;
    fleet.running(4).await?;
    cloud.holds(4).await?;
    fleet.scale(1).await?;
    fleet.running(1).await?;
    cloud.holds(1).await?;
    let left = nodes(&fleet).await?;
    ensure!(left.len() == 1, "{left:?}");
    let workload = world.management.workload().await?.admin_client().await?;
    for name in before.iter().filter(|name| !left.contains(name)) {
        let node = Api::<Node>::all(workload.clone()).get_opt(name).await?;
        ensure!(node.is_none(), "Node {name} outlived its machine");
    }
    goes_with_its_cluster(&world).await?;
    cloud.holds(0).await.map(drop)
}

async fn nodes(fleet: &Fleet<'_>) -> Result<Vec<String>> {
    Ok(fleet.nodes().await?.iter().map(ResourceExt::name_any).collect())
}

async fn rolls_without_a_gap(fleet: &Fleet<'_>, cloud: &Cloud) -> Result<()> {
    let before = cloud.holds(3).await?;
    let larger = json!({"vmPool": "default", "size": "medium", "tags": {"team": "a"}});
    fleet.template("md-2", larger).await?;
    fleet.deployment("md-2", 3).await?;
    eventually(DEADLINE, "three VMs of the new size", async || {
        let vms = cloud.vms()?;
        let sizes: Vec<_> = vms.iter().map(|vm| vm.size.as_str()).collect();
        ensure!(sizes == ["medium"; 3], "{sizes:?}");
        Ok(())
    })
    .await?;
    fleet.running(3).await?;
    let after = cloud.holds(3).await?;
    ensure!(
        after.iter().all(|vm| before.iter().all(|old| old.id != vm.id)),
        "an old VM is left"
    );
    let fewest = fewest(&cloud.calls()?, 3);
    ensure!(fewest >= 3, "there were only {fewest} VMs at a time");
    Ok(())
}

async fn goes_with_its_cluster(world: &World) -> Result<()> {
    // A template that no Machine ever used.
    let uid = world.kubectl(&["get", "cluster", "md", "-o=jsonpath={.metadata.uid}"])?;
    let owner =
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "md", "uid": uid});
    let spare = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
        "metadata": {"name": "spare", "namespace": world.namespace, "ownerReferences": [owner]},
        "spec": {"template": {"spec": {"driver": "simulated", "providerSpec": small()}}},
    });
    management_cluster::apply(&world.admin, spare).await?;
    world.kubectl(&["delete", "cluster", "md", "--wait=false"])?;
    eventually(DEADLINE, "an empty namespace", async || {
        let left = world.cluster_api_objects()?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

/// The fewest VMs that there were at a time since there were `start` for the first time: a create counts from
/// when it has ended, a deletion from when it starts.
fn fewest(calls: &[CallLine], start: i32) -> i32 {
    let changes = calls
        .iter()
        .filter_map(|line| match (line.operation, line.phase) {
            (Operation::CreateMachine, Phase::Ended) if line.code.as_deref() == Some("OK") => Some(1),
            (Operation::DeleteMachine, Phase::Started) => Some(-1),
            _ => None,
        });
    changes
        .scan(0, |vms, change| {
            *vms += change;
            Some(*vms)
        })
        .skip_while(|vms| *vms < start)
        .min()
        .unwrap_or(0)
}
