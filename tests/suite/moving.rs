//! `clusterctl move` to another management cluster: objects get new UIDs and lose their status, and each VM
//! keeps its machine.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use capcmi::api::ADDRESS_CLAIM_FINALIZER;
use capcmi::api::annotations;
use capcmi::api::conditions::{NOT_READY_TAINT_REMOVED, READY};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use kube::ResourceExt;
use kube::api::ListParams;
use management_cluster::eventually;
use management_cluster::stand_in::StandInController;
use serde_json::json;

use crate::support::by_hand::{says, small};
use crate::support::fleet::copy_bootstrap_secret;
use crate::support::ipam::{Ipam, addresses, claims, pool};
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

/// DRV-07, DRV-08, INI-08: the move includes identity and cluster id. The provider at the target finds the
/// VMs and creates none. A later machine belongs to the same cluster. INI-05: the move also includes the
/// record that a Node lost its taint, and the target shows it.
#[tokio::test]
async fn clusterctl_moves_a_cluster_and_every_vm_keeps_its_machine() -> Result<()> {
    let source = World::new("move").await?;
    let target = source.move_target().await?;
    let cloud = Cloud::new(&source);
    let provider = Provider::new(cloud.drivers(json!({})));
    let _at_source = provider.start(&source).await?;
    let _at_target = provider.clone().named("target").start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = source.kubelets(&cloud);
    source.cluster("md").await?;
    let fleet = Fleet::of(&source, "md");
    let spec = json!({"driver": "simulated", "providerSpec": small(), "shutdownTimeoutSeconds": 0,
        "notReadyTaint": {}, "addressesFromPools": [pool("a")]});
    let ipams = [&source, &target].map(Ipam::start);
    for ipam in &ipams {
        ipam.add("a", &["10.1.0.10", "10.1.0.11", "10.1.0.12"]);
    }
    fleet.template_with("md-1", spec).await?;
    fleet.deployment("md-1", 2).await?;
    fleet.running(2).await?;
    let before = by_name(nodes_are_looked_at(&fleet).await?);
    let vms = cloud.holds(2).await?;

    source.move_to(&target)?;

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
    let left = source.cluster_api_objects()?;
    ensure!(left.is_empty(), "left at the source: {left:?}");
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
    ensure!(cloud.vms()? == vms, "VMs were touched");

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
