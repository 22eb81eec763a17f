//! The identity of VMs: the provider neither writes nor calls the driver for objects that are not its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{self, DELETING, READY};
use capcmi::api::identity;
use capcmi::api::v1alpha1::InfraCluster;
use capcmi::api::{MACHINE_FINALIZER, annotations};
use cmi_driver::Operation;
use cmi_simulated::PlantedVm;
use fake_apiserver::Recorded;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::admission::{bindings, confirm_identities, remove_binding};
use crate::support::by_hand::{event, message, says};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// The provider's contract with Cluster API: no owner, no write.
#[tokio::test(start_paused = true)]
async fn a_machine_without_a_machine_as_controller_is_never_written() -> Result<()> {
    let world = World::new("ownerless").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let first = ByHand::new(&world, "one", "first").create().await?;
    first.provisioned().await?;
    let set = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
        "metadata": {"name": "set", "namespace": world.namespace},
        "spec": {"clusterName": "one", "replicas": 0},
    });
    let set = management_cluster::apply(&world.admin, set).await?;
    let machine = first.create_machine().await?;
    let owners = [
        ("unowned", json!([])),
        ("of-a-set", json!([owner(&set, true)])),
        ("of-a-template", json!([owner(&set, false)])),
        ("not-controlled", json!([owner(&machine, false)])),
    ];
    let mut left_alone = Vec::new();
    for (name, owners) in owners {
        let machine = ByHand::new(&world, "one", name).infra("/metadata/ownerReferences", owners);
        left_alone.push((machine.create_infra().await?, machine));
    }
    // Created after all of them.
    let last = ByHand::new(&world, "one", "last").create().await?;
    last.provisioned().await?;
    for (before, machine) in &left_alone {
        let now = machine.get().await?;
        ensure!(
            now.resource_version() == before.resource_version(),
            "{} was written: {now:?}",
            machine.name
        );
        let writes = writes_about(&world, &machine.name);
        ensure!(writes.is_empty(), "{writes:?}");
        ensure!(cloud.calls_for(&machine.name)?.is_empty(), "{}", machine.name);
    }
    ensure!(
        !writes_about(&world, "last").is_empty(),
        "the writes are not found this way"
    );
    Ok(())
}

