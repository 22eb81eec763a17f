//! Pauses: the provider leaves a paused object alone in every state, and catches up when the pause ends.

use anyhow::{Result, bail, ensure};
use capcmi::api::conditions::{self, PAUSED};
use capcmi::api::v1alpha1::{InfraCluster, InfraMachineTemplate};
use capcmi::api::{annotations, labels};
use cmi_driver::Operation;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{message, says};
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

const BY_CLUSTER: &str = "Cluster spec.paused is set to true";
const BY_ANNOTATION: &str = "InfraMachine has the cluster.x-k8s.io/paused annotation";
const END: &str = "; remove the pause to resume";

/// DRV-09: a machine that is paused before its creation gets neither record nor VM.
#[tokio::test(start_paused = true)]
async fn a_machine_paused_before_its_creation_is_created_after_the_pause() -> Result<()> {
    let world = World::new("pause-before").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    world.cluster("two").await?;
    let machine =
        ByHand::new(&world, "one", "m").infra("/metadata/annotations", json!({annotations::PAUSED: ""}));
    let machine = machine.create().await?;
    paused(&machine, BY_ANNOTATION).await?;
    pause_cluster(&world, "one", true).await?;
    paused(&machine, &format!("{BY_CLUSTER}; {BY_ANNOTATION}")).await?;
    pause_machine(&machine, false).await?;
    let held = paused(&machine, BY_CLUSTER).await?;
    ensure!(held.finalizers().is_empty(), "the record was written");
    ensure!(
        !held.annotations().contains_key(annotations::VM_RECORD),
        "the record was written"
    );

    // One of another Cluster, made later.
    let other = ByHand::new(&world, "two", "other").create().await?;
    other.provisioned().await?;
    let calls = cloud.calls_for("m")?;
    ensure!(calls.is_empty(), "{calls:?}");
    pause_cluster(&world, "one", false).await?;
    let provisioned = machine.provisioned().await?;
    ensure!(says(&provisioned, PAUSED, "False", "NotPaused"));
    ensure!(message(&provisioned, PAUSED).is_empty());
    cloud.holds(2).await?;
    Ok(())
}

/// UPD-01, CTL-LM-00: a changed spec and a vanished VM are handled when the pause ends. Until then the driver
/// is not called for the machine.
#[tokio::test(start_paused = true)]
async fn a_paused_provisioned_machine_is_left_alone() -> Result<()> {
    let world = World::new("pause-provisioned").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    world.cluster("two").await?;
    let mut machines = Vec::new();
    for (cluster, name) in [
        ("one", "changed-a"),
        ("two", "changed-b"),
        ("one", "lost-a"),
        ("two", "lost-b"),
    ] {
        machines.push(ByHand::new(&world, cluster, name).create().await?);
    }
    for machine in &machines {
        machine.provisioned().await?;
    }
    let [changed_a, changed_b, lost_a, lost_b] = machines.as_slice() else {
        bail!("four machines were made");
    };
    pause_cluster(&world, "one", true).await?;
    for machine in [changed_b, lost_b] {
        pause_machine(machine, true).await?;
    }
    for (machine, by) in [
        (changed_a, BY_CLUSTER),
        (lost_a, BY_CLUSTER),
        (changed_b, BY_ANNOTATION),
        (lost_b, BY_ANNOTATION),
    ] {
        let held = paused(machine, by).await?;
        ensure!(
            says(&held, conditions::READY, "True", "Ready"),
            "Ready was touched"
        );
    }
    let calls = || -> Result<Vec<usize>> {
        machines
            .iter()
            .map(|machine| Ok(cloud.calls_for(&machine.name)?.len()))
            .collect()
    };
    let before = calls()?;
    for vm in cloud.holds(4).await? {
        if vm.name.starts_with("lost") {
            cloud.console()?.vanish(vm.id)?;
        }
    }
    for machine in [changed_a, changed_b] {
        machine.respecify("labels", json!({"tier": "gold"})).await?;
    }
    // Another, made later: by then the lists lacked the lost ones several times.
    let later = ByHand::new(&world, "two", "later").create().await?;
    later.provisioned().await?;
    lists(&cloud, 4).await?;
    for machine in &machines {
        let held = machine.get().await?;
        ensure!(says(&held, conditions::READY, "True", "Ready"), "{held:?}");
    }
    let after = calls()?;
    ensure!(after == before, "{before:?} calls became {after:?}");

    pause_cluster(&world, "one", false).await?;
    for machine in [changed_b, lost_b] {
        pause_machine(machine, false).await?;
    }
    for machine in [changed_a, changed_b] {
        let name = &machine.name;
        eventually(DEADLINE, "the update that was put off", async || {
            let updates = cloud.count(Operation::UpdateMachine, name)?;
            ensure!(updates == 1, "{updates} updates of {name}");
            Ok(())
        })
        .await?;
        machine
            .until("the end of the pause", |machine| {
                says(machine, PAUSED, "False", "NotPaused")
            })
            .await?;
    }
    for machine in [lost_a, lost_b] {
        machine
            .until("a vanished VM", |machine| {
                says(machine, conditions::READY, "False", "VirtualMachineVanished")
            })
            .await?;
        let creates = cloud.count(Operation::CreateMachine, &machine.name)?;
        ensure!(creates == 1, "made anew");
    }
    Ok(())
}

