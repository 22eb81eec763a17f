//! Adopted VMs with Cluster API's core. `tests/world` proves the rules of adoption.

use anyhow::{Result, anyhow, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::READY;
use cmi_driver::tags;
use cmi_simulated::PlantedVm;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// The tags of the other controller's VMs.
fn carried() -> serde_json::Value {
    json!({tags::CLUSTER: "shoot--old", tags::ROLE: "worker"})
}

/// Plants a VM of the other controller with the size and tags of [`ByHand`]'s spec and this user data, and
/// returns its providerID.
pub fn plant(cloud: &Cloud, name: &str, user_data: &[u8]) -> Result<String> {
    let mut planted = PlantedVm::new("shoot--old", name, "");
    planted.tags.remove(tags::MACHINE);
    planted.tags.insert(tags::ROLE.to_owned(), "worker".to_owned());
    planted.tags.insert("team".to_owned(), "a".to_owned());
    "small".clone_into(&mut planted.size);
    planted.root_fs_gb = 10;
    planted.user_data = user_data.to_vec();
    let id = cloud.console()?.plant(planted);
    id.map_err(|status| anyhow!("planting a VM: {status}"))
}

/// A machine that is to adopt the VM with this providerID.
pub fn adopting(world: &World, name: &str, id: &str) -> ByHand {
    ByHand::new(world, "one", name)
        .infra(
            "/metadata/annotations",
            json!({annotations::ADOPT: carried().to_string()}),
        )
        .infra("/spec/providerID", json!(id))
}

/// Cluster API drains and deletes the Node of a deleted Machine, which it finds by the providerID.
#[tokio::test]
async fn the_node_of_a_contested_vm_is_neither_drained_nor_deleted() -> Result<()> {
    let world = World::new("contested-node").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let id = plant(&cloud, "contested", &user_data(&world).await?)?;
    let first = adopting(&world, "contested", &id).create().await?;
    first.provisioned().await?;
    let nodes = Api::<Node>::all(world.management.workload().await?.admin_client().await?);
    let registered = eventually(DEADLINE, "the Node of the VM", async || {
        let node = nodes.get("contested").await?;
        let named = node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref());
        ensure!(named == Some(&id), "{named:?}");
        Ok(node)
    })
    .await?;
    let second = adopting(&world, "n", &id).create().await?;
    second
        .until("a contested VM", |machine| {
            says(machine, READY, "False", "AdoptionContested")
        })
        .await?;
    second.api().delete("n", &DeleteParams::default()).await?;
    eventually(DEADLINE, "the end of the InfraMachine", async || {
        let left = second.api().get_opt("n").await?;
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
    .await?;
    second.delete().await?;
    second.gone().await?;
    let kept = nodes.get("contested").await?;
    ensure!(kept.uid() == registered.uid(), "another Node");
    let is_cordoned = kept.spec.and_then(|spec| spec.unschedulable);
    ensure!(is_cordoned != Some(true), "it was drained");
    first.provisioned().await?;
    Ok(())
}

/// The user data of the VMs.
pub async fn user_data(world: &World) -> Result<Vec<u8>> {
    Ok(world.management.workload().await?.bootstrap_data()?.into())
}
