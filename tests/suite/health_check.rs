//! MachineHealthChecks on `InfrastructureReady`: what replaces a machine, and what must not.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DRIVER_REACHABLE, READY};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::{Condition, VmId};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::remediation::fall_silent;
use crate::support::backing::with_every_backing;
use crate::support::by_hand::{condition, message, says};
use crate::support::fleet::objects;
use crate::support::{Backing, Cloud, DEADLINE, Fleet, Provider, Stage, World};

with_every_backing!(
    a_vm_that_vanished_is_replaced_with_its_machine,
    a_vm_that_crashed_is_replaced_with_its_machine,
);

/// DRV-30, CTL-GS-14, CMI-74: a driver that can't be reached says nothing about its VMs, so no machine is
/// replaced.
#[tokio::test]
async fn an_outage_of_the_driver_replaces_no_machine() -> Result<()> {
    survives("outage", &json!({"code": "Unavailable"})).await
}

/// DRV-30, CTL-GS-04: nor one that takes calls and never answers them.
#[tokio::test]
async fn a_driver_that_hangs_replaces_no_machine() -> Result<()> {
    survives("hanging", &json!({"hang": "before"})).await
}

/// Lets every call of the driver fail in this way for longer than a health check waits, and then no more.
async fn survives(case: &str, fault: &Value) -> Result<()> {
    let world = World::new(case).await?;
    let cloud = Cloud::new(&world);
    let short = json!({"timeouts": {
        "default": "2s", "probe": "1s", "getPluginInfo": "1s", "getPluginCapabilities": "1s",
        "createMachine": "2s", "initializeMachine": "2s", "deleteMachine": "2s",
    }});
    let _provider = Provider::new(cloud.drivers_with(short, json!({})))
        .start(&world)
        .await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 3).await?;
    let machines = fleet.running(3).await?;
    let before = fleet.infra_machines().await?;
    let vms = cloud.holds(3).await?;
    health_check(&world).await?;

    let identity = ["Probe", "GetPluginInfo", "GetPluginCapabilities"];
    let mut faults = vec![fault.clone()];
    faults.extend(identity.map(|operation| {
        let mut fault = fault.clone();
        fault["operation"] = json!(operation);
        fault
    }));
    cloud.fail(Value::Array(faults))?;
    // For longer than the health check waits.
    eventually(DEADLINE, "an outage that all machines show", async || {
        for machine in fleet.infra_machines().await? {
            let shown = condition(&machine, DRIVER_REACHABLE).context("no DriverReachable")?;
            let since = Timestamp::now().as_second() - shown.last_transition_time.0.as_second();
            ensure!(shown.status == "False" && since >= 3, "{shown:?}");
        }
        Ok(())
    })
    .await?;
    // The proof that the health check is at work: one machine that is to be replaced for another reason.
    let victim = machines[0].name_any();
    annotate(&world, &victim, "cluster.x-k8s.io/remediate-machine").await?;
    eventually(DEADLINE, "the remediation of one machine", async || {
        let machine = machine(&world, &victim).await?;
        ensure!(
            machine.metadata.deletion_timestamp.is_some(),
            "{:#}",
            machine.data
        );
        Ok(())
    })
    .await?;
    for old in before.iter().filter(|old| old.name_any() != victim) {
        let now = infra(&world, &old.name_any()).await?;
        ensure!(
            now.metadata.deletion_timestamp.is_none(),
            "{} is deleted",
            now.name_any()
        );
        let ready = |machine| condition(machine, READY).cloned();
        ensure!(ready(&now) == ready(old), "{:?}", ready(&now));
        let machine = machine(&world, &old.name_any()).await?;
        ensure!(machine.metadata.deletion_timestamp.is_none());
        ensure!(
            of(&machine, "InfrastructureReady")["status"] == "True",
            "{:#}",
            machine.data
        );
    }
    ensure!(cloud.vms()? == vms, "VMs were touched");

    cloud.fail(json!([]))?;
    let after = fleet.running(3).await?;
    let kept = |all: &[DynamicObject]| {
        let mut uids: Vec<_> = all
            .iter()
            .filter(|machine| machine.name_any() != victim)
            .filter_map(ResourceExt::uid)
            .collect();
        uids.sort();
        uids
    };
    let (old, new) = (kept(&machines), kept(&after));
    ensure!(
        old.len() == 2 && old.iter().all(|uid| new.contains(uid)),
        "{old:?} {new:?}"
    );
    eventually(DEADLINE, "a driver that is back", async || {
        let all = fleet.infra_machines().await?;
        ensure!(
            all.iter()
                .all(|machine| says(machine, DRIVER_REACHABLE, "True", "Reachable"))
        );
        Ok(())
    })
    .await?;
    cloud.holds(3).await?;
    Ok(())
}

/// CTL-LM-00, CTL-GS-05: a VM that the driver confirms to be gone is not made again under its machine; the
/// health check replaces the machine.
async fn a_vm_that_vanished_is_replaced_with_its_machine(backing: Backing) -> Result<()> {
    replaced_after(
        backing,
        "vanished",
        "VirtualMachineVanished",
        async |_, cloud, id| {
            cloud.console()?.vanish(id)?;
            Ok(())
        },
    )
    .await
}