/// DRV-07: a pause holds a deletion, by annotation from its start and by Cluster in the middle.
#[tokio::test(start_paused = true)]
async fn a_paused_deletion_continues_after_the_pause() -> Result<()> {
    let world = World::new("pause-deletion").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    world.cluster("two").await?;
    let from_start = ByHand::new(&world, "two", "start").create().await?;
    let in_middle = ByHand::new(&world, "one", "middle").create().await?;
    let never = ByHand::new(&world, "two", "never").create().await?;
    for machine in [&from_start, &in_middle, &never] {
        machine.provisioned().await?;
    }
    pause_machine(&from_start, true).await?;
    paused(&from_start, BY_ANNOTATION).await?;
    cloud.fail(json!([{"operation": "DeleteMachine", "code": "Unavailable", "retryAfterMs": 500}]))?;
    // Core would not delete the InfraMachine of a Cluster that is paused, so this one is ahead.
    in_middle.delete().await?;
    in_middle
        .until("a deletion that fails", |machine| {
            says(machine, conditions::DELETING, "True", "Unavailable")
        })
        .await?;
    pause_cluster(&world, "one", true).await?;
    paused(&in_middle, BY_CLUSTER).await?;
    let tries = cloud.count(Operation::DeleteMachine, "middle")?;
    from_start.delete().await?;
    from_start
        .until("a deletion that is paused", |machine| {
            machine.metadata.deletion_timestamp.is_some() && says(machine, PAUSED, "True", "Paused")
        })
        .await?;
    // A machine that is not paused fails, and then succeeds, before the two may go on.
    never.delete().await?;
    never
        .until("several failures", |machine| {
            last_attempts(machine) >= 3 && says(machine, conditions::DELETING, "True", "Unavailable")
        })
        .await?;
    cloud.fail(json!([]))?;
    never.gone().await?;
    ensure!(cloud.count(Operation::DeleteMachine, "start")? == 0);
    ensure!(cloud.count(Operation::DeleteMachine, "middle")? == tries);
    let left: Vec<_> = cloud.vms()?.into_iter().map(|vm| vm.name).collect();
    ensure!(left == ["middle", "start"], "{left:?}");

    pause_machine(&from_start, false).await?;
    pause_cluster(&world, "one", false).await?;
    from_start.gone().await?;
    in_middle.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// The infrastructure cluster contract: paused by annotation, and never written when
/// it is managed externally.
#[tokio::test(start_paused = true)]
async fn an_infra_cluster_can_be_paused_or_externally_managed() -> Result<()> {
    let world = World::new("pause-cluster").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    for (name, annotation) in [
        ("paused", annotations::PAUSED),
        ("foreign", annotations::MANAGED_BY),
    ] {
        world
            .apply(&format!(
                "apiVersion: infrastructure.capcmi.io/v1alpha1\nkind: InfraCluster\nmetadata:\n  name: \
                    {name}\n  namespace: $NS\n  annotations: {{{annotation}: \"\"}}\nspec: \
                    {{controlPlaneEndpoint: {{host: 127.0.0.1, port: 6443}}}}\n"
            ))
            .await?;
        let infrastructure =
            json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": name});
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": name, "namespace": world.namespace},
            "spec": {"infrastructureRef": infrastructure},
        });
        management_cluster::apply(&world.admin, cluster).await?;
    }
    let api: Api<InfraCluster> = Api::namespaced(world.admin.clone(), &world.namespace);
    let conditions_of =
        async |name: &str| anyhow::Ok(api.get(name).await?.status.unwrap_or_default().conditions);
    eventually(DEADLINE, "a paused InfraCluster", async || {
        let all = conditions_of("paused").await?;
        let held = conditions::get(&all, PAUSED);
        let message = held.map(|held| (held.status.as_str(), held.message.as_str()));
        let expected = format!("InfraCluster has the cluster.x-k8s.io/paused annotation{END}");
        ensure!(message == Some(("True", expected.as_str())), "{all:?}");
        Ok(())
    })
    .await?;
    let held = api.get("paused").await?;
    ensure!(held.status.unwrap_or_default().initialization.is_none());
    // Core is through with the foreign one: it has its owner.
    eventually(DEADLINE, "the owner of the foreign InfraCluster", async || {
        ensure!(!api.get("foreign").await?.owner_references().is_empty(), "none");
        Ok(())
    })
    .await?;
    let unpause = Patch::Merge(json!({"metadata": {"annotations": {annotations::PAUSED: null}}}));
    api.patch("paused", &PatchParams::default(), &unpause).await?;
    eventually(DEADLINE, "an InfraCluster that is not paused", async || {
        let all = conditions_of("paused").await?;
        ensure!(conditions::is_true(&all, conditions::READY), "{all:?}");
        ensure!(!conditions::is_true(&all, PAUSED), "{all:?}");
        Ok(())
    })
    .await?;
    let foreign = api.get("foreign").await?;
    let writes = world.management.writes_of("provider");
    let to_foreign = writes
        .iter()
        .find(|write| write.call.path.contains("/infraclusters/foreign"));
    ensure!(to_foreign.is_none(), "{to_foreign:?}");
    ensure!(foreign.status.is_none(), "{:?}", foreign.status);

    // A machine of it waits for that manager, and is made when it is done.
    let bootstrap = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": world.namespace},
        "stringData": {"value": "#cloud-config", "format": "cloud-config"},
    });
    management_cluster::apply(&world.admin, bootstrap).await?;
    let machine = ByHand::new(&world, "foreign", "m").create().await?;
    machine
        .until("a machine that waits", |machine| {
            says(
                machine,
                conditions::READY,
                "False",
                "WaitingForClusterInfrastructureReady",
            )
        })
        .await?;
    let done = Patch::Merge(json!({"status": {"initialization": {"provisioned": true}}}));
    api.patch_status("foreign", &PatchParams::default(), &done)
        .await?;
    machine.provisioned().await?;
    Ok(())
}

