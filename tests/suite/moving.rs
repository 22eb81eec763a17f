//! `clusterctl move` to another management cluster: objects get new UIDs and lose their status, and each VM
//! keeps its machine.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use capcmi::api::ADDRESS_CLAIM_FINALIZER;
use capcmi::api::annotations;
use capcmi::api::conditions::{NOT_READY_TAINT_REMOVED, READY};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::{Phase, Vm};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use management_cluster::eventually;
use management_cluster::stand_in::StandInController;
use serde_json::json;

use crate::adoption::{adopting, plant, user_data};
use crate::remediation::{machine, remediation, request};
use crate::support::by_hand::{says, small};
use crate::support::fleet::copy_bootstrap_secret;
use crate::support::ipam::{addresses, claims};
use crate::support::pools::{create_pool, pool};
use crate::support::{ByHand, Cloud, DEADLINE, Fleet, Provider, World};

/// DRV-07, DRV-08, INI-08: the move includes identity and cluster id. The provider at the target finds the
/// VMs and creates none. A later machine belongs to the same cluster. INI-05: the move also includes the
/// record that a Node lost its taint, and the target shows it.
///
/// A second Cluster has an adopted VM and a VM that is being updated. clusterctl waits for both.
#[tokio::test]
#[allow(clippy::too_many_lines)] // one story
async fn clusterctl_moves_a_cluster_and_every_vm_keeps_its_machine() -> Result<()> {
    let source = World::new("move").await?;
    let target = source.move_target().await?;
    let cloud = Cloud::new(&source);
    // A call is held, and has to end by its release alone.
    let patient = json!({"timeouts": {"updateMachine": "1h"}});
    let provider = Provider::new(cloud.drivers_with(patient, json!({})));
    let _at_source = provider.start(&source).await?;
    let _at_target = provider.clone().named("target").start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = source.kubelets(&cloud);
    source.cluster("md").await?;
    let fleet = Fleet::of(&source, "md");
    let spec = json!({"driver": "simulated", "providerSpec": small(), "shutdownTimeoutSeconds": 0,
        "notReadyTaint": {}, "addressesFromPools": [pool("a")]});
    // The pool moves, too.
    target.management.start_ipam_in_cluster().await?;
    create_pool(&source, "a", &["10.1.0.10-10.1.0.12"]).await?;
    fleet.template_with("md-1", spec).await?;
    fleet.deployment("md-1", 2).await?;
    fleet.running(2).await?;
    let before = by_name(nodes_are_looked_at(&fleet).await?);
    let vms = cloud.holds(2).await?;
    let adopted = no_move_before_an_adoption(&source, &target, &cloud).await?;
    let remediated = machine(&source, &vms[0].name).await?;
    remediate(&source, &remediated).await?;

    moves_after_the_call_of_an_update(&source, &target, &cloud).await?;

    for (name, old) in &before {
        let claim = claims(&target).get(&format!("{name}-0")).await?;
        ensure!(
            claim
                .finalizers()
                .iter()
                .any(|name| name == ADDRESS_CLAIM_FINALIZER),
            "{claim:?}"
        );
        let owner = claim.owner_references().first().map(|owner| owner.name.as_str());
        ensure!(
            owner == Some(name.as_str()) && claim.owner_references()[0].uid != old.uid().unwrap_or_default(),
            "{claim:?}"
        );
    }
    // The IPAM provider may have to remove its finalizer of the pool.
    eventually(DEADLINE, "the end of all objects at the source", async || {
        let left = source.cluster_api_objects()?;
        ensure!(left.is_empty(), "left at the source: {left:?}");
        Ok(())
    })
    .await?;
    let moved = Fleet::of(&target, "md");
    moved.running(2).await?;
    let after = by_name(nodes_are_looked_at(&moved).await?);
    ensure!(
        after.keys().eq(before.keys()),
        "{:?} became {:?}",
        before.keys(),
        after.keys()
    );
    for (name, old) in &before {
        let new = &after[name];
        ensure!(new.uid() != old.uid(), "not moved at all");
        ensure!(new.spec == old.spec, "{:?} became {:?}", old.spec, new.spec);
        for key in [annotations::VM_RECORD, annotations::PROGRESS] {
            let (old, new) = (old.annotations().get(key), new.annotations().get(key));
            ensure!(old.is_some() && old == new, "{key}: {old:?} became {new:?}");
        }
        ensure!(says(new, READY, "True", "Ready"), "{:?}", new.status);
        let (old, new) = (
            old.status.clone().unwrap_or_default(),
            new.status.clone().unwrap_or_default(),
        );
        ensure!(
            old.addresses == new.addresses && old.node_name == new.node_name,
            "{new:?}"
        );
        ensure!(old.failure_domain == new.failure_domain, "{new:?}");
        ensure!(
            cloud.count(Operation::CreateMachine, name)? == 1,
            "{name} was made again"
        );
        ensure!(
            cloud.count(Operation::DeleteMachine, name)? == 0,
            "{name} was deleted"
        );
    }
    let of_fleet = |vm: &Vm| before.contains_key(&vm.name);
    let mut now = cloud.vms()?;
    now.retain(of_fleet);
    ensure!(now == vms, "VMs were touched: {now:?}");
    keeps_its_adopted_vm(&target, &cloud, &adopted).await?;
    keeps_its_remediation(&target, &remediated).await?;

    copy_bootstrap_secret(&source, &target, "boot").await?;
    moved.scale(3).await?;
    moved.running(3).await?;
    let clusters: Vec<_> = cloud
        .holds(3)
        .await?
        .iter()
        .map(|vm| vm.cluster().to_owned())
        .collect();
    ensure!(clusters.iter().all(|id| *id == vms[0].cluster()), "{clusters:?}");
    target.kubectl(&["delete", "machinedeployment", "md", "--wait=false"])?;
    moved.gone().await?;
    cloud.holds(0).await?;
    eventually(DEADLINE, "released addresses", async || {
        let left = addresses(&target).list(&ListParams::default()).await?.items;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

/// A template for remediations, and a remediation with its record.
async fn remediate(world: &World, machine: &DynamicObject) -> Result<()> {
    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediationTemplate",
        "metadata": {"name": "restart", "namespace": world.namespace},
        "spec": {"template": {"spec": {}}},
    });
    let mut remediation = request(world, machine, &json!({}));
    remediation["metadata"]["annotations"] = json!({annotations::RESTARTS: "1"});
    for object in [template, remediation] {
        management_cluster::apply(&world.admin, object).await?;
    }
    Ok(())
}

/// The template was moved, and the remediation has its record and the moved Machine.
async fn keeps_its_remediation(world: &World, before: &DynamicObject) -> Result<()> {
    let moved = machine(world, &before.name_any()).await?;
    let found = remediation(world, &before.name_any()).await?;
    let found = found.context("no remediation")?;
    ensure!(
        found.annotations().contains_key(annotations::RESTARTS),
        "{found:?}"
    );
    let owners = found.owner_references();
    ensure!(
        moved.uid() != before.uid()
            && owners
                .iter()
                .any(|owner| Some(&owner.uid) == moved.uid().as_ref()),
        "{owners:?}"
    );
    world.kubectl(&["get", "inframachineremediationtemplate", "restart"])?;
    Ok(())
}

/// clusterctl moves no Machine without a Node, and a Machine has none before the adoption.
async fn no_move_before_an_adoption(source: &World, target: &World, cloud: &Cloud) -> Result<InfraMachine> {
    source.cluster("one").await?;
    let name = other(source, "adopted");
    let id = plant(cloud, &name, &user_data(source).await?)?;
    let away = json!([{"operation": "GetMachineStatus", "machine": name, "code": "Unavailable"}]);
    cloud.fail(away)?;
    let machine = adopting(source, &name, &id).create().await?;
    machine
        .until("a driver that is away", |machine| {
            says(machine, READY, "False", "Unavailable")
        })
        .await?;
    let refused = source.move_to(target).err().context("it was moved half done")?;
    ensure!(
        format!("{refused:#}").contains(&format!("/{name} is still provisioning")),
        "{refused:#}"
    );
    cloud.fail(json!([]))?;
    machine.provisioned().await
}

/// `clusterctl move` does not cut an update in two: it waits for the call, and the target finds it done.
async fn moves_after_the_call_of_an_update(source: &World, target: &World, cloud: &Cloud) -> Result<()> {
    let name = other(source, "updated");
    let machine = ByHand::new(source, "one", &name).create().await?;
    machine.provisioned().await?;
    eventually(DEADLINE, "the Nodes of the Machines", async || {
        let names = source.kubectl(&["get", "machine", "-o", "jsonpath={.items[*].status.nodeRef.name}"])?;
        ensure!(names.split_whitespace().count() == 4, "{names}");
        Ok(())
    })
    .await?;
    cloud.fail(json!([{"operation": "UpdateMachine", "machine": name, "hang": "held"}]))?;
    machine.respecify("labels", json!({"tier": "gold"})).await?;
    machine
        .until("a machine that may not be moved", |machine| {
            let value = machine.annotations().get(annotations::BLOCK_MOVE);
            value.map(String::as_str) == Some(annotations::BLOCK_MOVE_VALUE)
        })
        .await?;
    let is_in_flight = || {
        let calls = cloud.calls()?.into_iter();
        let phases: Vec<_> = calls
            .filter(|call| call.operation == Operation::UpdateMachine)
            .map(|call| call.phase)
            .collect();
        anyhow::Ok(phases == [Phase::Started])
    };
    eventually(DEADLINE, "the call", async || {
        ensure!(is_in_flight()?, "it has not begun");
        Ok(())
    })
    .await?;

    let mut moving = source.begin_move_to(target)?;
    let log = moving.log().to_owned();
    let is_blocked = async || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Move blocked by"));
    moving.wait_until(DEADLINE, is_blocked).await?;
    ensure!(is_in_flight()?, "clusterctl waited for something else");
    let objects = target.cluster_api_objects()?;
    ensure!(objects.is_empty(), "moved in the middle of the call: {objects:?}");

    cloud.fail(json!([]))?;
    let status = eventually(DEADLINE, "the end of the move", async || {
        moving.status()?.context("clusterctl still waits")
    })
    .await?;
    ensure!(status.success(), "clusterctl ended with {status}");
    let moved = ByHand::new(target, "one", &name);
    moved.provisioned().await?;
    let vms = cloud.vms()?;
    let vm = vms.iter().find(|vm| vm.name == name).context("no VM")?;
    ensure!(vm.labels.get("tier").is_some_and(|tier| tier == "gold"), "{vm:?}");
    ensure!(
        cloud.count(Operation::UpdateMachine, &name)? == 1,
        "it was updated again"
    );
    ensure!(
        cloud.count(Operation::CreateMachine, &name)? == 1,
        "it was made again"
    );
    moved.delete().await?;
    moved.gone().await
}

/// After the move, the VM still belongs to the machine, and no call has changed it before its deletion.
async fn keeps_its_adopted_vm(target: &World, cloud: &Cloud, before: &InfraMachine) -> Result<()> {
    let machine = ByHand::new(target, "one", before.name_any());
    let moved = machine.provisioned().await?;
    for key in [annotations::VM_RECORD, annotations::ADOPT] {
        let (old, new) = (before.annotations().get(key), moved.annotations().get(key));
        ensure!(old.is_some() && old == new, "{key}: {old:?} became {new:?}");
    }
    let mut calls = cloud.calls_for(&machine.name)?;
    calls.retain(|call| call.operation != Operation::GetMachineStatus);
    ensure!(calls.is_empty(), "{calls:?}");
    let vms = cloud.vms()?;
    let vm = vms.iter().find(|vm| vm.name == machine.name).context("no VM")?;
    ensure!(moved.spec.provider_id == Some(vm.provider_id()), "{moved:?}");
    machine.delete().await?;
    machine.gone().await
}

/// The name of a machine of the second Cluster. Other cases have Nodes in the same workload cluster.
fn other(world: &World, name: &str) -> String {
    format!("{}-{name}", world.namespace)
}

/// Waits until the status of every machine reports that its Node lacks the not-ready taint.
async fn nodes_are_looked_at(fleet: &Fleet<'_>) -> Result<Vec<InfraMachine>> {
    eventually(DEADLINE, "Nodes that were looked at", async || {
        let machines = fleet.infra_machines().await?;
        for machine in &machines {
            ensure!(
                says(machine, NOT_READY_TAINT_REMOVED, "True", "NotReadyTaintRemoved"),
                "{:?}",
                machine.status
            );
        }
        Ok(machines)
    })
    .await
}

fn by_name(machines: Vec<InfraMachine>) -> BTreeMap<String, InfraMachine> {
    machines
        .into_iter()
        .map(|machine| (machine.name_any(), machine))
        .collect()
}
