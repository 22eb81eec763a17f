//! Adopted VMs with Cluster API's core and `clusterctl`. `tests/world` proves the rules of adoption.

use anyhow::{Context, Result, anyhow, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::READY;
use cmi_driver::{Operation, tags};
use cmi_simulated::{Phase, PlantedVm};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use management_cluster::eventually;
use management_cluster::stand_in::StandInController;
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// The tags of the other controller's VMs.
fn carried() -> serde_json::Value {
    json!({tags::CLUSTER: "shoot--old", tags::ROLE: "worker"})
}

/// Plants a VM of the other controller with the size and tags of [`ByHand`]'s spec and this user data, and
/// returns its providerID.
fn plant(cloud: &Cloud, name: &str, user_data: &[u8]) -> Result<String> {
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
fn adopting(world: &World, name: &str, id: &str) -> ByHand {
    ByHand::new(world, "one", name)
        .infra(
            "/metadata/annotations",
            json!({annotations::ADOPT: carried().to_string()}),
        )
        .infra("/spec/providerID", json!(id))
}

/// The driver calls for a machine, apart from look-ups.
fn changes(cloud: &Cloud, name: &str) -> Result<Vec<Operation>> {
    let started = cloud.calls_for(name)?.into_iter();
    let started = started.filter(|line| line.phase == Phase::Started);
    let operations = started.map(|line| line.operation);
    Ok(operations
        .filter(|operation| *operation != Operation::GetMachineStatus)
        .collect())
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

/// `clusterctl` moves no Machine without a Node, and a Machine has none before the adoption. After the move,
/// the VM still belongs to the machine.
#[tokio::test]
async fn a_move_keeps_adopted_vms_and_waits_for_pending_adoptions() -> Result<()> {
    let source = World::new("adopted-move").await?;
    let target = source.move_target().await?;
    let cloud = Cloud::new(&source);
    let provider = Provider::new(cloud.drivers(json!({})));
    let _at_source = provider.start(&source).await?;
    let _at_target = provider.clone().named("target").start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = source.kubelets(&cloud);
    source.cluster("one").await?;
    let user_data = user_data(&source).await?;
    let up = plant(&cloud, "up", &user_data)?;
    let waiting = plant(&cloud, "waiting", &user_data)?;
    let before = cloud.vms()?;
    let away = json!([{"operation": "GetMachineStatus", "machine": "waiting", "code": "Unavailable"}]);
    cloud.fail(away)?;
    let adopted = adopting(&source, "up", &up).create().await?;
    let identity = adopted.provisioned().await?.annotations().clone();
    let asked = adopting(&source, "waiting", &waiting).create().await?;
    asked
        .until("a driver that is away", |machine| {
            says(machine, READY, "False", "Unavailable")
        })
        .await?;
    let refused = source.move_to(&target).err().context("it was moved half done")?;
    ensure!(
        format!("{refused:#}").contains("/waiting is still provisioning"),
        "{refused:#}"
    );
    cloud.fail(json!([]))?;
    asked.provisioned().await?;
    eventually(DEADLINE, "the Nodes of the Machines", async || {
        let names = source.kubectl(&["get", "machine", "-o", "jsonpath={.items[*].status.nodeRef.name}"])?;
        ensure!(names.split_whitespace().count() == 2, "{names}");
        Ok(())
    })
    .await?;

    source.move_to(&target)?;

    let adopted = adopting(&target, "up", &up);
    let asked = adopting(&target, "waiting", &waiting);
    let moved = adopted.provisioned().await?;
    for key in [annotations::VM_RECORD, annotations::ADOPT] {
        let (old, new) = (identity.get(key), moved.annotations().get(key));
        ensure!(old.is_some() && old == new, "{key}: {old:?} became {new:?}");
    }
    asked.provisioned().await?;
    for name in ["up", "waiting"] {
        ensure!(
            changes(&cloud, name)?.is_empty(),
            "{name}: {:?}",
            changes(&cloud, name)?
        );
    }
    ensure!(cloud.vms()? == before, "{:?}", cloud.vms()?);
    for machine in [&adopted, &asked] {
        machine.delete().await?;
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    Ok(())
}

/// The user data of the VMs.
async fn user_data(world: &World) -> Result<Vec<u8>> {
    Ok(world.management.workload().await?.bootstrap_data()?.into())
}