/// A template is paused with the Cluster that it is for: by then another management cluster may have it.
#[tokio::test(start_paused = true)]
async fn a_template_of_a_paused_cluster_is_paused_and_not_described() -> Result<()> {
    let world = World::new("pause-template").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    infra_cluster_paused(&world, "one", false).await?;
    pause_cluster(&world, "one", true).await?;
    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
        "metadata": {"name": "t", "namespace": world.namespace, "labels": {labels::CLUSTER_NAME: "one"}},
        "spec": {"template": {"spec": {"providerSpec": {"vmPool": "default", "size": "small"}}}},
    });
    infra_cluster_paused(&world, "one", true).await?;
    management_cluster::apply(&world.admin, template).await?;
    let templates: Api<InfraMachineTemplate> = Api::namespaced(world.admin.clone(), &world.namespace);
    let becomes = async |state: &str, by: &str| {
        eventually(DEADLINE, &format!("Paused={state} of the template"), async || {
            let status = templates.get("t").await?.status.unwrap_or_default();
            let held = conditions::get(&status.conditions, PAUSED);
            let held = held.map(|held| (held.status.as_str(), held.message.as_str()));
            ensure!(held == Some((state, by)), "{:?}", status.conditions);
            Ok(status)
        })
        .await
    };
    let held = becomes("True", &format!("{BY_CLUSTER}{END}")).await?;
    ensure!(held.capacity.is_empty(), "{held:?}");
    let asked = || {
        let calls = cloud.calls()?;
        anyhow::Ok(
            calls
                .iter()
                .any(|call| call.operation == Operation::DescribeClass),
        )
    };
    ensure!(!asked()?, "the driver was asked");
    pause_cluster(&world, "one", false).await?;
    let status = becomes("False", "").await?;
    ensure!(!status.capacity.is_empty() && asked()?, "{status:?}");
    Ok(())
}

async fn paused(machine: &ByHand, by: &str) -> Result<capcmi::api::v1alpha1::InfraMachine> {
    machine
        .until("a paused machine", |machine| {
            says(machine, PAUSED, "True", "Paused") && message(machine, PAUSED) == format!("{by}{END}")
        })
        .await
}

async fn pause_cluster(world: &World, name: &str, paused: bool) -> Result<()> {
    let clusters = objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
    clusters.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the InfraCluster says whether it is paused; it does so once Cluster API has made the Cluster
/// its owner, which Cluster API does not do for a Cluster that is paused.
async fn infra_cluster_paused(world: &World, name: &str, paused: bool) -> Result<()> {
    let api: Api<InfraCluster> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(
        DEADLINE,
        &format!("Paused={paused} of the InfraCluster"),
        async || {
            let all = api.get(name).await?.status.unwrap_or_default().conditions;
            let said = conditions::get(&all, PAUSED).map(|condition| condition.status.as_str());
            ensure!(said == Some(if paused { "True" } else { "False" }), "{all:?}");
            Ok(())
        },
    )
    .await
}

async fn pause_machine(machine: &ByHand, paused: bool) -> Result<()> {
    let value = if paused { json!("") } else { Value::Null };
    machine
        .patch(json!({"metadata": {"annotations": {annotations::PAUSED: value}}}))
        .await?;
    Ok(())
}

/// Waits for so many more lists of VMs.
async fn lists(cloud: &Cloud, more: usize) -> Result<()> {
    let seen = || {
        let all = cloud.calls_for("")?;
        anyhow::Ok(
            all.iter()
                .filter(|call| call.operation == Operation::ListMachines)
                .count(),
        )
    };
    let before = seen()?;
    eventually(DEADLINE, "more lists of VMs", async || {
        let now = seen()?;
        ensure!(now >= before + more, "{now} after {before}");
        Ok(())
    })
    .await
}

fn last_attempts(machine: &capcmi::api::v1alpha1::InfraMachine) -> i32 {
    let last = machine
        .status
        .as_ref()
        .and_then(|status| status.last_operation.as_ref());
    last.map_or(0, |last| last.attempts)
}
