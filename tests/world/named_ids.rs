//! ProviderIDs that a driver names in advance: they save a write, and do not prove that a VM exists.

use anyhow::{Context, Result, anyhow, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::READY;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::PlantedVm;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// Whether the status alone tells that the VM exists.
fn is_named(machine: &InfraMachine) -> bool {
    machine.annotations().contains_key(annotations::PROVIDER_ID)
}

fn blocks(machine: &InfraMachine) -> bool {
    machine.annotations().contains_key(annotations::BLOCK_MOVE)
}

/// At first, only the status tells that the create was answered. `clusterctl move` drops the status, so it
/// waits until the paused machine has recorded the answer. A deletion does not wait for a late create.
#[tokio::test(start_paused = true)]
async fn a_named_id_is_written_down_before_a_move() -> Result<()> {
    let world = World::new("named").await?;
    let cloud = Cloud::new(&world);
    let entry = json!({"createSettleTime": "1h"});
    let driver = cloud.drivers_with(entry, json!({}));
    let provider = Provider::new(driver);
    let mut first = provider.start(&world).await?;
    world.cluster("one").await?;
    let (paused, deleted) = (
        ByHand::new(&world, "one", "paused").create().await?,
        ByHand::new(&world, "one", "deleted").create().await?,
    );
    for machine in [&paused, &deleted] {
        let up = machine.provisioned().await?;
        ensure!(is_named(&up) && blocks(&up), "{:?}", up.annotations());
    }
    // The new process remembers no creates.
    first.terminate().await?;
    let _second = provider.start(&world).await?;

    paused
        .patch(json!({"metadata": {"annotations": {annotations::PAUSED: ""}}}))
        .await?;
    let settled = paused
        .until("a machine that may be moved", |machine| !blocks(machine))
        .await?;
    ensure!(!is_named(&settled), "{:?}", settled.annotations());
    ensure!(!settled.annotations().contains_key(annotations::CREATE_ISSUED_AT));
    let id = settled.spec.provider_id.context("the providerID is gone")?;
    ensure!(cloud.vms()?.iter().any(|vm| vm.provider_id() == id));
    paused
        .patch(json!({"metadata": {"annotations": {annotations::PAUSED: null}}}))
        .await?;

    for machine in [&deleted, &paused] {
        machine.delete().await?;
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    ensure!(cloud.count(Operation::CreateMachine, "deleted")? == 1);
    Ok(())
}

/// CTL-CR-03: a VM with the corrected spec may get another providerID.
#[tokio::test(start_paused = true)]
async fn a_named_id_is_removed_when_the_create_is_refused() -> Result<()> {
    let world = World::new("named-refused").await?;
    let cloud = Cloud::new(&world);
    let driver = cloud.drivers(json!({}));
    let _provider = Provider::new(driver).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([{"operation": "CreateMachine", "code": "InvalidArgument", "latencyMs": 1000}]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let named = machine.until("an id that is named", is_named).await?;
    ensure!(named.spec.provider_id.is_some() && !named.is_provisioned());
    let refused = machine
        .until("a refusal", |machine| {
            says(machine, READY, "False", "InvalidArgument")
        })
        .await?;
    ensure!(refused.spec.provider_id.is_none() && !is_named(&refused) && !blocks(&refused));
    cloud.fail(json!([]))?;
    machine.respecify("size", json!("medium")).await?;
    let id = machine.provisioned().await?.spec.provider_id;
    let vms = cloud.holds(1).await?;
    ensure!(id == Some(vms[0].provider_id()), "{id:?}");
    Ok(())
}

/// Two machines with the same providerID would be confused: it is written once the VM exists.
#[tokio::test(start_paused = true)]
async fn an_id_of_another_machine_is_not_written_before_the_create() -> Result<()> {
    let world = World::new("named-taken").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([{"operation": "CreateMachine", "code": "InvalidArgument", "latencyMs": 1000}]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let named = machine
        .until("an id that is named", is_named)
        .await?
        .spec
        .provider_id;
    machine
        .until("an id that is taken back", |machine| !is_named(machine))
        .await?;
    let other = ByHand::new(&world, "one", "other").infra("/spec/providerID", json!(named));
    other.create_infra().await?;
    cloud.fail(json!([]))?;
    machine.respecify("size", json!("medium")).await?;
    let up = machine.provisioned().await?;
    ensure!(!is_named(&up), "{:?}", up.annotations());
    ensure!(up.spec.provider_id == named, "{up:?}");
    cloud.holds(1).await?;
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// A backup may lack the status, and `clusterctl move --to-directory` leaves it out.
#[tokio::test(start_paused = true)]
async fn a_machine_without_its_status_finds_its_vm_and_makes_no_other() -> Result<()> {
    let world = World::new("named-restored").await?;
    let cloud = Cloud::new(&world);
    let driver = cloud.drivers(json!({}));
    let provider = Provider::new(driver);
    let mut first = provider.start(&world).await?;
    world.cluster("one").await?;
    let (there, gone) = (
        ByHand::new(&world, "one", "there").create().await?,
        ByHand::new(&world, "one", "gone").create().await?,
    );
    let before = there.provisioned().await?;
    ensure!(is_named(&before), "{:?}", before.annotations());
    gone.provisioned().await?;
    first.terminate().await?;

    for machine in [&there, &gone] {
        let lost = Patch::Merge(json!({"status": null}));
        machine
            .api()
            .patch_status(&machine.name, &PatchParams::default(), &lost)
            .await?;
        // The backup is old.
        let annotations = json!({annotations::CREATE_ISSUED_AT: "2026-01-01T00:00:00Z"});
        let restored = machine
            .patch(json!({"metadata": {"annotations": annotations}}))
            .await?;
        ensure!(is_named(&restored) && !restored.is_provisioned(), "{restored:?}");
    }
    let vms = cloud.vms()?;
    let vm = vms.iter().find(|vm| vm.name == "gone").context("no VM")?;
    cloud.console()?.vanish(vm.id)?;
    let _second = provider.start(&world).await?;
    let found = there.provisioned().await?;
    ensure!(found.spec.provider_id == before.spec.provider_id, "{found:?}");
    gone.until("a VM that is gone", |machine| {
        says(machine, READY, "False", "VirtualMachineVanished")
    })
    .await?;
    cloud.holds(1).await?;
    for machine in [&there, &gone] {
        let creates = cloud.count(Operation::CreateMachine, &machine.name)?;
        ensure!(creates == 1, "{}: {creates}", machine.name);
        machine.delete().await?;
        machine.gone().await?;
    }
    cloud.holds(0).await?;
    Ok(())
}

/// One driver names the providerID, and another, with a different configuration, creates the VM with another
/// providerID. The machine gets the VM's own providerID, and is deleted with its VM.
#[tokio::test(start_paused = true)]
async fn a_vm_with_another_id_than_named_belongs_to_its_machine() -> Result<()> {
    let world = World::new("named-other").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let mut first = provider.start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([{"operation": "CreateMachine", "hang": "before"}]))?;
    let machines = ["up", "deleted"].map(|name| ByHand::new(&world, "one", name));
    for machine in &machines {
        let machine = machine.clone().create().await?;
        machine.until("an id that is named", is_named).await?;
        eventually(DEADLINE, "the create", async || {
            ensure!(
                cloud.count(Operation::CreateMachine, &machine.name)? == 1,
                "none yet"
            );
            Ok(())
        })
        .await?;
    }
    let named = machines[0].get().await?.spec.provider_id;
    first.kill();

    // A VM of the other machine appears late, with another providerID, while the machine is being deleted.
    let [up, deleted] = &machines;
    let unconfirmed = deleted.get().await?;
    let noted = |key: &str| unconfirmed.annotations().get(key).cloned().unwrap_or_default();
    let identity = noted(annotations::MACHINE_ID);
    let tag = identity.rsplit('/').next().unwrap_or_default();
    let late = PlantedVm::new(&noted(annotations::CLUSTER_ID), "deleted", tag);
    let late = cloud
        .console()?
        .plant(late)
        .map_err(|status| anyhow!("planting: {status}"))?;
    ensure!(unconfirmed.spec.provider_id.as_ref() != Some(&late));
    deleted.delete().await?;
    cloud.fail(json!([]))?;
    let driver = cloud.drivers_with(
        json!({"createSettleTime": "2s"}),
        json!({"namesProviderIds": false}),
    );
    let _second = Provider::new(driver).start(&world).await?;
    let made = up.provisioned().await?;
    ensure!(made.spec.provider_id != named, "{named:?} was kept");
    ensure!(!is_named(&made), "{:?}", made.annotations());
    let vms = cloud.vms()?;
    let own = vms.iter().find(|vm| vm.name == "up").context("no VM")?;
    ensure!(made.spec.provider_id == Some(own.provider_id()), "{made:?}");
    deleted.gone().await?;
    up.delete().await?;
    up.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}
