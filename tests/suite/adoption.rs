//! VMs that another has made, and that machines take over because an administrator says so.

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

use crate::support::backing::with_every_backing;
use crate::support::by_hand::{message, says};
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Provider, World};

with_every_backing!(a_vm_of_another_controller_is_adopted_untouched_and_goes_with_its_machine);

/// The tags by which the VMs of the other controller are known.
fn carried() -> serde_json::Value {
    json!({tags::CLUSTER: "shoot--old", tags::ROLE: "worker"})
}

/// A VM of the other controller, of the size and with the tags of [`ByHand`]'s spec; its id.
fn plant(cloud: &Cloud, name: &str) -> Result<String> {
    plant_with(cloud, name, &[])
}

/// As [`plant`], of a VM that has booted with these data.
fn plant_with(cloud: &Cloud, name: &str, user_data: &[u8]) -> Result<String> {
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

/// A machine that is to adopt the VM of this id.
fn adopting(world: &World, name: &str, id: &str) -> ByHand {
    ByHand::new(world, "one", name)
        .infra(
            "/metadata/annotations",
            json!({annotations::ADOPT: carried().to_string()}),
        )
        .infra("/spec/providerID", json!(id))
}

/// What the driver was asked to do about a machine, besides how its VM is.
fn changes(cloud: &Cloud, name: &str) -> Result<Vec<Operation>> {
    let started = cloud.calls_for(name)?.into_iter();
    let started = started.filter(|line| line.phase == Phase::Started);
    let operations = started.map(|line| line.operation);
    Ok(operations
        .filter(|operation| *operation != Operation::GetMachineStatus)
        .collect())
}

/// DRV-07, DRV-08: it is found by the tags that it carries, in look-ups and in lists, stays as it is, and
/// goes with its machine. Bootstrap data are not needed.
async fn a_vm_of_another_controller_is_adopted_untouched_and_goes_with_its_machine(
    backing: Backing,
) -> Result<()> {
    let world = World::new("adoption").await?;
    let cloud = Cloud::new(&world);
    let id = plant(&cloud, "m")?;
    plant(&cloud, "other")?;
    let before = cloud.vms()?;
    let backed = backing.of(&world, &cloud, json!({})).await?;
    let _provider = Provider::new(&backed.drivers)
        .flag("--inventory-interval=1s")
        .start(&world)
        .await?;
    world.cluster("one").await?;
    let machine = adopting(&world, "m", &id)
        .machine("/spec/bootstrap", json!({"dataSecretName": "there-is-none"}))
        .create()
        .await?;
    let adopted = machine.provisioned().await?;
    ensure!(
        adopted.spec.provider_id.as_ref() == Some(&id),
        "{:?}",
        adopted.spec
    );
    ensure!(!adopted.finalizers().is_empty(), "the VM would be forgotten");
    ensure!(changes(&cloud, "m")?.is_empty(), "{:?}", changes(&cloud, "m")?);
    ensure!(cloud.vms()? == before, "{:?}", cloud.vms()?);

    // Lists are by the tags that the VM carries: it does not vanish from them, and its end is seen.
    let lists = || cloud.count(Operation::ListMachines, "");
    let seen = lists()?;
    eventually(DEADLINE, "four more lists", async || {
        let now = lists()?;
        ensure!(now >= seen + 8, "{now} lines of lists, {seen} before");
        Ok(())
    })
    .await?;
    let now = machine.get().await?;
    ensure!(says(&now, READY, "True", "Ready"), "{:?}", now.status);
    ensure!(
        now.annotations() == adopted.annotations(),
        "{:?}",
        now.annotations()
    );

    machine.delete().await?;
    machine.gone().await?;
    let left = cloud.holds(1).await?;
    ensure!(left[0].name == "other", "{left:?}");
    Ok(())
}

/// UPD-03, CAP-18: the VM gets the one tag that it lacks, once, and is then found by it; a VM that the
/// identity was never written down for goes by its id all the same.
#[tokio::test]
async fn an_adopted_vm_gets_the_tag_of_its_machine_where_the_driver_can_add_it() -> Result<()> {
    let world = World::new("adoption-tag").await?;
    let cloud = Cloud::new(&world);
    let (id, unwritten) = (plant(&cloud, "m")?, plant(&cloud, "unwritten")?);
    let before = cloud.vms()?;
    let entry = json!({"timeouts": {"updateMachine": "5s"}});
    let _provider = Provider::new(cloud.drivers_with(entry, json!({"addsMachineTag": true})))
        .start(&world)
        .await?;
    cloud.fail(json!([{"operation": "UpdateMachine", "machine": "unwritten", "hang": "after"}]))?;
    world.cluster("one").await?;
    let machine = adopting(&world, "m", &id).create().await?;
    let identified = machine
        .until("a VM that is tagged", |machine| {
            let applied = machine.annotations().get(annotations::APPLIED_PROVIDER_SPEC);
            applied.is_some_and(|applied| applied.contains(tags::MACHINE))
                && says(machine, READY, "True", "Ready")
        })
        .await?;
    let tag = identified.annotations()[annotations::MACHINE_ID]
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let vms = cloud.vms()?;
    for (vm, old) in vms.iter().zip(&before).filter(|(vm, _)| vm.name == "m") {
        let mut expected = old.clone();
        expected.tags.insert(tags::MACHINE.to_owned(), tag.to_owned());
        ensure!(*vm == expected, "{old:?} became {vm:?}");
    }
    ensure!(
        changes(&cloud, "m")? == [Operation::UpdateMachine],
        "{:?}",
        changes(&cloud, "m")?
    );

    let cut_off = adopting(&world, "unwritten", &unwritten).create().await?;
    eventually(DEADLINE, "a VM whose update was not answered", async || {
        let vms = cloud.vms()?;
        let is_tagged = vms
            .iter()
            .any(|vm| vm.name == "unwritten" && !vm.machine().is_empty());
        ensure!(is_tagged, "{vms:?}");
        Ok(())
    })
    .await?;
    let unwritten = cut_off.get().await?;
    let applied = &unwritten.annotations()[annotations::APPLIED_PROVIDER_SPEC];
    ensure!(!applied.contains(tags::MACHINE), "{applied}");
    for machine in [&machine, &cut_off] {
        machine.delete().await?;
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    Ok(())
}

/// Not by a wrong id, and not by the tags of another; nothing is made in its place, and what was never
/// confirmed is not deleted.
#[tokio::test]
async fn a_vm_that_the_driver_does_not_confirm_is_neither_made_nor_deleted() -> Result<()> {
    let world = World::new("unconfirmed").await?;
    let cloud = Cloud::new(&world);
    let (id, other) = (plant(&cloud, "m")?, plant(&cloud, "other")?);
    let before = cloud.vms()?;
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let wrong_id = adopting(&world, "m", &other).create().await?;
    let wrong_tags = ByHand::new(&world, "one", "other")
        .infra("/metadata/annotations", json!({annotations::ADOPT: "{}"}))
        .infra("/spec/providerID", json!(id))
        .create()
        .await?;
    let unread = ByHand::new(&world, "one", "unread")
        .infra("/metadata/annotations", json!({annotations::ADOPT: "yes"}))
        .infra("/spec/providerID", json!("simulated:///nothing"))
        .create()
        .await?;
    for (machine, reason) in [
        (&wrong_id, "AdoptionUnconfirmed"),
        (&wrong_tags, "AdoptionUnconfirmed"),
        (&unread, "AdoptionInvalid"),
    ] {
        let seen = machine
            .until(reason, |machine| says(machine, READY, "False", reason))
            .await?;
        ensure!(
            message(&seen, READY).contains(annotations::ADOPT),
            "{:?}",
            seen.status
        );
        ensure!(
            !seen.annotations().contains_key(annotations::MACHINE_ID) && seen.finalizers().is_empty(),
            "it was taken over: {:?}",
            seen.metadata
        );
        machine.delete().await?;
        machine.gone().await?;
        ensure!(changes(&cloud, &machine.name)?.is_empty(), "{}", machine.name);
    }
    ensure!(cloud.vms()? == before, "{:?}", cloud.vms()?);
    Ok(())
}

/// The one that has it keeps it, and the other goes without it.
#[tokio::test]
async fn two_machines_never_have_the_same_vm() -> Result<()> {
    let world = World::new("contested").await?;
    let cloud = Cloud::new(&world);
    let id = plant(&cloud, "m")?;
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let first = adopting(&world, "m", &id).create().await?;
    first.provisioned().await?;
    let second = adopting(&world, "n", &id).create().await?;
    let contested = second
        .until("a contested VM", |machine| {
            says(machine, READY, "False", "AdoptionContested")
        })
        .await?;
    let said = message(&contested, READY);
    ensure!(
        said.contains(&format!("{}/m", world.namespace)) && said.contains(&id),
        "{said}"
    );
    second.delete().await?;
    second.gone().await?;
    ensure!(cloud.calls_for("n")?.is_empty(), "{:?}", cloud.calls_for("n")?);
    cloud.holds(1).await?;
    first.provisioned().await?;
    Ok(())
}

/// CTL-CR-01: the VM of a create that was not answered stays the machine's, and the one that is named is not.
#[tokio::test]
async fn a_machine_that_a_create_was_issued_for_adopts_no_vm_and_takes_its_own_along() -> Result<()> {
    let world = World::new("too-late").await?;
    let cloud = Cloud::new(&world);
    let other = plant(&cloud, "other")?;
    let entry = json!({"timeouts": {"createMachine": "5s"}});
    let _provider = Provider::new(cloud.drivers_with(entry, json!({})))
        .start(&world)
        .await?;
    world.cluster("one").await?;
    cloud.fail(json!([{"operation": "CreateMachine", "machine": "m", "hang": "after"}]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine
        .until("a create that is not answered", |machine| {
            machine.annotations().contains_key(annotations::CREATE_ISSUED_AT)
        })
        .await?;
    cloud.holds(2).await?;
    // What it has made is not found before the annotation is there.
    cloud.fail(json!([{"operation": "GetMachineStatus", "machine": "m", "code": "Unavailable"}]))?;
    let annotations = json!({annotations::ADOPT: carried().to_string()});
    machine
        .patch(json!({"metadata": {"annotations": annotations}, "spec": {"providerID": other}}))
        .await?;
    let refused = machine
        .until("an adoption that comes too late", |machine| {
            says(machine, READY, "False", "AdoptionInvalid")
        })
        .await?;
    let said = message(&refused, READY);
    ensure!(said.contains("a create was issued"), "{said}");
    cloud.fail(json!([]))?;
    machine.delete().await?;
    machine.gone().await?;
    let left = cloud.holds(1).await?;
    ensure!(left[0].name == "other", "{left:?}");
    Ok(())
}

/// Cluster API drains and deletes the Node that the InfraMachine of a deleted Machine names, adopted or not.
#[tokio::test]
async fn the_node_of_a_vm_is_left_alone_where_the_inframachine_that_contests_it_goes_first() -> Result<()> {
    let world = World::new("contested-node").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let id = plant_with(&cloud, "contested", &user_data(&world).await?)?;
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

/// clusterctl moves no Machine without a Node, and there is none before its VM is adopted. What is adopted
/// is the machine's at the target as well.
#[tokio::test]
async fn adopted_vms_survive_a_move_which_waits_for_those_that_are_not_adopted_yet() -> Result<()> {
    let source = World::new("adopted-move").await?;
    let target = source.elsewhere().await?;
    let cloud = Cloud::new(&source);
    let provider = Provider::new(cloud.drivers(json!({})));
    let _at_source = provider.start(&source).await?;
    let _at_target = provider.clone().named("target").start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = world.kubelets(&cloud);
    source.cluster("one").await?;
    let user_data = user_data(&source).await?;
    let up = plant_with(&cloud, "up", &user_data)?;
    let waiting = plant_with(&cloud, "waiting", &user_data)?;
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
    for key in [
        annotations::MACHINE_ID,
        annotations::APPLIED_PROVIDER_SPEC,
        annotations::ADOPT,
        annotations::ADOPTED,
    ] {
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

/// What the VMs of the case boot with.
async fn user_data(world: &World) -> Result<Vec<u8>> {
    Ok(world.management.workload().await?.bootstrap_data()?.into())
}
