//! Explanations for operators: the object that a machine waits for, and its owners.

use anyhow::{Result, ensure};
use capcmi::api::conditions::{self, reason};
use capcmi::api::wall_clock;
use capcmi_cli::describe;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{message, says};
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// The page of `capcmi describe machine`, without asking a driver.
async fn page(world: &World, machine: &str) -> Result<String> {
    let gathered = describe::gather_machine(&world.admin, None, &world.namespace, machine).await?;
    Ok(describe::machine_page(&gathered, wall_clock::now()))
}

#[tokio::test(start_paused = true)]
async fn a_machine_names_the_infra_cluster_it_waits_for_and_why() -> Result<()> {
    let world = World::new("explain-cluster").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster_with("c", json!({"driver": "nowhere"})).await?;
    let machine = ByHand::new(&world, "c", "m").create().await?;
    let waiting = "waiting for InfraCluster `c` to be provisioned, which reports DriverNotConfigured";
    machine
        .until("a machine that names what it waits for", |machine| {
            message(machine, conditions::READY).starts_with(waiting)
        })
        .await?;
    let events: Api<Event> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(DEADLINE, "an event of the InfraCluster", async || {
        let events = events.list(&ListParams::default()).await?.items;
        let is_it = |event: &Event| {
            let regarding = event.regarding.clone().unwrap_or_default();
            event.reason.as_deref() == Some("DriverNotConfigured")
                && regarding.kind.as_deref() == Some("InfraCluster")
                && regarding.name.as_deref() == Some("c")
        };
        ensure!(events.iter().any(is_it), "{events:?}");
        Ok(())
    })
    .await?;
    let page = page(&world, "m").await?;
    ensure!(
        page.contains("Ready is False, DriverNotConfigured: no driver `nowhere`"),
        "{page}"
    );

    let clusters = objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraCluster");
    let corrected = Patch::Merge(json!({"spec": {"driver": "simulated"}}));
    clusters.patch("c", &PatchParams::default(), &corrected).await?;
    machine.provisioned().await?;
    Ok(())
}

/// The reference to the bootstrap config has no version: discovery gives it.
#[tokio::test(start_paused = true)]
async fn the_page_of_a_machine_shows_the_config_of_its_bootstrap_data() -> Result<()> {
    let world = World::new("explain-bootstrap").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let (group, kind) = ("bootstrap.cluster.x-k8s.io", "KubeadmConfig");
    let reference = json!({"configRef": {"apiGroup": group, "kind": kind, "name": "m-config"}});
    let machine = ByHand::new(&world, "c", "m")
        .machine("/spec/bootstrap", reference)
        .create()
        .await?;
    machine
        .until("a machine that waits for bootstrap data", |machine| {
            says(
                machine,
                conditions::READY,
                "False",
                reason::WAITING_FOR_BOOTSTRAP_DATA,
            )
        })
        .await?;
    let missing = page(&world, "m").await?;
    ensure!(
        missing.contains("m-config; cannot be read: does not exist"),
        "{missing}"
    );

    let config = json!({
        "apiVersion": format!("{group}/v1beta2"), "kind": kind,
        "metadata": {"name": "m-config", "namespace": world.namespace}, "spec": {},
    });
    management_cluster::apply(&world.admin, config).await?;
    let status = json!({"status": {"conditions": [{
        "type": "Ready", "status": "False", "reason": "NotReady", "message": "no control plane",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    objects(&world, group, "v1beta2", kind)
        .patch_status("m-config", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let page = page(&world, "m").await?;
    ensure!(
        page.contains("m-config; Ready is False, NotReady: no control plane"),
        "{page}"
    );
    Ok(())
}

/// Cluster API sets these owners. The InfraMachine and its Machine have different names.
#[tokio::test(start_paused = true)]
async fn the_page_of_a_machine_shows_its_owners_by_either_name() -> Result<()> {
    let world = World::new("explain-owners").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let cluster = objects(&world, "cluster.x-k8s.io", "v1beta2", "Cluster")
        .get("c")
        .await?;
    let deployment = owned(
        &world,
        "MachineDeployment",
        "md",
        reference(&cluster, "Cluster", false),
    )
    .await?;
    let of_deployment = reference(&deployment, "MachineDeployment", true);
    let set = owned(&world, "MachineSet", "md-x7k2p", of_deployment).await?;
    let machine = ByHand::new(&world, "c", "by-hand")
        .infra("/metadata/name", json!("vm-of-by-hand"))
        .machine("/spec/infrastructureRef/name", json!("vm-of-by-hand"))
        .machine(
            "/metadata/ownerReferences",
            json!([reference(&set, "MachineSet", true)]),
        );
    machine.create().await?;
    let infra_machines = objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine");
    eventually(DEADLINE, "a VM of the Machine", async || {
        let provider_id = infra_machines.get("vm-of-by-hand").await?.data["spec"]["providerID"].clone();
        ensure!(provider_id.is_string(), "none yet");
        Ok(())
    })
    .await?;
    for name in ["by-hand", "vm-of-by-hand"] {
        let page = page(&world, name).await?;
        for part in ["Machine         by-hand", "vm-of-by-hand"] {
            ensure!(page.contains(part), "no `{part}` of {name} in\n{page}");
        }
        for (kind, name) in [
            ("MachineSet", "md-x7k2p"),
            ("MachineDeployment", "md"),
            ("Cluster", "c"),
        ] {
            let is_it = |line: &str| {
                let mut words = line.split([' ', ',']).filter(|word| !word.is_empty());
                words.next() == Some(kind) && words.next() == Some(name)
            };
            ensure!(page.lines().any(is_it), "no {kind} {name} in\n{page}");
        }
    }
    Ok(())
}

fn reference(owner: &DynamicObject, kind: &str, is_controller: bool) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": owner.name_any(), "uid": owner.uid(),
        "controller": is_controller,
    })
}

/// Creates an object of Cluster API with this owner.
async fn owned(world: &World, kind: &str, name: &str, owner: Value) -> Result<DynamicObject> {
    let object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
        "metadata": {"name": name, "namespace": world.namespace, "ownerReferences": [owner]},
        "spec": {"clusterName": "c"},
    });
    management_cluster::apply(&world.admin, object).await
}