/// A restored or replaced object can lack the finalizer. Without it, a deletion would leave the VM behind.
#[tokio::test(start_paused = true)]
async fn a_removed_finalizer_is_restored() -> Result<()> {
    let world = World::new("finalizer-missing").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let before = machine.provisioned().await?;
    machine.patch(json!({"metadata": {"finalizers": []}})).await?;
    let after = machine
        .until("the finalizer", |machine| !machine.finalizers().is_empty())
        .await?;
    ensure!(
        after.finalizers() == before.finalizers(),
        "{:?}",
        after.finalizers()
    );
    ensure!(
        after.annotations() == before.annotations(),
        "{:?}",
        after.annotations()
    );
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// DRV-07, DRV-08, CTL-CR-06: the machine adopts, changes and deletes neither a VM of another cluster nor a
/// VM of another machine object in the same cluster.
#[tokio::test(start_paused = true)]
async fn a_vm_of_another_machine_with_the_same_name_is_not_touched() -> Result<()> {
    let world = World::new("foreign").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let cluster = cluster_id(&world, "one").await?;
    let console = cloud.console()?;
    console.plant(PlantedVm::new("another-cluster", "m", "another-machine"))?;
    console.plant(PlantedVm::new(&cluster, "taken", "another-machine"))?;
    let planted = cloud.holds(2).await?;

    let apart = ByHand::new(&world, "one", "m").create().await?;
    let taken = ByHand::new(&world, "one", "taken").create().await?;
    let id = apart.provisioned().await?.spec.provider_id;
    ensure!(
        planted.iter().all(|vm| Some(vm.provider_id()) != id),
        "adopted {id:?}"
    );
    cloud.holds(3).await?;
    let refused = taken
        .until("a refused machine", |machine| {
            says(machine, READY, "False", "AlreadyExists")
        })
        .await?;
    let reason = refused
        .status
        .as_ref()
        .and_then(|status| status.failure_reason.clone());
    ensure!(reason.as_deref() == Some("AlreadyExists"), "{reason:?}");
    ensure!(refused.spec.provider_id.is_none(), "{:?}", refused.spec);
    ensure!(message(&refused, READY).contains("another machine object"));
    for machine in [&apart, &taken] {
        machine.delete().await?;
        machine.gone().await?;
    }
    ensure!(cloud.vms()? == planted, "{:?}", cloud.vms()?);
    ensure!(cloud.count(Operation::CreateMachine, "taken")? == 1);
    Ok(())
}

/// DRV-08: machines and Clusters with the same names in two namespaces, in one cloud.
#[tokio::test(start_paused = true)]
async fn the_same_names_in_two_namespaces_are_two_vms() -> Result<()> {
    let world = World::new("twin-a").await?;
    let beside = world.beside("twin-b").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let mut ids = Vec::new();
    for world in [&world, &beside] {
        world.cluster("one").await?;
        let machine = ByHand::new(world, "one", "m").create().await?;
        ids.push(machine.provisioned().await?.spec.provider_id.context("no id")?);
    }
    let vms = cloud.holds(2).await?;
    ensure!(ids[0] != ids[1], "{ids:?}");
    ensure!(
        vms[0].cluster() != vms[1].cluster(),
        "one cluster id for two Clusters"
    );
    ensure!(vms[0].name == "m" && vms[1].name == "m", "{vms:?}");
    let (first, second) = (ByHand::new(&world, "one", "m"), ByHand::new(&beside, "one", "m"));
    first.delete().await?;
    first.gone().await?;
    let left = cloud.holds(1).await?;
    ensure!(left[0].provider_id() == ids[1], "the wrong VM was deleted");
    second.provisioned().await?;
    Ok(())
}

/// An identity is bound to namespace and name. `tests/manifests` proves that an admission policy keeps
/// identities out of templates.
#[tokio::test(start_paused = true)]
async fn a_copied_identity_identifies_no_machine() -> Result<()> {
    let world = World::new("copied").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let original = ByHand::new(&world, "one", "m").create().await?;
    let machine = original.provisioned().await?;
    let copied = json!(machine.annotations());
    let vm = cloud.holds(1).await?.remove(0);

    // Without the providerID, it is a machine like any other once the copy is gone.
    let fresh = ByHand::new(&world, "one", "fresh").infra("/metadata/annotations", copied.clone());
    let fresh = fresh.create().await?;
    let blocked = fresh
        .until("a foreign record", |machine| {
            says(machine, READY, "False", "ForeignIdentity")
        })
        .await?;
    let text = message(&blocked, READY);
    ensure!(text.contains(&format!("{}/m", world.namespace)), "{text}");
    ensure!(cloud.calls_for("fresh")?.is_empty());
    fresh
        .patch(json!({"metadata": {"annotations": {annotations::VM_RECORD: null}}}))
        .await?;
    let own = fresh.provisioned().await?;
    ensure!(own.spec.provider_id != machine.spec.provider_id, "it took the VM");
    fresh.delete().await?;
    fresh.gone().await?;
    ensure!(
        cloud.holds(1).await?[0] == vm,
        "the VM of the original was touched"
    );

    // With the providerID too, the object stays until an administrator releases it.
    let full = ByHand::new(&world, "one", "full")
        .infra("/metadata/annotations", copied)
        .infra("/metadata/finalizers", json!(machine.finalizers()))
        .infra("/spec/providerID", json!(machine.spec.provider_id));
    let full = full.create().await?;
    full.until("a foreign record", |machine| {
        says(machine, READY, "False", "ForeignIdentity")
    })
    .await?;
    full.delete().await?;
    let held = full
        .until("a foreign identity", |machine| {
            says(machine, DELETING, "True", "ForeignIdentity")
        })
        .await?;
    ensure!(message(&held, DELETING).contains(annotations::FORCE_DELETE));
    full.patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "true"}}}))
        .await?;
    full.gone().await?;
    ensure!(
        cloud.calls_for("full")?.is_empty(),
        "{:?}",
        cloud.calls_for("full")?
    );
    ensure!(
        cloud.holds(1).await?[0] == vm,
        "the VM of the original was touched"
    );
    original.provisioned().await?;
    Ok(())
}