/// A VM that crashed is found by its Node, which goes silent: the driver is asked, and confirms it.
async fn a_vm_that_crashed_is_replaced_with_its_machine(backing: Backing) -> Result<()> {
    replaced_after(
        backing,
        "crashed",
        "VirtualMachineFailed",
        async |world, cloud, id| {
            cloud.console()?.set_condition(id, Condition::Crashed)?;
            let vm = cloud.vms()?.into_iter().find(|vm| vm.id == id).context("no VM")?;
            fall_silent(world, &vm).await
        },
    )
    .await
}

/// The driver had not been asked what it implements when the Machine was seen.
#[tokio::test]
async fn a_node_that_went_silent_while_no_provider_ran_is_a_reason_to_ask() -> Result<()> {
    let world = World::new("unwatched").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let provider = Provider::new(cloud.drivers(json!({}))).flag("--inventory-interval=1h");
    let mut first = provider.start(&world).await?;
    let machine = stage.machine("m").create().await?;
    machine.provisioned().await?;
    first.process.kill();
    let vms = cloud.holds(1).await?;
    cloud.console()?.set_condition(vms[0].id, Condition::Crashed)?;
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let silent = json!({"status": {"nodeRef": {"name": "m"}, "conditions": [{
        "type": "NodeHealthy", "status": "Unknown", "reason": "NodeUnknown", "message": "",
        "lastTransitionTime": now,
    }]}});
    objects(&world, "cluster.x-k8s.io", "v1beta2", "Machine")
        .patch_status("m", &PatchParams::default(), &Patch::Merge(silent))
        .await?;
    let _second = provider.named("second").start(&world).await?;
    machine
        .until("a VM that failed", |machine| {
            says(machine, READY, "False", "VirtualMachineFailed")
        })
        .await?;
    Ok(())
}

/// Lets something happen to one VM of two, waits for the machine to say so, and then for its replacement.
async fn replaced_after(
    backing: Backing,
    case: &str,
    reason: &str,
    happen: impl AsyncFnOnce(&World, &Cloud, VmId) -> Result<()>,
) -> Result<()> {
    let world = World::new(case).await?;
    let cloud = Cloud::new(&world);
    let driver = backing.of(&world, &cloud, json!({})).await?;
    let _provider = Provider::new(&driver.drivers).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 2).await?;
    fleet.running(2).await?;
    let vms = cloud.holds(2).await?;
    let (lost, kept) = (&vms[0], &vms[1]);
    happen(&world, &cloud, lost.id).await?;
    let reported = eventually(DEADLINE, reason, async || {
        let machine = infra(&world, &lost.name).await?;
        ensure!(says(&machine, READY, "False", reason), "{:?}", machine.status);
        Ok(machine)
    })
    .await?;
    ensure!(!message(&reported, READY).is_empty(), "no message");
    ensure!(
        reported
            .status
            .and_then(|status| status.initialization?.provisioned)
            == Some(true),
        "provisioned was taken back"
    );
    health_check(&world).await?;
    eventually(DEADLINE, "the end of the machine", async || {
        let api: Api<InfraMachine> = Api::namespaced(world.admin.clone(), &world.namespace);
        ensure!(api.get_opt(&lost.name).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    fleet.running(2).await?;
    let now = cloud.holds(2).await?;
    ensure!(now.contains(kept), "the other VM was touched: {now:?}");
    let creates = cloud.count(Operation::CreateMachine, &lost.name)?;
    ensure!(creates == 1, "{creates} creates: it was made again in silence");
    Ok(())
}

/// A MachineHealthCheck on what the provider says, which waits for a second; returns when it
/// has looked at the machines.
async fn health_check(world: &World) -> Result<()> {
    let clusters = objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    eventually(DEADLINE, "a Cluster that may be health checked", async || {
        let cluster = clusters.get("md").await?;
        for type_ in ["ControlPlaneInitialized", "InfrastructureReady"] {
            ensure!(of(&cluster, type_)["status"] == "True", "{:#}", cluster.data);
        }
        Ok(())
    })
    .await?;
    world
        .apply(
            r#"
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: check, namespace: $NS}
spec:
  clusterName: md
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: md}}
  checks:
    unhealthyMachineConditions:
    - {type: InfrastructureReady, status: "False", timeoutSeconds: 1}
    - {type: InfrastructureReady, status: Unknown, timeoutSeconds: 1}
"#,
        )
        .await?;
    let checks = objects(world, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    eventually(DEADLINE, "a health check that has looked", async || {
        let status = checks.get("check").await?.data["status"].clone();
        ensure!(
            status["expectedMachines"].as_i64().unwrap_or_default() >= 2,
            "{status:#}"
        );
        Ok(())
    })
    .await
}

async fn infra(world: &World, name: &str) -> Result<InfraMachine> {
    Ok(Api::namespaced(world.admin.clone(), &world.namespace)
        .get(name)
        .await?)
}

async fn machine(world: &World, name: &str) -> Result<DynamicObject> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    Ok(machines.get(name).await?)
}

async fn annotate(world: &World, name: &str, key: &str) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: ""}}}));
    machines.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A condition of an object of Cluster API.
fn of(object: &DynamicObject, type_: &str) -> Value {
    let all = object.data["status"]["conditions"].as_array();
    all.into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or_default()
}
