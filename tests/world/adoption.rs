//! VMs of another controller that an administrator has machines adopt.

use anyhow::{Context as _, Result, anyhow, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::READY;
use capcmi::api::identity;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::{Operation, tags};
use cmi_simulated::{Phase, PlantedVm};
use kube::ResourceExt;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{message, says};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// The tags of the other controller's VMs.
fn carried() -> serde_json::Value {
    json!({tags::CLUSTER: "shoot--old", tags::ROLE: "worker"})
}

/// Plants a VM of the other controller with the size and tags of [`ByHand`]'s spec, and returns its
/// providerID.
fn plant(cloud: &Cloud, name: &str) -> Result<String> {
    let mut planted = PlantedVm::new("shoot--old", name, "");
    planted.tags.remove(tags::MACHINE);
    planted.tags.insert(tags::ROLE.to_owned(), "worker".to_owned());
    planted.tags.insert("team".to_owned(), "a".to_owned());
    "small".clone_into(&mut planted.size);
    planted.root_fs_gb = 10;
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

/// DRV-07, DRV-08: look-ups and lists find the VM by the tags that it carries. Nothing changes it, and it is
/// deleted with its machine. The bootstrap Secret may be missing.
#[tokio::test(start_paused = true)]
async fn an_adopted_vm_stays_untouched_and_goes_with_its_machine() -> Result<()> {
    let world = World::new("adoption").await?;
    let cloud = Cloud::new(&world);
    let id = plant(&cloud, "m")?;
    plant(&cloud, "other")?;
    let before = cloud.vms()?;
    let backed = cloud.drivers(json!({}));
    let _provider = Provider::new(backed).start(&world).await?;
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

    // Lists use the tags that the VM carries: the machine is not reported as vanished.
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

/// UPD-03, CAP-18: the driver adds the missing tag once, and then finds the VM by it. If the provider missed
/// the answer, it still deletes the VM by its providerID.
#[tokio::test(start_paused = true)]
async fn an_adopted_vm_gets_the_tag_of_its_machine() -> Result<()> {
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
            is_tagged(machine) && says(machine, READY, "True", "Ready")
        })
        .await?;
    let record = identity::record(&identified).context("no record")?;
    let tag = record.machine.tag();
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
    ensure!(!is_tagged(&unwritten), "{:?}", unwritten.annotations());
    for machine in [&machine, &cut_off] {
        machine.delete().await?;
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    Ok(())
}

/// Neither a wrong providerID nor the tags of another VM are confirmed. The machine creates no VM instead,
/// and deletes none.
#[tokio::test(start_paused = true)]
async fn an_unconfirmed_vm_is_neither_made_nor_deleted() -> Result<()> {
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
            !seen.annotations().contains_key(annotations::VM_RECORD) && seen.finalizers().is_empty(),
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

/// The first machine keeps the VM, and the second can be deleted without it.
#[tokio::test(start_paused = true)]
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

/// CTL-CR-01: the machine keeps the VM of its unanswered create, and does not adopt the named one.
#[tokio::test(start_paused = true)]
async fn a_machine_whose_create_was_issued_adopts_no_vm() -> Result<()> {
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
            identity::vm_state(machine).unanswered().is_some()
        })
        .await?;
    cloud.holds(2).await?;
    // The look-up does not find the created VM before the annotation is set.
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

/// Whether the record says that the VM has the tag of its machine.
fn is_tagged(machine: &InfraMachine) -> bool {
    let applied = identity::applied_spec(machine);
    applied.is_some_and(|applied| applied.0["tags"].get(tags::MACHINE).is_some())
}