/// An admission policy guards the finalizer by annotations, which stay until the VM is deleted. A tenant who
/// could remove the finalizer would leave the VM behind.
#[tokio::test(start_paused = true)]
async fn the_finalizer_stays_guarded_until_the_vm_is_deleted() -> Result<()> {
    let world = World::new("loser").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    cloud.fail(json!([{"operation": "DeleteMachine", "code": "Unavailable", "retryAfterMs": 200}]))?;
    machine.delete().await?;
    let held = machine
        .until("a deletion that runs", |machine| {
            says(machine, DELETING, "True", "Unavailable")
        })
        .await?;
    ensure!(identity::vm_state(&held).may_exist(), "{:?}", held.annotations());
    ensure!(
        held.finalizers().iter().any(|held| held == MACHINE_FINALIZER),
        "{:?}",
        held.finalizers()
    );
    cloud.fail(json!([]))?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// A tenant can forge annotations while the policies are not in force. The provider does not act on any
/// before an administrator has confirmed them.
#[tokio::test(start_paused = true)]
async fn annotations_forged_without_the_policies_are_not_acted_on() -> Result<()> {
    let world = World::new("unguarded").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    cloud.holds(1).await?;

    let policy = "capcmi-reserved-annotations";
    remove_binding(&world, policy).await?;
    // On the paused clock, the last check of the policies would otherwise be as recent as the deletion.
    tokio::time::sleep(Duration::from_millis(1)).await;
    machine
        .patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "true"}}}))
        .await?;
    machine.api().delete("m", &DeleteParams::default()).await?;
    let held = machine
        .until("a deletion that trusts no identity", |machine| {
            says(machine, DELETING, "True", "IdentityNotGuarded")
        })
        .await?;
    let said = message(&held, DELETING);
    ensure!(said.contains("kubectl annotate"), "{said}");
    ensure!(
        bindings(&world).get_opt(policy).await?.is_some(),
        "the binding was not put back"
    );
    let metrics = provider.metrics();
    ensure!(
        metrics.contains("capcmi_admission_policies_in_force 0"),
        "{metrics}"
    );
    cloud.holds(1).await?;
    ensure!(
        cloud.count(Operation::DeleteMachine, "m")? == 0,
        "the identity was trusted"
    );

    machine
        .patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: null}}}))
        .await?;
    confirm_identities(&world, policy).await?;
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    ensure!(
        cloud.count(Operation::DeleteMachine, "m")? > 0,
        "the VM went without a deletion"
    );
    Ok(())
}

/// The provider makes no call for a providerID that it did not write, not even for a deletion.
#[tokio::test(start_paused = true)]
async fn a_hand_written_provider_id_causes_no_call() -> Result<()> {
    let world = World::new("hand-written").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let cluster = cluster_id(&world, "one").await?;
    let id = cloud
        .console()?
        .plant(PlantedVm::new(&cluster, "m", "another-machine"))?;
    let machine = ByHand::new(&world, "one", "m")
        .infra("/spec/providerID", json!(id))
        .create()
        .await?;
    let reported = machine
        .until("a foreign providerID", |machine| {
            says(machine, READY, "False", "ForeignProviderID")
        })
        .await?;
    ensure!(
        message(&reported, READY).contains(&id),
        "{}",
        message(&reported, READY)
    );
    let warned = event(&world, "m", "ForeignProviderID").await?;
    ensure!(warned.type_.as_deref() == Some("Warning"), "{warned:?}");
    machine.delete().await?;
    machine.gone().await?;
    ensure!(cloud.calls_for("m")?.is_empty(), "{:?}", cloud.calls_for("m")?);
    cloud.holds(1).await?;
    Ok(())
}

/// CTL-DE-14: a driver that never answers blocks the deletion until an administrator forces it. A Warning
/// names the VM that may be left.
#[tokio::test(start_paused = true)]
async fn force_delete_releases_a_stuck_machine_with_a_warning() -> Result<()> {
    let world = World::new("forced").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let id = machine.provisioned().await?.spec.provider_id.context("no id")?;
    cloud.fail(json!([{"code": "Unavailable", "retryAfterMs": 200}]))?;
    machine.delete().await?;
    machine
        .until("several failures", |machine| {
            let last = machine
                .status
                .as_ref()
                .and_then(|status| status.last_operation.as_ref());
            says(machine, DELETING, "True", "Unavailable") && last.is_some_and(|last| last.attempts >= 2)
        })
        .await?;
    machine
        .patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "true"}}}))
        .await?;
    machine.gone().await?;
    let warned = event(&world, "m", "ForceDeleted").await?;
    ensure!(warned.type_.as_deref() == Some("Warning"), "{warned:?}");
    let note = warned.note.unwrap_or_default();
    ensure!(note.contains(&id), "{note}");
    cloud.holds(1).await?;
    Ok(())
}

fn owner(object: &DynamicObject, controller: bool) -> Value {
    let types = object.types.clone().unwrap_or_default();
    json!({
        "apiVersion": types.api_version, "kind": types.kind, "name": object.name_any(), "uid": object.uid(),
        "controller": controller,
    })
}

/// The writes of the provider to the InfraMachine of this name, and to its status.
fn writes_about(world: &World, name: &str) -> Vec<Recorded> {
    let of_machine = format!("/inframachines/{name}");
    let mut writes = world.management.writes_of("provider");
    writes.retain(|write| {
        let path = write.call.path.trim_end_matches("/status");
        path.ends_with(&of_machine)
    });
    writes
}

/// The Cluster's id at the driver.
async fn cluster_id(world: &World, name: &str) -> Result<String> {
    let api: Api<InfraCluster> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(DEADLINE, "the cluster id", async || {
        let cluster = api.get(name).await?;
        let conditions = cluster.status.clone().unwrap_or_default().conditions;
        ensure!(conditions::is_true(&conditions, READY), "{conditions:?}");
        let id = cluster.annotations().get(annotations::CLUSTER_ID);
        id.cloned().context("no id")
    })
    .await
}
